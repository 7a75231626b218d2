"""Means over seeds, the tables and the headlines."""

import statistics

from short_runs import repeat

from spikewire.report import find, load, markdown
from spikewire.report.frontier import pareto_front
from spikewire.report.groups import final_accuracy, repetitions
from spikewire.report.headlines import best, cards, sparsest
from spikewire.report.runs import usable
from spikewire.report.table import COLUMNS, MEANS, format_value


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


def test_other_training_settings_are_another_row(runs):
    repeat(runs, "gradr-a", seed=1, accuracy=0.5)
    config = runs / "gradr-a-seed1" / "config.toml"
    config.write_text(config.read_text().replace("lr = ", "lr = 0.5 # "))
    assert all(len(group.runs) == 1 for group in repetitions(find([runs])))


def test_numbers_have_three_digits_so_that_a_column_can_be_compared():
    column = next(column for column in MEANS if column.name == "size, kB")
    found = [format_value(column, value) for value in (2.8, 2.84, 0.95, 10.04, 99.96, 1234.5)]
    assert found == ["2.80", "2.84", "0.950", "10.0", "100", "1,234"]


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
        "operations per image of deepr 30%",
        "packed size of deepr 30%",
    ]


def test_the_headline_of_operations_compares_with_the_dense_run_if_there_is_one(runs):
    used = load(runs / "dense").measured
    *_, operations, size = cards(find([runs / "deepr"]))
    assert operations[2] == f"{used['dense']:,.0f} with all weights and all inputs active"
    assert size[2] == "75.8 kB unpacked, with all weights; both without the header of a file"
    repeat(runs, "deepr", seed=0, accuracy=0.90, into="deepr")
    repeat(runs, "dense", seed=0, accuracy=0.90, into="dense")
    *_, operations, size = cards(find([runs / "dense", runs / "deepr"]))
    assert operations[0] == "operations per image of deepr 30%"
    assert operations[2] == f"{used['synops'] + used['macs']:,.0f} in the dense network"


def test_the_pareto_front_has_what_no_other_point_beats():
    assert pareto_front([(1, 90), (2, 80), (3, 95), (3, 91), (4, 95)]) == [(1, 90), (3, 95)]
    assert pareto_front([(2, 50)]) == [(2, 50)]
    grid = [(x, 100 - (x - 3) ** 2) for x in range(6)]
    slow = [p for p in grid if not any(q[0] <= p[0] and q[1] >= p[1] and q != p for q in grid)]
    assert pareto_front(grid) == slow == [(0, 91), (1, 96), (2, 99), (3, 100)]
