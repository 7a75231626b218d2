"""Targets in units at the command line: train, frontier, report, and what they leave behind."""

import json

import pytest

from spikewire.config import resolve
from spikewire.deploy import export_run
from spikewire.frontier import plan
from spikewire.runs.rows import in_unit
from spikewire.runs.rundir import RunDir
from spikewire.text import amount
from spikewire.train.loop import fit

NETWORK = '''
from torch import nn
from spikewire.nn.layers import Spiking, conv, linear
from spikewire.nn.neurons import LIF


def net():
    """A convolution, whose weights stand for up to 64 synapses, and two linear layers."""
    layers = {"conv": conv(1, 8, 3, padding=1), "lif1": LIF(), "pool": nn.MaxPool2d(2)}
    layers |= {"flatten": nn.Flatten(), "fc1": linear(128, 100), "lif2": LIF()}
    layers |= {"fc2": linear(100, 10), "lif3": LIF()}
    return Spiking(layers, time_steps=2, input_shape=(1, 8, 8), classes=10)
'''


@pytest.fixture
def tiny(tmp_path):
    """Flags of a short run of a small network with a convolution."""
    (tmp_path / "small.py").write_text(NETWORK)
    model = f"--model={tmp_path / 'small.py'}:net"
    return ["--dataset=digits", model, "--epochs=2", "--time-steps=2", "--batch-size=128"]


def test_train_meets_a_target_in_synapses_and_prints_it(call, tiny, tmp_path):
    run = tmp_path / "run"
    code, out, _ = call("train", "--method=budget", "--synapses=0.1", *tiny, f"--out={run}")
    assert code == 0
    config, last = RunDir(run).config(), RunDir(run).history()[-1]
    assert (config.unit, config.target) == ("synapses", 0.1)
    assert last["measured"]["synapses"] == pytest.approx(0.1, abs=1e-4)
    assert last["connectivity"] != pytest.approx(0.1, abs=0.01)
    assert "synapses 10.00%" in " ".join(out.split())


@pytest.mark.parametrize(("unit", "target"), [("bytes", 9000), ("synops", 300)])
def test_train_prints_target_and_actual_in_the_unit(call, tmp_path, unit, target):
    run = tmp_path / "run"
    code, out, _ = call(
        "train", "--method=budget", f"--{unit}={target}", "--epochs=2", "--out", run
    )
    assert code == 0
    actual = in_unit(RunDir(run).history()[-1], unit)
    lines = f"target {unit} {amount(unit, target)} actual {unit} {amount(unit, actual)} "
    assert lines in " ".join(out.split())


def test_the_actual_bytes_of_a_run_are_the_size_of_its_packed_file(call, tiny, tmp_path):
    run = tmp_path / "run"
    call("train", "--method=budget", "--bytes=9000", *tiny, f"--out={run}")
    size = export_run(run, model=tiny[1].removeprefix("--model=")).size
    assert in_unit(RunDir(run).history()[-1], "bytes") == pytest.approx(size, rel=0.01)


def test_bytes_of_rows_of_earlier_versions_are_those_without_the_header():
    row = {"connectivity": 0.5, "measured": {"bytes_packed": 7500, "synops": 3.0}}
    assert (in_unit(row, "bytes"), in_unit(row, "synops")) == (7500, 3.0)
    assert in_unit({"connectivity": 0.5}, "bytes") is None


def test_a_frontier_and_a_report_in_synapses(call, tiny, tmp_path):
    folder = tmp_path / "runs"
    words = ["--methods=budget,rigl", "--unit=synapses", "--targets=0.3", "--seeds=1"]
    flags = dict(word.removeprefix("--").split("=") for word in tiny)
    flags = {key.replace("-", "_"): value for key, value in flags.items()}
    for job in plan([flags.pop("dataset")], ["budget", "rigl"], [0.3], 1, "synapses"):
        fit(resolve(flags=job.settings(flags)), folder / job.name)  # in this process: faster
    code, out, err = call("frontier", *words, *tiny, f"--out={folder}")
    assert (code, err) == (0, "")
    content = json.loads((folder / "frontier.json").read_text())
    assert [row["method"] for row in content["runs"]] == ["budget", "rigl"]
    for row in content["runs"]:
        assert (row["unit"], row["target"]) == ("synapses", 0.3)
        assert row["actual"] == pytest.approx(0.3, abs=1e-3)
        assert RunDir(folder / row["name"]).history()[-1]["measured"]["synapses"] == row["actual"]
    assert "synapses 30.0" in out
    assert list(folder.glob("frontier-synapses.*"))
    page = tmp_path / "page.html"
    assert call("report", "--unit=synapses", folder, "-o", page)[0] == 0
    assert "Accuracy against synapses" in page.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frontier", "--unit=synapse", "--targets=0.1"], "did you mean 'synapses'"),
        (["frontier", "--unit=bytes"], "--targets: is missing"),
        (["frontier", "--unit=synapses", "--targets=0.1,1.5"], "--targets: 1.5 is not allowed"),
        (["frontier", "--targets=0"], "--targets: 0.0 is not allowed; it must be in (0, 1]"),
        (["frontier", "--unit=bytes", "--targets=-3"], "--targets: -3.0 is not allowed"),
        (["frontier", "--unit=bytes", "--connectivity=0.1"], "without --unit and --targets"),
        (["report", "--unit=byte", "runs"], "did you mean 'bytes'"),
        (["train", "--method=deepr", "--synapses=0.1"], "--synapses: belongs to aptn, budget"),
        (["train", "--method=rigl", "--synops=100"], "--synops: belongs to budget"),
        (["train", "--synapses=0.1", "--bytes=1000", "--method=rigl"], "not both"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(call, words, said):
    code, _, err = call(*words)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_the_directory_of_a_run_is_no_place_for_a_frontier(call, tmp_path):
    (tmp_path / "config.toml").write_text('dataset = "digits"\n')
    code, _, error = call("frontier", "--epochs", "1", "--out", tmp_path, "--dry-run")
    assert code == 2
    assert "a folder of runs, not the directory of one" in error
