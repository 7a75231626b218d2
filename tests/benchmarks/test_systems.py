"""The rows of benchmarks/systems.py: their flags are valid, and the table of the docs is theirs."""

import json
import shlex
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest
import systems
from refusal import refused

from spikewire.config import resolve
from spikewire.report import render
from spikewire.report.systems import plot_systems, read_systems

ROOT = Path(__file__).parents[2]

ROWS = systems.ROWS


@pytest.mark.parametrize("name", ROWS)
def test_the_flags_of_a_row_are_valid(name):
    words = shlex.split(ROWS[name].flags)
    flags = {
        key[2:].replace("-", "_"): value for key, value in zip(words[::2], words[1::2], strict=True)
    }
    preset = flags.pop("preset")
    config = resolve(preset, flags=flags)
    number = name.split("-")[-1] if config.target else ""
    if number.isdigit():
        assert config.target == int(number) / 100


def test_the_table_of_the_docs_is_that_of_the_results():
    file = ROOT / "results" / "systems.json"
    table = json.loads(file.read_text()) if file.exists() else {}
    page = (ROOT / "docs" / "systems.md").read_text()
    assert systems.fill(page, table) == page


def test_the_figure_of_the_paper_shows_the_results():
    table = json.loads((ROOT / "results" / "systems.json").read_text())
    assert systems.drawn(table) == read_systems()
    plot = plot_systems([])
    picture = render(plot).decode()
    for row in read_systems():
        if row["published"]:
            assert f"{row['row']}, published\naccuracy {row['published']['accuracy']:.2f} %" in (
                picture.replace("&#10;", "\n")
            )
        if row["ours"]:
            assert f"{row['row']}, n = {row['ours']['n']}" in picture


def test_the_first_number_of_what_was_published_is_its_accuracy():
    point = systems.point
    assert point("about 75 @ 30 % (Shi, conventional)") == {"accuracy": 75, "connectivity": 30}
    assert point("99.07 (Deng)") == {"accuracy": 99.07, "connectivity": 100}
    assert point("frozen, not removed (Shi)") is None


def test_every_row_is_in_one_table():
    tables = systems.by_table()
    assert sorted(name for names in tables.values() for name in names) == sorted(ROWS)
    assert tables["Table 2 of the paper: CIFAR-10"] == [x for x in ROWS if "cifar10" in x]


def test_a_row_without_runs_says_so_and_one_with_runs_has_mean_and_deviation():
    runs = [{"time": 10.0, "accuracy": a, "connectivity": 0.26} for a in (0.95, 0.96, 0.97)]
    page = systems.fill("before\n<!-- systems -->\nold\n<!-- end -->\nafter\n", {
        "rbm-26": {"flags": "--preset mnist-rbm", "runs": runs}
    })  # fmt: skip
    assert page.startswith("before\n<!-- systems -->\n")
    assert page.endswith("<!-- end -->\nafter\n")
    assert "old" not in page
    assert "| rbm-26 | 95.00 @ 26 % (Neftci) | 96.00 ± 1.00 | 3 | 26.00 % | 10 s |" in page
    assert "| rbm-dense | 95.60 (Neftci) | not measured |" in page


def test_rows_of_cifar10_have_synapses_and_synops():
    costs = {"synapses_reached": 0.3, "synops": 5e7}
    runs = [{"time": 9.0, "accuracy": 0.9, "connectivity": 0.25, **costs}]
    table = {"admm-cifar10-25": {"flags": "--preset x", "runs": runs}}
    page = systems.fill("<!-- systems -->\n<!-- end -->", table)
    shown = "90.00 | 1 | 25.00 % | 30.00 % | 50.0 M | 9 s | `--preset x` |"
    assert f"| admm-cifar10-25 | 87.37 @ 25 % (Deng) | {shown}" in page
    _, _, part = page.partition("CIFAR-10\n\n")
    rows = part.partition("\n\n")[0].splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert "| synapses % (UPR's definition) | SynOps per image |" in rows[0]


def test_a_word_is_one_row_or_the_beginning_of_several():
    named = systems.named
    assert [x for x in ROWS if named(x, "rbm-26")] == ["rbm-26"]
    assert [x for x in ROWS if named(x, "rbm")] == ["rbm-dense", "rbm-26", "rbm-26-budget"]


def test_runs_of_other_seeds_are_kept_and_those_of_other_flags_are_not():
    run = {"time": 1.0, "accuracy": 0.9, "connectivity": 0.1}
    known = {"flags": "--epochs 3", "runs": [run, run | {"accuracy": 0.8}]}  # seeds 0 and 1
    new = [run | {"seed": 1, "accuracy": 0.85}, run | {"seed": 2, "accuracy": 0.7}]
    row = systems.merged(known, "--epochs 3", new)
    assert [x["accuracy"] for x in row["runs"]] == [0.9, 0.85, 0.7]
    assert systems.merged(known, "--epochs 4", new)["runs"] == new
    assert systems.merged(None, "--epochs 3", new)["runs"] == new


def test_seeds_are_a_count_or_a_list():
    assert [systems.seeds(words) for words in ("3", "1,2", "2,")] == [[0, 1, 2], [1, 2], [2]]


def test_a_row_that_starts_from_the_dense_network_names_the_one_of_its_seed(tmp_path, monkeypatch):
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, stderr="stopped here")

    monkeypatch.setattr(subprocess, "run", run)
    flags = shlex.split(ROWS["admm-cifar10-25"].flags)
    systems.train(tmp_path / "admm-cifar10-25-seed2", flags)
    (command,) = commands
    start = command[command.index("--start") + 1]
    assert start == str(tmp_path / "admm-cifar10-dense-seed2")


def test_the_flags_of_a_row_are_those_of_a_finished_run(tmp_path):
    (tmp_path / "row-seed0").mkdir()  # still training
    done = tmp_path / "row-seed1"
    done.mkdir()
    (done / "model.safetensors").touch()
    (done / "flags.txt").write_text("--preset mnist-rbm")
    assert systems.flags_of(tmp_path, "row") == "--preset mnist-rbm"


def test_a_file_of_other_results_leaves_the_page_as_it_is(tmp_path):
    page, file = (ROOT / "docs" / "systems.md").read_text(), tmp_path / "file.json"
    refused(lambda: systems.summary(tmp_path, file), "file.json: does not exist, and")
    file.write_text('{"accuracy": 0.9}')
    refused(lambda: systems.summary(tmp_path, file), "is not a file of results of systems.py")
    assert (ROOT / "docs" / "systems.md").read_text() == page


def test_a_row_that_does_not_exist_is_refused():
    refused(lambda: systems.jobs(Namespace(rows=["stdp-dnse"])), "did you mean 'stdp-dense'?")
