"""Figures from the JSON files of results, and the pictures of the docs that they draw."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from refusal import refused

from spikewire.report import plot_results, render
from spikewire.report.published import PUBLISHED, published_in
from spikewire.report.results import read_results
from spikewire.report.style import LIGHT

ROOT = Path(__file__).parents[2]
CONFIG = ['method = "budget"', "[budget]"]


def write(folder, name, **content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def results(tmp_path):
    """Two seeds at one target, one run in another unit, and files that are not results."""
    folder = tmp_path / "cifar10"
    measured = {"synapse_connectivity": 0.06, "synops": 61e6}
    weights = {"config": [*CONFIG, "connectivity = 0.0075"], "measured": measured}
    write(folder, "budget-0.0075", accuracy=0.92, connectivity=0.0075, **weights)
    write(folder, "budget-0.0075-seed1", accuracy=0.91, connectivity=0.0075)
    measured = {"synapses_reached": 0.0116, "synapses_alive": 0.011, "synops": 14e6}
    synapses = {"config": [*CONFIG, "synapses = 0.0116"], "measured": measured}
    write(folder, "budget-synapses-0.0116", accuracy=0.9, connectivity=0.02, **synapses)
    write(folder, "first-budget-0.0075", accuracy=0.1, connectivity=0.0075)
    write(folder, "recipes", what="something else")
    (tmp_path / "step.json").write_text("{}")
    return tmp_path


def test_runs_that_differ_by_their_seed_are_one_point(results):
    first, second = read_results(results)
    assert (first.line, first.n) == ("budget", 2)
    assert first.accuracy == pytest.approx(91.5)
    assert first.deviation == pytest.approx(0.7071, abs=1e-4)  # of 91 and 92, n - 1
    assert (first.connectivity, first.synapses, first.synops) == (0.75, 6.0, 61e6)
    assert (second.line, second.n) == ("budget, target in synapses", 1)
    assert (second.deviation, second.synapses, second.synops) == (None, 1.16, 14e6)


def test_synapses_alive_are_a_lower_bound_of_those_reached(results):
    assert [result.at_least for result in read_results(results)] == [True, False]
    (plot,) = plot_results(results)
    assert [row["at_least"] for row in plot.data] == [True, False]


def test_the_points_of_a_frontier_in_its_two_forms(tmp_path):
    point = {"dataset": "mnist", "method": "rigl", "accuracy": 0.98, "deviation": None, "n": 1}
    failed = {**point, "accuracy": None, "actual": 0.5}
    command = "spikewire frontier --preset mnist-fast --seeds 1"
    write(tmp_path / "mnist", "a", command=command, points=[{**point, "reached": 0.05}, failed])
    other = {"command": command.replace("fast", "budget"), "points": [{**point, "actual": 0.02}]}
    write(tmp_path / "mnist", "b", **other)
    found = read_results(tmp_path)
    assert [x.connectivity for x in found] == [5.0, 2.0]
    assert [x.line for x in found] == ["rigl, mnist-fast", "rigl, mnist-budget"]


def test_damaged_and_missing_results_are_refused(results, tmp_path, call):
    refused(lambda: read_results(tmp_path / "nowhere"), "contains no results")
    (results / "cifar10" / "budget-0.0075.json").write_text('{"accuracy": "x"}')
    refused(lambda: read_results(results), "budget-0.0075")
    for words in (["--results", results], ["--results", results, "--paper"], ["--kinds", "gif"]):
        code, out, err = call("figures", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_published_points_are_in_the_unit_of_their_axis():
    assert published_in("connectivity", "cifar10").keys() == {
        "Grad R", "Deep R (Chen et al.'s code)", "ADMM (7 conv, 2 FC)", "STDS",
    }  # fmt: skip
    assert published_in("synapses", "cifar10")["UPR"] == [(1.16, 92.05), (0.63, 90.65)]
    assert published_in("synops", "mnist") == {}


# ---------------------------------------------------------------------- the pictures of the docs


def marks(path):
    """Return the texts that a reader sees on hover."""
    return [unescape(x) for x in re.findall("<title>(.*?)</title>", path.read_text(), re.DOTALL)]


@pytest.mark.parametrize("theme", ["", "-dark"])
@pytest.mark.parametrize("dataset", ["cifar10", "mnist"])
def test_the_pictures_of_the_docs_show_the_results_as_they_are_now(dataset, theme):
    """If this fails, run `make figures`."""
    found = marks(ROOT / "docs" / "figures" / f"results-{dataset}{theme}.svg")
    ours = sorted(text for text in found if ", n = " in text)
    expected = [
        f"{x.line}, n = {x.n}\naccuracy {x.accuracy:.2f}"
        + ("" if x.deviation is None else f" ± {x.deviation:.2f}")
        + f" %, {unit} {value:.3g} %"
        for x in read_results(ROOT / "results")
        for unit, value in (("weights", x.connectivity), ("synapses", x.synapses))
        if x.dataset == dataset and x.method != "dense" and value and "current" not in x.line
    ]
    assert ours == sorted(expected)


@pytest.mark.parametrize("theme", ["", "-dark"])
def test_the_picture_of_mnist_names_every_published_result_and_whose_recipe_is_ours(theme):
    picture = (ROOT / "docs" / "figures" / f"results-mnist{theme}.svg").read_text("utf-8")
    labels = [unescape(x) for x in re.findall("<text[^>]*>([^<]*)</text>", picture)]
    below = "STDP (Shi et al.)"
    assert set(PUBLISHED["mnist"]) - {below} <= set(labels)
    assert f"{below}: 75 at 30 %" in labels  # below the axes
    assert "gradr: Grad R's rule (ours)" in labels


def test_published_series_have_a_marker_each_in_the_picture(results):
    write(results / "mnist", "budget", accuracy=0.9, connectivity=0.05, config=CONFIG)
    for plot in plot_results(results):
        plot.draw(canvas := Figure(), LIGHT)
        for axes in canvas.axes:
            published = [
                x for x in axes.lines if x.get_color() == LIGHT.soft and x.get_label()[0] != "_"
            ]
            markers = [line.get_marker() for line in published if line.get_marker() != "None"]
            assert len(set(markers)) == len(markers) > 1


def test_lines_of_one_method_differ_in_their_marker_and_the_best_one_is_filled():
    canvas = Figure()
    next(x for x in plot_results(ROOT / "results") if "cifar10" in x.key).draw(canvas, LIGHT)
    for axes in canvas.axes:
        lines = [x for x in axes.lines if "budget" in x.get_label()]
        looks = [(x.get_marker(), x.get_markerfacecolor()) for x in lines]
        assert len({*looks}) == len(lines) == 4
        best, *others = sorted(lines, key=lambda x: max(x.get_ydata()), reverse=True)
        assert best.get_markerfacecolor() == best.get_color()
        assert {x.get_markerfacecolor() for x in others} == {"none"}
        assert best.get_linestyle() not in {x.get_linestyle() for x in others}


def test_drawing_twice_gives_the_same_bytes():
    first, second = (plot_results(ROOT / "results")[0] for _ in range(2))
    assert render(first) == render(second)


def test_the_readme_shows_a_picture_in_its_first_screen():
    text = (ROOT / "README.md").read_text("utf-8")
    shown = re.findall(r'(?:src|srcset)="([^"]+)"', text[:1500])
    assert len(shown) == 2
    for name in shown:
        assert (ROOT / name).is_file()
        assert (ROOT / name).stat().st_size < 100_000
