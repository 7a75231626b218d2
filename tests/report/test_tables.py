"""Means over seeds, the tables and the headlines."""

import json
import os
import statistics

import pytest
from short_runs import repeat

from spikewire.deploy import export_run
from spikewire.report import find, load, markdown, render
from spikewire.report.frontier import pareto_front, plot_frontier, points_in
from spikewire.report.groups import final_accuracy, final_repetitions, repetitions
from spikewire.report.headlines import best, cards, sparsest
from spikewire.report.runs import usable
from spikewire.report.table import COLUMNS, MEANS, format_value
from spikewire.report.training import plot_training
from spikewire.runs.rows import OPERATIONS
from spikewire.text import size


def cells(columns, item):
    return {column.name: format_value(column, column.value(item)) for column in columns}


def test_runs_that_differ_by_their_seed_are_one_row_of_means(runs):
    repeat(runs, "gradr-a", seed=1, accuracy=0.5)
    repeat(runs, "gradr-a", seed=2, accuracy=0.7)
    groups = {group.label: group for group in repetitions(find([runs]))}
    assert {label: len(group.runs) for label, group in groups.items()} == {
        "deepr 30%": 1, "dense": 1, "gradr α = 0.5": 3, "gradr α = 1": 1,
    }  # fmt: skip
    group = groups["gradr α = 0.5"]
    found = [run.last["accuracy"] for run in group.runs]
    row = cells(MEANS, group)
    assert row["accuracy"] == f"{statistics.fmean(found):.2%}"
    assert row["std"] == f"± {100 * statistics.stdev(found):.2f}"
    assert (row["n"], row["method"], row["setting"]) == ("3", "gradr", "α = 0.5")
    assert cells(MEANS, groups["dense"])["std"] == "–"
    assert "seeds 0, 1, 2" in group.describe()
    assert "## Mean over seeds" in markdown.build(find([runs]))


def test_a_seed_that_was_run_twice_counts_once_and_the_latest_finished_run_is_in_the_mean(runs):
    first = repeat(runs, "gradr-a", seed=0, accuracy=0.5, into="gradr-a")
    later = repeat(runs, "gradr-a", seed=0, accuracy=0.6, into="a-later")
    stopped = repeat(runs, "gradr-a", seed=0, accuracy=0.7, into="stopped")
    (stopped / "model.safetensors").unlink()
    for time, folder in enumerate((first, later), start=1000):
        os.utime(folder / "model.safetensors", (time, time))
    found = find([first, later, stopped])
    (group,) = repetitions(found)
    assert [run.name for run in group.runs] == ["a-later"]
    assert [run.name for run in group.repeated] == ["gradr-a", "stopped"]
    row = cells(MEANS, group)
    assert (row["accuracy"], row["std"], row["n"]) == ("60.00%", "–", "1")
    assert "a-later, seed 0, without 2 repeated runs" in group.describe()
    assert cards(found)[0] == ("best accuracy", "60.00%", "a-later")
    assert "over seeds" not in plot_frontier(found).caption
    assert "over seeds" not in plot_training(found).caption
    text = markdown.build(found)
    assert "| finished, repeated |" in text
    assert "| unfinished, repeated |" in text
    assert text.count("| finished |") == 1
    repeat(runs, "gradr-a", seed=1, accuracy=0.8)
    (group,) = repetitions(find([first, later, runs / "gradr-a-seed1"]))
    assert cells(MEANS, group)["n"] == "2"
    assert cells(MEANS, group)["accuracy"] == "70.00%"


def test_the_dense_line_is_the_mean_over_seeds_not_over_repeated_runs(runs):
    repeat(runs, "dense", seed=0, accuracy=0.9, into="dense")
    repeat(runs, "dense", seed=0, accuracy=0.9, into="dense-again")
    repeat(runs, "dense", seed=1, accuracy=0.6)
    svg = render(plot_frontier(find([runs]))).decode()
    assert "dense: accuracy 75.00%" in svg


