"""benchmarks/time_to_accuracy.py: a chain that starts from a network of the zoo."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import time_to_accuracy

from spikewire.config import Config, resolve
from spikewire.train.loop import fit
from spikewire.zoo import card

ROOT = Path(__file__).parents[2]


def test_the_time_from_scratch_includes_that_of_the_network_of_the_zoo():
    row = json.loads((ROOT / "results" / "cifar10" / "budget-0.0223-seed2.json").read_text())
    assert time_to_accuracy.seconds_by_run("zoo:cifar10-2.23") == {
        "zoo:cifar10-2.23": row["seconds"]
    }
    assert card("digits-5").seconds is None
    assert time_to_accuracy.seconds_by_run("zoo:digits-5") == {}, "not known"
    assert time_to_accuracy.fraction("zoo:cifar10-2.23", "connectivity") == pytest.approx(0.0223)


def test_a_run_that_two_others_need_is_counted_once(tmp_path):
    """b starts from a, and c from b; a teaches both."""
    runs = {name: str(tmp_path / name) for name in "abc"}
    starts = {"a": {}, "b": {"start": "a", "teacher": "a"}, "c": {"start": "b", "teacher": "a"}}
    for name, needs in starts.items():
        changes = {key: runs[other] for key, other in needs.items()}
        fit(Config(method="dense", epochs=1, batch_size=256, threads=1, **changes), runs[name])
    found = time_to_accuracy.seconds_by_run(runs["c"])
    assert set(found) == set(runs.values())
    row = time_to_accuracy.record(Path(runs["c"]))
    assert row["seconds"] == pytest.approx(sum(found.values()), abs=0.01)
    assert (row["start"], row["teacher"]) == ("b", "a")


def test_the_points_after_it_start_from_it(monkeypatch):
    commands = []
    monkeypatch.setattr(time_to_accuracy, "call", lambda words, until: commands.append(words))
    args = Namespace(runs=Path("nowhere"), seed=2, chain=True, zoo="cifar10-2.23")
    point = next(x for x in time_to_accuracy.POINTS if x.label == "synapses-0.054")
    time_to_accuracy.train(point, args, [])
    (words,) = commands
    assert "--start zoo:cifar10-2.23 --first 0.2011" in " ".join(words)


def test_a_point_starts_from_one_that_was_trained_before_it():
    labels = [point.label for point in time_to_accuracy.POINTS]
    assert len(set(labels)) == len(labels)
    starts = [(i, point.start) for i, point in enumerate(time_to_accuracy.POINTS) if point.start]
    assert all(start in labels[:i] or start.startswith("zoo:") for i, start in starts)


def test_a_point_may_start_from_a_network_of_the_zoo(monkeypatch):
    commands = []
    monkeypatch.setattr(time_to_accuracy, "call", lambda words, until: commands.append(words))
    args = Namespace(runs=Path("nowhere"), seed=0, chain=True, zoo="")
    for point in time_to_accuracy.POINTS:
        if point.start and point.start.startswith("zoo:"):
            time_to_accuracy.train(point, args, [])
    first, *_ = (" ".join(words) for words in commands)
    assert "--connectivity 0.0508 --seed 0 --start zoo:cifar10-2.23 --first 0.0508" in first
    assert all("benchmarks/ann_teacher.py:cifar10" in words for words in commands)


def test_a_point_that_was_stopped_resumes_with_the_teacher_that_it_names(monkeypatch, tmp_path):
    """A run executes a Python file only if the command names it."""
    commands = []
    monkeypatch.setattr(time_to_accuracy, "call", lambda words, until: commands.append(words))
    point = next(x for x in time_to_accuracy.POINTS if x.label == "taught-0.0508")
    (tmp_path / "taught-budget-0.0508").mkdir()
    (tmp_path / "taught-budget-0.0508" / "config.toml").write_text("")
    for chain in (True, False):
        args = Namespace(runs=tmp_path, seed=0, chain=chain, zoo="")
        time_to_accuracy.train(point, args, ["--lr", "1e-3"])
    run, teacher = str(tmp_path / "taught-budget-0.0508"), "benchmarks/ann_teacher.py:cifar10"
    assert commands == [["--resume", run, "--teacher", teacher], ["--resume", run]]


def test_the_summary_has_every_point_that_was_run(capsys):
    time_to_accuracy.summary(ROOT / "results" / "cifar10")
    printed = capsys.readouterr().out.split()
    assert {"0.0508", "first-synapses-0.0116", "taught-synapses-0.0116"} <= {*printed}


def test_every_run_of_a_target_has_a_directory_of_its_own():
    labels = ("0.05", "first-synapses-0.05", "taught-synapses-0.05")
    names = ["budget-0.05-seed2", "first-budget-synapses-0.05-seed2"]
    names += ["taught-budget-synapses-0.05-seed2"]
    paths = [time_to_accuracy.run_path(Path("runs"), label, 2) for label in labels]
    assert paths == [Path("runs") / name for name in names]


@pytest.mark.parametrize(
    ("target", "first"),
    [(0.01, "0.0223"), (0.0223, "0.0223"), (0.02235, "0.02235"), (0.03, "0.03")],
)
def test_a_run_starts_at_the_fraction_of_its_start_but_not_below_its_target(target, first):
    start = "zoo:cifar10-2.23"
    assert f"{time_to_accuracy.fraction(start, 'connectivity'):.4g}" == "0.0223"
    assert time_to_accuracy.first_fraction(start, "connectivity", target) == first
    words = {"connectivity": f"{target:g}", "first": first}
    assert resolve("cifar10-fast", flags=words).options["first"] == float(first)


def test_a_target_in_synops_starts_at_the_fraction_of_the_weights():
    assert time_to_accuracy.first_fraction("zoo:cifar10-2.23", "synops", 9.6e6) == "0.0223"
