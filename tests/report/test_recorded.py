"""What training records for the report: rows per layer, measurements and traces."""

import time

import numpy as np
import pytest
import torch
from short_runs import short_config

from spikewire.config import resolve
from spikewire.errors import SpikewireError
from spikewire.report import load
from spikewire.runs.rundir import RunDir
from spikewire.runs.traces import BINS, RATE_BINS, Traces
from spikewire.train.loop import Epoch, fit
from spikewire.train.telemetry import Telemetry

torch.set_num_threads(1)


def test_each_row_counts_pruned_and_regrown_synapses_per_layer(trained):
    rows = load(trained / "gradr-a").history
    before = {"fc1.weight": 16384, "fc2.weight": 2560}
    for row in rows:
        for name, counts in row["layers"].items():
            assert counts["present"] == before[name] - counts["pruned"] + counts["regrown"]
            before[name] = counts["present"]
        totals = sum(counts["pruned"] for counts in row["layers"].values())
        assert totals == row["stats"]["pruned"]
    assert sum(before.values()) / 18944 == rows[-1]["connectivity"]


def test_deepr_regrows_as_many_synapses_as_it_prunes(trained):
    for row in load(trained / "deepr").history:
        for counts in row["layers"].values():
            assert counts["regrown"] == counts["pruned"]
            assert counts["present"] == round(0.3 * counts["total"])


def test_the_network_is_measured(trained):
    dense, sparse = (load(trained / name).measured for name in ("dense", "gradr-b"))
    assert sparse["synops"] + sparse["macs"] < dense["synops"] + dense["macs"]
    assert [dense[key] for key in ("synapses", "synapses_reached", "synapses_alive")] == [1, 1, 1]
    assert sparse["synapses"] >= sparse["synapses_reached"] >= sparse["synapses_alive"]
    assert sparse["bytes_packed"] < dense["bytes_packed"] < dense["bytes_dense"] == 18944 * 4
    assert set(dense["firing"]) == {"lif1", "lif2"}


def test_traces_have_every_layer_and_epoch(trained):
    arrays = RunDir(trained / "gradr-a").load_traces()
    assert arrays["theta"].shape == (3, 2, BINS)
    assert arrays["rates"].shape == (3, 2, RATE_BINS)
    assert arrays["rates"].sum(2).tolist() == [[256, 10]] * 3
    assert arrays["theta"].sum(2).tolist() == [[16384, 2560]] * 3
    assert (arrays["theta_range"][..., 0] < 0).any()  # theta, not the magnitude of the weight
    assert (trained / "gradr-a" / "traces.npz").stat().st_size < 20_000


def test_the_interval_of_traces_can_be_set(tmp_path):
    fit(short_config(epochs="5", trace_every="3"), tmp_path / "run")
    run = load(tmp_path / "run")
    assert [row["epoch"] for row in run.history if "measured" in row] == [1, 3, 5]
    assert all("layers" in row for row in run.history)
    assert run.traces.epochs == [1, 3, 5]


@pytest.mark.slow
def test_recording_takes_under_5_percent_of_a_run(tmp_path, monkeypatch):
    spent = []

    def timed(owner, name):
        plain = getattr(owner, name)

        def run(*args, **kwargs):
            start = time.process_time()
            result = plain(*args, **kwargs)
            spent.append(time.process_time() - start)
            return result

        monkeypatch.setattr(owner, name, run)

    for name in ("trace", "measure", "picture"):
        timed(Telemetry, name)
    for name in ("save_traces", "save_snapshots"):
        timed(RunDir, name)
    start = time.process_time()
    fit(resolve("digits", flags={"threads": "1"}), tmp_path / "run")
    assert 0 < sum(spent) < 0.05 * (time.process_time() - start)


@pytest.mark.parametrize("at", [1, 2])
def test_a_resumed_run_records_the_same_traces(trained, tmp_path, at):
    def stop(event):
        after_epoch = isinstance(event, Epoch) and event.row["epoch"] == at
        return after_epoch or getattr(event, "step", 0) == 14

    config = short_config(alpha="0.5")
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "cut", progress=stop)
    fit(config, tmp_path / "cut", resume=True)
    whole, cut = (RunDir(path).load_traces() for path in (trained / "gradr-a", tmp_path / "cut"))
    assert all(np.array_equal(whole[key], cut[key]) for key in whole)
    whole, cut = (RunDir(path).load_snapshots() for path in (trained / "gradr-a", tmp_path / "cut"))
    assert whole["confusion"].size
    assert all(np.array_equal(whole[key], cut[key]) for key in whole)
    rows = [
        [(row["layers"], row["measured"]) for row in load(path).history]
        for path in (trained / "gradr-a", tmp_path / "cut")
    ]
    assert rows[0] == rows[1]


def test_damaged_traces_are_reported(runs):
    (runs / "dense" / "traces.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(SpikewireError, match=r"traces\.npz: is damaged"):
        RunDir(runs / "dense").load_traces()
    assert load(runs / "dense").traces is None
    assert RunDir(runs).load_traces() is None


def test_traces_can_be_read_back_and_truncated(trained):
    traces = Traces.of(RunDir(trained / "dense").load_traces())
    traces.truncate(2)
    assert traces.epochs == [1, 2]
    assert {len(v) for k, v in vars(traces).items() if k not in ("layers", "neurons")} == {2}