def test_other_training_settings_are_another_row(runs):
    repeat(runs, "gradr-a", seed=1, accuracy=0.5)
    config = runs / "gradr-a-seed1" / "config.toml"
    config.write_text(config.read_text().replace("lr = ", "lr = 0.5 # "))
    assert all(len(group.runs) == 1 for group in repetitions(find([runs])))


def test_numbers_have_three_digits_so_that_a_column_can_be_compared():
    column = next(column for column in MEANS if column.name == "size, kB")
    found = [format_value(column, value) for value in (2.8, 2.84, 0.95, 10.04, 99.96, 1234.5)]
    assert found == ["2.80", "2.84", "0.950", "10.0", "100", "1,234"]


@pytest.mark.parametrize("name", ["dense", "gradr-b", "deepr"])
def test_the_size_of_a_run_is_that_of_its_packed_file(trained, tmp_path, name):
    path = tmp_path / "net.packed.safetensors"
    written = export_run(trained / name, out=path, check_images=0).size
    run = load(trained / name)
    shown = next(column for column in COLUMNS if column.name == "size, kB").value(run)
    assert 1000 * shown == pytest.approx(written, abs=150)  # its header, 1.4 kB, is estimated
    assert run.in_unit("bytes") == pytest.approx(1000 * shown), "what a target is compared with"
    assert cards([run])[-1][:2] == (f"packed file of {run.label}", size(round(1000 * shown)))


def test_a_run_that_was_not_measured_has_no_size(runs):
    metrics = runs / "deepr" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(row | {"measured": {}}) + "\n" for row in rows))
    assert cells(COLUMNS, load(runs / "deepr"))["size, kB"] == "–"


def test_a_phone_sees_accuracy_and_connectivity_first(trained):
    assert [column.name for column in COLUMNS[:3]] == ["run", "accuracy", "connectivity"]
    run = find([trained / "deepr"])[0]
    row = cells(COLUMNS, run)
    assert (row["run"], row["seed"], row["setting"]) == ("deepr", "0", "30%")


def test_headlines_choose_by_the_mean_over_seeds(runs):
    for name in ("dense", "deepr", "gradr-b"):
        repeat(runs, name, seed=0, accuracy=0.80, into=name)
    repeat(runs, "gradr-a", seed=0, accuracy=0.99, into="gradr-a")  # the best single run
    repeat(runs, "gradr-a", seed=1, accuracy=0.41)
    groups = repetitions(usable(find([runs])))
    assert best(groups).mean(final_accuracy) == 0.80
    assert best(groups).label != "gradr α = 0.5"
    what, figure, detail = cards(find([runs]))[0]
    assert (what, figure) == ("best accuracy", "80.00%")
    repeat(runs, "deepr", seed=1, accuracy=0.90)
    assert cards(find([runs]))[0][1:] == ("85.00% ± 7.07", "deepr 30%, mean of 2 seeds")


def test_of_equal_connectivity_the_headline_is_the_most_accurate(runs):
    repeat(runs, "deepr", seed=0, accuracy=0.80, into="deepr")
    other = repeat(runs, "deepr", seed=0, accuracy=0.81)
    config = other / "config.toml"
    config.write_text(config.read_text().replace("lr = ", "lr = 0.5 # "))
    groups = repetitions(find([runs / "deepr", other]))
    assert len(groups) == 2
    assert sparsest(groups).first.name == other.name
    heads = cards(find([runs / "deepr", other]))
    assert heads[1][1:] == ("30.00%", f"{other.name}, accuracy 81.00%")
    assert [what for what, _, _ in heads[2:]] == [
        "operations per image of deepr 30%, lr 0.5",
        "packed file of deepr 30%, lr 0.5",
    ]


