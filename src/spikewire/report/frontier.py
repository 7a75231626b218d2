"""The figure of accuracy against connectivity or another unit, with published results."""

from collections.abc import Sequence
from math import isnan, nan
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.errors import check_word
from spikewire.report.groups import final_metrics, group_by, palette_index, setting
from spikewire.report.published import DENSE, PUBLISHED
from spikewire.report.runs import Run, usable
from spikewire.report.style import (
    MARKERS,
    Plot,
    Theme,
    colour,
    limit_accuracy,
    set_legend_above,
    set_log_scale,
)

Point = tuple[float, float, float]  # connectivity in %, accuracy in %, its deviation or nan
AXES = {  # labels; those that end in % are fractions
    "connectivity": "connectivity of weights, %",
    "synapses": "synapses present, %",
    "synops": "synaptic operations per image",
    "bytes": "packed weights, bytes",
}
MAX_JOINED = 12  # points that a line may join; more are a cloud


def plot_frontier(runs: Sequence[Run], unit: str = "connectivity") -> Plot | None:
    """Plot accuracy against connectivity, the dense network and published points (figure 5).

    Args:
        runs: Any runs; those that cannot be drawn are left out.
        unit: What is on the x-axis: ``"connectivity"``, ``"synapses"``, ``"synops"`` or
            ``"bytes"``; published points are in connectivity only.

    Returns:
        One panel per data set, or None if no run can be drawn.

    Example:
        >>> save_figures([plot_frontier(find(["runs"]))], "figures")
    """
    check_word("unit", unit, AXES)
    good = [run for run in usable(runs) if _in_unit(run, unit) is not None]
    panels = group_by(good, setting("dataset"))
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (dataset, members) in zip(all_axes, panels.items(), strict=True):
            _draw_panel(axes, dataset, members, theme, unit)
        all_axes[-1].set_xlabel(AXES[unit])

    size = (5.4, sum(4.6 if dataset in PUBLISHED else 3.6 for dataset in panels))
    data = [{**final_metrics(run), unit: _in_unit(run, unit)} for run in good]
    key = "frontier" if unit == "connectivity" else f"frontier-{unit}"
    return Plot(key, f"Accuracy against {unit}", _caption(panels, unit), draw, data, size)


def _in_unit(run: Run, unit: str) -> float | None:
    """Return what a run has of a unit after its last epoch; None where it was not measured."""
    if unit == "connectivity":
        return run.last["connectivity"]
    return run.measured.get("bytes_packed" if unit == "bytes" else unit)


def _caption(panels: dict[str, list[Run]], unit: str) -> str:
    """Return a caption that mentions only what these panels show."""
    runs = [run for members in panels.values() for run in members]
    repeated = len({run.recipe for run in runs}) < len(runs)
    over_seeds = ", mean and standard deviation over seeds" * repeated
    parts = [f"Each marker is the last epoch{over_seeds}; up and to the left is better."]
    if any(dataset in DENSE for dataset in panels) or "dense" in map(setting("method"), runs):
        parts.append("The dashed line is the dense network: a run on it has lost no accuracy.")
    if unit == "connectivity" and PUBLISHED.keys() & panels.keys():
        parts.append("Hollow grey markers are published results.")
        if "gradr" in map(setting("method"), runs):
            parts.append("gradr is Grad R's rule in the recipe of this run, not the authors' run.")
    if "cifar10" in panels:
        parts.append(
            "On CIFAR-10, accuracy varies by about 0.2 points between epochs: smaller differences "
            "are not significant."
        )
    return " ".join(parts)


def _draw_panel(axes: Axes, dataset: str, runs: list[Run], theme: Theme, unit: str) -> None:
    if unit == "connectivity":
        _draw_published(axes, dataset, theme)
    lines = _lines(runs, unit)
    for (method, *_), points in lines.items():
        _draw_line(axes, method, sorted(points))
    _draw_dense(axes, dataset, runs, theme)
    axes.set(ylabel=f"test accuracy on {dataset}, %")
    low = min((y for points in lines.values() for _, y, _ in points), default=90)
    limit_accuracy(axes, max(0, min(low, 99) - 3))
    set_log_scale(axes, "x")
    set_legend_above(axes, 2 if dataset in PUBLISHED else 3)


def _draw_published(axes: Axes, dataset: str, theme: Theme) -> None:
    for i, (name, pairs) in enumerate(PUBLISHED.get(dataset, {}).items()):
        axes.plot(
            *zip(*pairs, strict=True), color=theme.soft, marker=MARKERS[i % len(MARKERS)],
            mfc="none", ls=":", lw=0.9, label=f"{name}, published",
        )  # fmt: skip


def _draw_line(axes: Axes, method: str, points: list[Point]) -> None:
    i, (x, y, deviation) = palette_index(method), zip(*points, strict=True)
    in_legend = method in axes.get_legend_handles_labels()[1]
    axes.errorbar(
        x, y, None if all(map(isnan, deviation)) else deviation, color=colour(i), capsize=2,
        marker=MARKERS[i % len(MARKERS)], label=None if in_legend else method,
        ls="" if len(points) > MAX_JOINED else "-",
    )  # fmt: skip


def _draw_dense(axes: Axes, dataset: str, runs: list[Run], theme: Theme) -> None:
    dense = [100 * run.last["accuracy"] for run in runs if setting("method")(run) == "dense"]
    level = fmean(dense) if dense else DENSE.get(dataset)
    if level is not None:
        label = "dense" if dense else "dense, published"
        axes.axhline(level, color=theme.ink, lw=1, ls="--", label=label)


def _lines(runs: Sequence[Run], unit: str) -> dict[tuple[str, ...], list[Point]]:
    """Return the points per line: one method, and one way of training apart from its fields."""
    repeats: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        repeats.setdefault(run.recipe, []).append(run)
    lines: dict[tuple[str, ...], list[Point]] = {}
    for group in repeats.values():
        config = group[0].config
        if config and config.method != "dense":
            lines.setdefault((config.method, *group[0].training_key), []).append(
                _point(group, unit)
            )
    return lines


def _point(repeats: list[Run], unit: str) -> Point:
    """Return the mean of runs that differ by their seed only."""
    accuracies = [100 * run.last["accuracy"] for run in repeats]
    deviation = stdev(accuracies) if len(repeats) > 1 else nan  # one run has none
    scale = 100 if AXES[unit].endswith("%") else 1
    used = fmean(scale * (_in_unit(run, unit) or 0.0) for run in repeats)
    return used, fmean(accuracies), deviation
