"""The figures: themes, captions, panels, axes."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from short_runs import HOSTILE, rename_hostile, repeat

from spikewire.errors import SpikewireError
from spikewire.report import DARK, FIGURES, LIGHT, find, plot_all, plot_paper, render
from spikewire.report.channels import plot_channels
from spikewire.report.headlines import cards
from spikewire.report.internals import plot_parameters
from spikewire.report.marks import number_runs
from spikewire.report.paper import PAPER
from spikewire.report.plot import inline_svg
from spikewire.report.published import PUBLISHED, marker_of
from spikewire.report.style import style_of
from spikewire.runs.rundir import RunDir

torch.set_num_threads(1)
MLP_FIGURES = [figure for figure in FIGURES if figure is not plot_channels]


def drawn_axes(plot):
    canvas = Figure()
    plot.draw(canvas, LIGHT)
    return canvas.axes


def figure_named(name):
    return next(figure for figure in FIGURES if figure.__name__ == f"plot_{name}")


@pytest.mark.parametrize("figure", MLP_FIGURES, ids=lambda figure: figure.__name__)
def test_each_figure_is_drawn_in_both_themes(trained, figure):
    plot = figure(find([trained]))
    svg = render(plot)
    root = ElementTree.fromstring(svg)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) > 4  # text is text, not outlines
    assert LIGHT.paper in svg.decode()
    assert DARK.paper in render(plot, DARK).decode()
    assert svg == render(plot)
    assert render(plot, DARK, "png", 40).startswith(b"\x89PNG")
    assert plot.data
    assert plot.caption.endswith(".")
    json.dumps(plot.data, allow_nan=False)


def test_inline_figures_use_the_colours_of_the_page_and_unique_ids(trained):
    found = find([trained])
    parts = [inline_svg(plot, number_runs(found)) for plot in plot_all(found)]
    names = [name for part in parts for name in re.findall(r'\bid="([^"]+)"', part)]
    assert len(names) == len(set(names))
    for part in parts:
        assert "var(--ink)" in part
        used = set(re.findall(r"url\(#([^)]+)\)", part)) | set(re.findall(r'href="#([^"]+)"', part))
        assert used <= set(names)
        assert "#010203" not in part
        assert {
            int(n)
            for text in re.findall('data-runs="([^"]*)"', part)
            for n in text.replace("|", " ").split()
        }


def test_every_mark_says_run_seed_and_values_and_a_file_names_no_folder(runs):
    repeat(runs, "gradr-a", seed=1, accuracy=0.5)
    rename_hostile(runs, "gradr-a", "gradr-a-seed1")
    found = find([runs / name for name in (*HOSTILE[:2], "dense")])
    for plot in plot_all(found):
        svg = render(plot).decode()
        root = ElementTree.fromstring(svg)
        titles = [node.text for node in root.iter("{http://www.w3.org/2000/svg}title")]
        assert any(re.search(r"seeds? \d", text) for text in titles), plot.key
        assert str(runs) not in svg
        assert "data-runs" not in svg
    frontier = render(figure_named("frontier")(found)).decode()
    assert "mean of 2 runs, seeds 0, 1\naccuracy" in frontier


def test_the_figures_of_the_paper(trained):
    plots = plot_paper(find([trained]))
    assert [plot.key for plot in plots] == list(PAPER)
    figures = [key for key in PAPER if key.startswith("figure")]
    assert {key.split("-")[1].rstrip("ab") for key in figures} == set("1234567")
    for plot in plots:
        ElementTree.fromstring(render(plot))
    with pytest.raises(SpikewireError, match="figure-3-parameters: .* needs a finished dense run"):
        plot_paper(find([trained / "gradr-a"]))


def test_drawing_leaves_matplotlib_unchanged(trained):
    import matplotlib

    before = dict(matplotlib.rcParams)
    render(plot_all(find([trained]))[0])
    assert dict(matplotlib.rcParams) == before


def test_published_points_are_drawn_for_mnist(runs):
    for config in runs.glob("*/config.toml"):
        config.write_text(
            config.read_text().replace('"digits"', '"mnist"').replace("digits-mlp", "mnist-mlp")
        )
    svg = render(FIGURES[0](find([runs]))).decode()
    assert "CH-SNN, published" in svg
    assert "Grad R's rule in the recipe of this run" in FIGURES[0](find([runs])).caption
    assert "dense" in svg


def test_captions_mention_only_what_is_shown(trained):
    alone, all_ = find([trained / "gradr-a"]), find([trained])
    assert "horizontal line" not in figure_named("frontier")(alone).caption
    assert "horizontal line" in figure_named("frontier")(all_).caption
    assert "published" not in figure_named("frontier")(all_).caption
    assert "A larger penalty" not in figure_named("training")(alone).caption
    assert "A larger penalty" in figure_named("training")(all_).caption
    assert figure_named("firing")(alone).title == "Firing rates"


def test_firing_rates_have_one_panel_per_setting_and_say_how_many_are_left_out(runs):
    settings = len(list(runs.glob("*/config.toml")))
    for name in sorted(path.parent.name for path in runs.glob("*/config.toml")):
        repeat(runs, name, seed=1, accuracy=0.5)
        repeat(runs, name, seed=2, accuracy=0.5)
    plot = figure_named("firing")(find([runs]))
    assert len(drawn_axes(plot)) == settings
    assert "settings are shown" not in plot.caption
    for lr in (1, 2, 3):
        repeat(runs, "dense", seed=0, accuracy=0.5, into=f"dense-{lr}")
        config = runs / f"dense-{lr}" / "config.toml"
        config.write_text(config.read_text().replace("lr = ", f"lr = 0.{lr} # "))
    plot = figure_named("firing")(find([runs]))
    assert len(drawn_axes(plot)) == 6
    assert f"6 of {settings + 3} settings are shown." in plot.caption


def test_a_run_of_one_epoch_is_a_marker_at_a_whole_number(runs):
    file = runs / "gradr-a" / "metrics.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    top, bottom = drawn_axes(figure_named("training")(find([runs / "gradr-a"])))
    assert [(line.get_marker(), line.get_markevery()) for line in top.lines] == [("o", 1)]
    assert bottom.get_xlim() == (0, 2)


def test_a_run_of_low_accuracy_is_inside_the_axes(runs):
    file = runs / "gradr-b" / "metrics.jsonl"
    rows = [json.loads(line) | {"accuracy": 0.2} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = find([runs])
    assert max(run.last["accuracy"] for run in found) > 0.5
    assert drawn_axes(figure_named("training")(found))[0].get_ylim()[0] < 20


def test_networks_and_data_sets_are_not_mixed(runs):
    other = runs / "gradr-a" / "config.toml"
    other.write_text(
        other.read_text().replace('"digits"', '"mnist"').replace("digits-mlp", "mnist-mlp")
    )
    found = find([runs])
    assert [axes.get_ylabel() for axes in drawn_axes(figure_named("layers")(found))] == [
        "digits-mlp",
        "mnist-mlp",
    ]
    for name in ("frontier", "energy"):
        labels = [axes.get_ylabel() for axes in drawn_axes(figure_named(name)(found))]
        assert labels == [f"test accuracy on {word}, %" for word in ("digits", "MNIST")]
    heads = [what for what, _, _ in cards(found)]
    assert heads[::2] == ["digits: best accuracy", "MNIST: best accuracy"]


def test_bars_of_similar_length_start_at_0(trained):
    (axes,) = drawn_axes(figure_named("layers")(find([trained / "dense"])))
    assert (axes.get_xscale(), axes.get_xlim()[0]) == ("linear", 0)


@pytest.mark.parametrize("name", ["frontier", "energy"])
def test_a_difference_of_one_image_does_not_fill_the_axis_of_accuracies(runs, name):
    for i, run in enumerate(("gradr-a", "gradr-b")):
        repeat(runs, run, seed=1, accuracy=0.97 + 0.003 * i)
    (axes,) = drawn_axes(figure_named(name)(find([runs / f"gradr-{x}-seed1" for x in "ab"])))
    low, high = axes.get_ylim()
    assert low == pytest.approx(94)
    assert high > 97.3


def joined(axes):
    """Return how many points each line of a method joins."""
    lines = (line for line in axes.lines if line.get_markevery() == [])
    return [len(line.get_xydata()) for line in lines if line.get_color() != LIGHT.soft]


def test_a_line_joins_only_runs_with_equal_training_settings(runs):
    def lines():
        (axes,) = drawn_axes(figure_named("frontier")(find([runs / "gradr-a", runs / "gradr-b"])))
        return joined(axes)

    assert lines() == [2]
    config = runs / "gradr-b" / "config.toml"
    config.write_text(config.read_text().replace("epochs = 3", "epochs = 300"))
    assert lines() == [1, 1]


def test_a_single_run_has_no_error_bar(runs):
    def bars():
        """Return the height of each error bar that is drawn, from the frontier of all runs."""
        (axes,) = drawn_axes(figure_named("frontier")(find([runs])))
        found = [bars for container in axes.containers for bars in container.lines[2]]
        paths = [path.vertices for lines in found for path in lines.get_paths()]
        return [float(np.ptp(v[:, 1])) for v in paths if len(v) and np.isfinite(v).all()]

    assert bars() == []  # one run per setting
    accuracy = find([runs / "gradr-a"])[0].last["accuracy"]
    repeat(runs, "gradr-a", seed=1, accuracy=accuracy - 0.02)
    assert bars() == [pytest.approx(2 * 2 / math.sqrt(2))]  # of gradr-a only: plus and minus


def test_training_curves_show_the_mean_over_seeds_and_its_spread(runs):
    repeat(runs, "gradr-a", seed=1, accuracy=0.5)
    found = find([runs / "gradr-a", runs / "gradr-a-seed1"])
    top, _ = drawn_axes(figure_named("training")(found))
    (line,) = top.lines
    last = [100 * run.last["accuracy"] for run in found]
    assert line.get_ydata()[-1] == pytest.approx(np.mean(last))
    (band,) = top.collections
    ends = [y for x, y in band.get_paths()[0].vertices if x == 3]
    assert max(ends) - min(ends) == pytest.approx(2 * np.std(last, ddof=1))
    assert "bands one standard deviation" in figure_named("training")(found).caption


def test_a_method_has_the_same_look_in_every_figure(trained):
    found = find([trained])
    for name in ("frontier", "training", "energy"):
        for axes in drawn_axes(figure_named(name)(found)):
            handles, labels = axes.get_legend_handles_labels()
            for handle, label in zip(handles, labels, strict=True):
                method = label.split()[0]
                if method in ("gradr", "deepr"):
                    style = style_of(method)
                    assert (handle.get_color(), handle.get_marker()) == (style.colour, style.marker)


def test_the_pareto_front_is_drawn_and_explained(trained):
    plot = figure_named("frontier")(find([trained]))
    (axes,) = drawn_axes(plot)
    assert "Pareto front" in axes.get_legend_handles_labels()[1]
    assert "Pareto front" in plot.caption
    assert "Pareto" not in figure_named("frontier")(find([trained / "dense"])).caption


def test_published_points_have_a_marker_each():
    for dataset, found in PUBLISHED.items():
        assert len({marker_of(dataset, name) for name in found}) == len(found)
    assert marker_of("cifar10", "STDS (at most)") == marker_of("cifar10", "STDS")
    assert marker_of("cifar10", "UPR") not in {
        marker_of("cifar10", x) for x in PUBLISHED["cifar10"]
    }


def test_published_points_name_whose_code_made_them():
    mnist, cifar10 = PUBLISHED["mnist"], PUBLISHED["cifar10"]
    assert mnist["Deep R (LSNN, sequential)"] == [(12.0, 96.4)]
    assert mnist["STDP (Shi et al.)"] == [(30.0, 75.0)]
    assert all("Deep R (Chen et al.'s code)" in points for points in (mnist, cifar10))
    assert all("Deep R" not in points for points in (mnist, cifar10))


def test_parameters_that_do_not_fill_the_last_row_leave_no_empty_axes(runs):
    run = RunDir(runs / "dense")
    weights, masks = run.load_model()
    run.save_model({**weights, "fc3.weight": torch.rand(9), "fc4.weight": torch.rand(9)}, masks)
    figure = Figure()
    plot = plot_parameters(find([run.path]))
    assert plot is not None
    plot.draw(figure, LIGHT)
    assert [axes.axison for axes in figure.axes] == [True] * 4 + [False] * 2