def stop_after(folder, *rows):
    """Make an unfinished run of a finished one: its metrics are these rows."""
    (folder / "model.safetensors").unlink()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_row_of_an_unfinished_run_is_of_one_epoch(runs):
    first, second, third = load(runs / "gradr-a").history
    del second["measured"]
    stop_after(runs / "gradr-a", first, second)
    run = load(runs / "gradr-a")
    row = cells(COLUMNS, run)
    assert row["connectivity"] == f"{second['connectivity']:.2%}"
    costs = [row[name] for name in ("synapses", "reached", "SynOps", "energy, nJ", "size, kB")]
    assert costs == ["–"] * 5, "those of epoch 1 are of another connectivity"
    assert [run.in_unit(unit) for unit in ("synapses", "synops", "bytes")] == [None] * 3
    del third["accuracy"]
    stop_after(repeat(runs, "gradr-b", seed=1, accuracy=0.5), first, third)
    row = cells(COLUMNS, load(runs / "gradr-b-seed1"))
    assert row["accuracy"] == f"{first['accuracy']:.2%}"
    assert row["connectivity"] == f"{first['connectivity']:.2%}"
    assert row["SynOps"] == f"{first['measured']['synops']:,.0f}"


def test_headlines_are_of_finished_runs_if_there_are_any(runs):
    for name in ("dense", "deepr", "gradr-b"):
        repeat(runs, name, seed=0, accuracy=0.80, into=name)
    first = load(runs / "gradr-a").history[0] | {"accuracy": 0.99, "connectivity": 0.01}
    stop_after(runs / "gradr-a", first)
    heads = cards(find([runs]))
    assert heads[0][1] == "80.00%"
    assert not any("gradr-a" in detail or "1.00%" in figure for _, figure, detail in heads)
    assert cards(find([runs / "gradr-a"]))[0][1:] == ("99.00%", "gradr-a, unfinished")


def test_a_mean_does_not_mix_finished_and_unfinished_seeds(runs):
    repeat(runs, "deepr", seed=0, accuracy=0.80, into="deepr")
    first = load(runs / "deepr").history[0] | {"accuracy": 0.20}
    stop_after(repeat(runs, "deepr", seed=1, accuracy=0.5), first)
    found = find([runs / "deepr", runs / "deepr-seed1"])
    (group,) = final_repetitions(found)
    assert (cells(MEANS, group)["accuracy"], cells(MEANS, group)["n"]) == ("80.00%", "1")
    (point,) = points_in(found, "connectivity")
    assert point.y == pytest.approx(80)


def test_the_headline_of_operations_compares_with_the_dense_run_if_there_is_one(runs):
    used = load(runs / "dense").measured
    *_, operations, packed = cards(find([runs / "deepr"]))
    assert operations[2] == f"{used['dense']:,.0f} with all weights and all inputs active"
    assert packed[2] == "75.8 kB of unpacked parameters, with all weights"
    repeat(runs, "deepr", seed=0, accuracy=0.90, into="deepr")
    repeat(runs, "dense", seed=0, accuracy=0.90, into="dense")
    *_, operations, _ = cards(find([runs / "dense", runs / "deepr"]))
    assert operations[0] == "operations per image of deepr 30%"
    assert operations[2] == f"{used['synops'] + used['macs']:,.0f} in the dense network"


def test_operations_that_could_not_be_counted_are_not_shown_as_zero(runs):
    """Layers of a Boltzmann machine are never called: even its dense network counts 0."""
    for name in ("dense", "deepr"):
        metrics = runs / name / "metrics.jsonl"
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        for row in rows:
            if "measured" in row:
                row["measured"] |= dict.fromkeys(OPERATIONS, 0.0)
        metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = load(runs / "deepr")
    shown = cells(COLUMNS, run)
    assert [shown[name] for name in ("SynOps", "MACs", "energy, nJ")] == ["–"] * 3
    assert shown["size, kB"] != "–"
    assert run.in_unit("synops") is None
    assert [card[0] for card in cards(find([runs / "dense", runs / "deepr"]))][2:] == [
        "packed file of dense"
    ]


def test_the_pareto_front_has_what_no_other_point_beats():
    assert pareto_front([(1, 90), (2, 80), (3, 95), (3, 91), (4, 95)]) == [(1, 90), (3, 95)]
    assert pareto_front([(2, 50)]) == [(2, 50)]
    grid = [(x, 100 - (x - 3) ** 2) for x in range(6)]
    slow = [p for p in grid if not any(q[0] <= p[0] and q[1] >= p[1] and q != p for q in grid)]
    assert pareto_front(grid) == slow == [(0, 91), (1, 96), (2, 99), (3, 100)]
