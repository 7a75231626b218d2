"""benchmarks/leaderboard.py: its points, and one run of a few images on a CPU."""

import json
import re
import subprocess
import sys
from pathlib import Path

import leaderboard
import leaderboard_tables as tables
import pytest

from spikewire import data
from spikewire.config import method_fields, resolve
from spikewire.errors import SpikewireError
from spikewire.runs.rundir import RunDir
from spikewire.train.signals import Interrupted

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_board_is_a_preset_whose_method_takes_the_targets():
    for preset, points in tables.BOARD.items():
        for point in points:
            config = resolve(preset, flags={point.unit: f"{point.target:g}"})
            assert (config.unit, config.target) == (point.unit, point.target)


def test_points_are_chosen_by_their_targets():
    assert leaderboard.selected("cifar10-vgg16", "0.05")[0].published == 0.9131
    assert leaderboard.selected("cifar10-vgg16", "0.03")[0].published is None
    assert len(leaderboard.selected("cifar10-vgg16", "")) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--points", "5%"], "--points: '5%' is not a comma list of numbers"),
        (["--methods", "upr,grad"], "method: unknown 'grad'; did you mean 'gradr'?"),
        (["--limit", "-1"], "--limit: -1 is not allowed"),
    ],
)
def test_a_wrong_option_is_one_line(words, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "cifar10-vgg16", *words])
    with pytest.raises(SpikewireError, match=f"^{re.escape(message)}"):
        leaderboard.main()


def test_few_images_are_different_ones_of_all_classes():
    found = leaderboard.few(data.load("digits"), 20)
    assert found.train_labels.unique().tolist() == [*range(10)]
    many = leaderboard.few(data.load("digits"), 5000)
    whole = data.load("digits")
    assert len(many.train_labels) == len(whole.train_labels)
    assert len(many.train_images.unique(dim=0)) == len(whole.train_images.unique(dim=0))


def test_runs_of_a_search_have_names_and_settings_of_their_own():
    points = leaderboard.selected("cifar100-sew18", "0.036")
    found = ["base", "price=0.5,augment=crop:4+flip"]
    base, other = leaderboard.of_search("cifar100-sew18", points, {"seed": "1"}, found)
    assert base.flags["hold_out"] == other.flags["hold_out"] == "5000"
    config = resolve("cifar100-sew18", flags=other.flags)
    assert (config.options["price"], config.augment) == (0.5, ("crop:4", "flip"))
    assert base.name != other.name


def test_methods_are_compared_with_equal_settings_and_one_run_of_those_without_a_target():
    points = leaderboard.selected("cifar100-sew18", "0.1,0.02", methods=True)
    methods = leaderboard.FOR_IMAGES
    runs = [*leaderboard.of_methods("cifar100-sew18", points, {"seed": "0"}, methods)]
    assert len({run.name for run in runs}) == len(runs)
    configs = [resolve("cifar100-sew18", flags=run.flags) for run in runs]
    assert {(c.optimizer, c.lr, c.epochs, c.time_steps) for c in configs} == {("adam", 1e-3, 20, 2)}
    counts = {name: [c.method for c in configs].count(name) for name in methods}
    assert counts == {name: 1 + ("connectivity" in method_fields(name)) for name in methods}
    assert (counts["dense"], counts["budget"]) == (1, 2)


def test_accuracies_on_held_out_images_are_not_mixed_with_those_on_the_test_set(tmp_path):
    row = dict.fromkeys(tables.KEYS) | {"preset": "cifar10-vgg16", "method": "budget"}
    row |= {"point": ["connectivity", 0.1], "config": ["time_steps = 5"]}
    for name, held_out in (("a", None), ("b", 5000)):
        (tmp_path / f"{name}.json").write_text(json.dumps(row | {"hold_out": held_out}))
    ((_, rows),) = tables.read(tmp_path.glob("*.json")).items()
    assert [found["hold_out"] for found in rows] == [None]


def test_a_run_that_was_stopped_is_resumed_and_a_finished_one_not_repeated(tmp_path):
    flags = {"method": "budget", "synapses": "0.1", "epochs": "2", "batch_size": "500"}
    run = leaderboard.Run(tables.Point("synapses", 0.1), "here", flags)
    inputs = run, "digits", tmp_path, data.load("digits")
    with pytest.raises(Interrupted):
        leaderboard.train(*inputs, until=0.0)
    assert not RunDir(tmp_path / "here").history()
    row = leaderboard.train(*inputs)
    assert len(row["curve"]["loss"]) == 2
    again = leaderboard.train(*inputs)
    assert {**row, "wall_seconds": 0} == {**again, "wall_seconds": 0}


def test_a_run_with_other_settings_is_not_taken_for_this_one(tmp_path):
    """Its accuracy would be recorded with a command that it does not come from."""
    flags = {"method": "budget", "synapses": "0.1", "epochs": "1", "batch_size": "500"}
    run = leaderboard.Run(tables.Point("synapses", 0.1), "here", flags)
    row = leaderboard.train(run, "digits", tmp_path, data.load("digits"))
    file = tmp_path / "here.json"
    file.write_text(json.dumps(row))
    assert leaderboard.finished_row(run, "digits", tmp_path, file) == json.loads(file.read_text())
    other = run._replace(flags=flags | {"epochs": "2"})
    assert leaderboard.finished_row(other, "digits", tmp_path, file) is None
    with pytest.raises(SpikewireError, match=r"here: is a run with other settings \(epochs = 1\)"):
        leaderboard.train(other, "digits", tmp_path, data.load("digits"))
    more = run._replace(flags=flags | {"dropout": "0.1"})  # a setting that the run left out
    with pytest.raises(SpikewireError, match=r"other settings \(not dropout = 0.1\)"):
        leaderboard.train(more, "digits", tmp_path, data.load("digits"))


