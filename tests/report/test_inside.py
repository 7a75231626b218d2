"""The figures of the inside of a run: rewiring, channels, activity, confusion."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from short_runs import repeat

from spikewire.report import LIGHT, find, load, render
from spikewire.report.activity import plot_activity
from spikewire.report.channels import plot_channels
from spikewire.report.choice import MAX_SHOWN, shown_run, shown_runs
from spikewire.report.confusion import plot_confusion
from spikewire.report.figures import inside_plots
from spikewire.report.rewiring import plot_rewiring
from spikewire.runs.rundir import RunDir
from spikewire.runs.snapshots import even_indices

torch.set_num_threads(1)


def drawn(plot):
    figure = Figure(figsize=plot.size)
    plot.draw(figure, LIGHT)
    return figure


def test_rewiring_shows_synapses_per_pixel_at_each_epoch(trained):
    run = load(trained / "gradr-a")
    plot = plot_rewiring([run])
    axes = drawn(plot).axes[0]
    maps = [np.asarray(image.get_array().filled(0)) for image in axes.images]
    _, masks = RunDir(run.path).load_model()
    per_pixel = masks["fc1.weight"].sum(0).reshape(8, 8).numpy()
    assert any(np.array_equal(values, per_pixel) for values in maps)
    assert [label.get_text() for label in axes.get_yticklabels()][0] == "synapses"
    rows = [row for row in plot.data if row["picture"] == "synapses per pixel"]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[-1]["values"] == per_pixel.ravel().tolist()


def test_a_narrow_picture_of_rewiring_is_as_high_as_its_squares(trained):
    plot = plot_rewiring([load(trained / "gradr-a")])
    figure = Figure(figsize=(3.3, 3.3))
    plot.draw(figure, LIGHT)
    cells = {"columns": 4, "rows": 5}  # three epochs, but no wider than a fourth; a map and ROWS
    assert figure.get_figheight() == pytest.approx(0.4 + 2.5 / cells["columns"] * cells["rows"])


def test_activity_is_dense_against_sparse(trained):
    runs = find([trained])
    plot = plot_activity(runs)
    figure = drawn(plot)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    run = shown_run(runs)
    assert titles == ["dense", run.label]
    rows = [row for row in plot.data if row["run"] == run.name and row["layer"] == "lif1"]
    assert [row["neuron"] for row in rows] == even_indices(256, 48).tolist()
    total = sum(len(row["time_steps_of_spikes"]) for row in rows)
    assert total == run.snapshots.spikes[0].sum()
    alone = drawn(plot_activity([run]))
    assert len(alone.axes) < len(figure.axes)


def test_the_confusion_matrix_names_the_most_frequent_error(trained):
    run = load(trained / "gradr-b")
    plot = plot_confusion([run])
    matrix = run.snapshots.confusion
    assert sum(row["images"] for row in plot.data) == matrix.sum()
    wrong = matrix - np.diag(np.diag(matrix))
    label, predicted = divmod(int(wrong.argmax()), 10)
    assert f"of class {label} as {predicted}." in plot.caption
    texts = [text.get_text() for text in drawn(plot).axes[0].texts]
    assert len(texts) == np.count_nonzero(matrix)


def test_kernels_are_counted_per_pair_of_channels(runs):
    run = RunDir(runs / "gradr-a")
    mask = torch.rand(150, 70, 3, 3, generator=torch.Generator().manual_seed(0)) < 0.1
    mask[7] = False
    run.save_model({"conv1.weight": mask.float()}, {"conv1.weight": mask})
    plot = plot_channels([load(run.path)])
    (row,) = plot.data
    assert row["connectivity"] == pytest.approx(mask.double().mean())
    assert row["empty_kernels"] == pytest.approx((~mask.flatten(2).any(2)).double().mean())
    assert (row["empty_outputs"], row["unread_inputs"]) == (1, 0)
    image = drawn(plot).axes[0].images[0]
    shown = image.get_array().filled(0)
    assert shown.shape == (64, 64)
    blocks = np.linspace(0, 150, 65).astype(int), np.linspace(0, 70, 65).astype(int)
    first = mask[: blocks[0][1], : blocks[1][1]].double().mean()
    assert shown[0, 0] == pytest.approx(first)
    assert b"conv1" in render(plot)


def test_a_network_without_convolutions_has_no_figure_of_channels(trained):
    assert plot_channels(find([trained])) is None


def test_a_run_shows_only_itself_and_a_dense_one_next_to_it(trained, runs):
    found = find([trained])
    by_name = {run.name: run for run in found}
    keys = [plot.key for plot in inside_plots(by_name["gradr-a"], found)]
    assert keys == ["rewiring", "activity", "confusion", "theta", "turnover"]
    assert [plot.key for plot in inside_plots(by_name["dense"], found)] == [
        "rewiring", "activity", "confusion",
    ]  # fmt: skip
    (runs / "gradr-a" / "snapshots.npz").unlink()  # a run of an earlier version
    older = find([runs])
    keys = [plot.key for plot in inside_plots(older[2], older)]
    assert (older[2].name, keys) == ("gradr-a", ["theta", "turnover"])


def test_the_runs_to_choose_are_the_first_of_each_setting(runs):
    repeat(runs, "gradr-a", seed=1, accuracy=0.5)
    found = find([runs])
    names = [run.name for run in shown_runs(found)]
    assert names[0].startswith("gradr")
    assert len(names) == 4  # of five runs, two differ by their seed only
    many = [replace(run, path=Path(f"{i}")) for i in range(30) for run in found[:1]]
    for i, run in enumerate(many):
        run.recipe = (str(i),)
    assert len(shown_runs(many)) == MAX_SHOWN