def test_a_point_without_a_run_shows_the_published_figure(tmp_path):
    lines = tables.markdown(tmp_path).splitlines()
    assert len(lines) == 2 + sum(map(len, tables.BOARD.values()))
    assert [line for line in lines if "UPR, 9.6 M" in line] == [
        "| CIFAR-100, SEW-ResNet-18 | 4 | 3.6 % of synapses |  |  |  | not run | 0 |  "
        "| 70.45 (UPR, 9.6 M SynOps) |"
    ]


def test_the_page_shows_the_files_of_results():
    root = FOLDER.parent
    assert (
        tables.markdown(root / "results" / "leaderboard") in (root / "docs/results.md").read_text()
    )


def test_a_file_without_marks_is_refused(tmp_path):
    (tmp_path / "page.md").write_text("# Results\n")
    with pytest.raises(SpikewireError, match="page.md: has no lines <!-- leaderboard -->"):
        tables.write_docs(tmp_path / "page.md", tmp_path)


def start(folder, *words):
    flags = "--limit 40 --width 0.02 --batch-size 10 --device cpu --precision fp32"
    command = [sys.executable, FOLDER / "leaderboard.py", *words, *flags.split()]
    subprocess.run([*command, "--runs", str(folder / "runs")], check=True)


def test_later_runs_of_a_chain_start_from_the_one_before_and_learn_from_the_first(monkeypatch):
    monkeypatch.setitem(leaderboard.of_chain.__globals__, "first_fraction", lambda *_: "0.1")
    points = [leaderboard.Point("connectivity", target) for target in (0.02, 0.1, 0.05)]
    chain = leaderboard.of_chain("cifar10-vgg16", points, {"seed": "0"}, Path("r"), "teacher=first")
    first, second, third = chain
    assert "teacher" not in first.flags
    assert second.flags["start"] == second.flags["teacher"] == f"r/{first.name}"
    assert (third.flags["start"], third.flags["teacher"]) == (f"r/{second.name}", f"r/{first.name}")


def test_a_target_in_synops_ends_a_chain(monkeypatch):
    monkeypatch.setitem(leaderboard.of_chain.__globals__, "first_fraction", lambda *_: "0.1")
    points = leaderboard.selected("cifar100-sew18", "")[::-1]
    chain = leaderboard.of_chain("cifar100-sew18", points, {"seed": "0"}, Path("r"), "")
    assert [run.point.unit for run in chain] == ["connectivity", "synapses", "synops"]


@pytest.mark.slow
def test_runs_of_few_images_are_recorded_and_enter_the_docs(cifar10, cifar100, tmp_path):
    out = tmp_path / "out"
    start(tmp_path, "cifar100-sew18", "--points", "0.036", "--epochs", "1", "--out", str(out))
    (file,) = out.glob("*.json")
    row = json.loads(file.read_text())
    assert row["command"].startswith("spikewire train --preset cifar100-sew18 --method budget")
    assert row["limit"] == 40
    assert 0 < row["measured"]["synapses_reached"] <= 0.0361
    assert len(row["curve"]["loss"]) == 1

    chain = ["cifar10-vgg16", "--chain", "epochs=2,ramp=0.5,teacher=first", "--points", "0.1,0.05"]
    start(tmp_path, *chain, "--epochs", "1", "--out", str(out))
    later = json.loads((out / "cifar10-vgg16-budget-connectivity-0.05-seed0.json").read_text())
    assert later["start"] == later["teacher"] == "cifar10-vgg16-budget-connectivity-0.1-seed0"
    assert later["connectivity"] == pytest.approx(0.05, abs=1e-3)

    taught = ["cifar100-sew18", "--points", "0.1", "--dense", "epochs=1,time-steps=2,threshold=0.5"]
    taught += ["--early-time-steps", "0", "--early", "0.8", "--time-steps", "3"]
    start(tmp_path, *taught, "--epochs", "1", "--out", str(out))
    student = json.loads(
        (out / "cifar100-sew18-budget-connectivity-0.1-3steps-seed0.json").read_text()
    )
    assert student["start"] == "cifar100-sew18-dense-connectivity-1-2steps-seed0"
    assert f"--teacher {tmp_path / 'runs' / student['start']}" in student["command"]
    assert student["seconds"] > student["seconds_alone"]

    methods = ["cifar100-sew18", "--methods", "upr,dense", "--points", "0.1,0.02"]
    start(tmp_path, *methods, "--epochs", "1", "--out", str(out / "methods"))

    page = tmp_path / "page.md"
    page.write_text(
        "# Before\n<!-- leaderboard -->\nstale text\n<!-- end of leaderboard -->\n# After\n"
    )
    tables.write_docs(page, out)
    text = page.read_text()
    assert "stale text" not in text
    assert text.startswith("# Before\n")
    assert text.endswith("# After\n")
    cells = [line.split(" | ") for line in text.splitlines() if line.startswith("| CIFAR")]
    run = [line for line in cells if line[6] != "not run"]
    assert [line[1:3] for line in run] == [
        ["2", "none: dense"],
        ["3", "10 % of weights"],
        ["4", "3.6 % of synapses"],
        ["5", "10 % of weights"],
        ["5", "5 % of weights"],
    ]
    assert run[2][6] == f"{100 * row['accuracy']:.2f}"
    assert run[4][9] == "**91.31** (NDSNN) |", "the higher figure is bold"
    assert len(cells) == 1 + sum(map(len, tables.BOARD.values()))  # the dense one
    assert "| `upr` |" in text
    assert "(no target: 100 %)" in text
    assert "spikewire train --preset cifar10-vgg16 --method budget --connectivity 0.05" in text
    assert tables.markdown(out) in text
