"""The figure of accuracy against connectivity or another unit, with published results."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.data import title_of
from spikewire.errors import check_word
from spikewire.report.axes import limit_accuracy, set_legend_above, set_log_scale
from spikewire.report.groups import (
    Group,
    final_accuracy,
    final_metrics,
    final_repetitions,
    group_by,
    setting,
)
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.published import DENSE, marker_of, published_in
from spikewire.report.runs import Run, usable
from spikewire.report.style import WIDTH, Theme, style_of
from spikewire.text import amount

AXES = {  # labels; those that end in % are fractions
    "connectivity": "connectivity of weights, %",
    "synapses": "synapses present, %",
    "synops": "synaptic operations per image",
    "bytes": "packed file, bytes",
}
MAX_JOINED = 12  # points that a line may join; more are a cloud


@dataclass(frozen=True)
class Point:
    """The mean over the seeds of one recipe, in the units of the axes.

    Args:
        group: The runs.
        x: What they have of the unit of the x-axis.
        y: Accuracy in %.
        error: Its standard deviation; None for one run.
        text: What is shown on hover.
    """

    group: Group
    x: float
    y: float
    error: float | None
    text: str


def plot_frontier(runs: Sequence[Run], unit: str = "connectivity") -> Plot | None:
    """Plot accuracy against connectivity, the dense network and published points (figure 5).

    Args:
        runs: Any runs; those that cannot be drawn are left out.
        unit: What is on the x-axis: ``"connectivity"``, ``"synapses"``, ``"synops"`` or
            ``"bytes"``; published points are drawn where they are known in that unit.

    Returns:
        One panel per data set, or None if no run can be drawn.

    Example:
        >>> save_figures([plot_frontier(find(["runs"]))], "figures")
    """
    check_word("unit", unit, AXES)
    good = [run for run in usable(runs) if run.in_unit(unit) is not None]
    panels = group_by(good, setting("dataset"))
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (dataset, members) in zip(all_axes, panels.items(), strict=True):
            _draw_panel(axes, dataset, members, theme, unit)
        all_axes[-1].set_xlabel(AXES[unit])

    size = (WIDTH, sum(4.8 if published_in(unit, dataset) else 4.0 for dataset in panels))
    data = [final_metrics(run) | {name: run.in_unit(name) for name in AXES} for run in good]
    key = "frontier" if unit == "connectivity" else f"frontier-{unit}"
    name = "SynOps" if unit == "synops" else unit
    return Plot(key, f"Accuracy against {name}", _caption(panels, unit), draw, data, size)


def _caption(panels: dict[str, list[Run]], unit: str) -> str:
    """Return a caption that mentions only what these panels show."""
    runs = [run for members in panels.values() for run in members]
    averaged = any(len(group.runs) > 1 for group in final_repetitions(runs))
    over_seeds = ", mean and standard deviation over seeds" * averaged
    parts = [f"Each marker is the last epoch{over_seeds}; up and to the left is better."]
    if any(len(final_repetitions(members)) > 1 for members in panels.values()):
        parts.append("The grey band is the Pareto front: the best accuracy at that cost or less.")
    if any(dataset in DENSE for dataset in panels) or "dense" in map(setting("method"), runs):
        parts.append("The horizontal line is the dense network: a run on it has lost no accuracy.")
    if any(published_in(unit, dataset) for dataset in panels):
        parts.append("Hollow grey markers are published results.")
        if unit == "synapses":
            parts.append("Theirs are the synapses reached from the input, of those present.")
        if "gradr" in map(setting("method"), runs):
            parts.append("gradr is Grad R's rule in the recipe of this run, not the authors' run.")
    if "cifar10" in panels:
        parts.append(
            "On CIFAR-10, accuracy varies by about 0.2 points between epochs: smaller differences "
            "are not significant."
        )
    return " ".join(parts)


# ---------------------------------------------------------------------- points


def points_in(runs: Sequence[Run], unit: str) -> list[Point]:
    """Return the means over seeds in the units of the axes."""
    return [_point(group, unit) for group in final_repetitions(runs)]


def _point(group: Group, unit: str) -> Point:
    scale = 100 if AXES[unit].endswith("%") else 1
    used = group.mean(lambda run: run.in_unit(unit)) or 0.0
    error = group.deviation(final_accuracy)
    text = group.describe()
    if unit != "connectivity":
        text += f"\n{AXES[unit].removesuffix(', %')}: {amount(unit, used)}"
    return Point(
        group=group,
        x=scale * used,
        y=100 * (group.mean(final_accuracy) or 0.0),
        error=None if error is None else 100 * error,
        text=text,
    )


def pareto_front(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats: none has less cost and as much accuracy, or more.

    Args:
        pairs: Cost and accuracy of each point.

    Returns:
        The points by increasing cost, and so by increasing accuracy.

    Example:
        >>> pareto_front([(1, 90), (2, 80), (3, 95), (3, 91)])
        [(1, 90), (3, 95)]
    """
    ordered = sorted(pairs, key=lambda pair: (pair[0], -pair[1]))
    best = accumulate((y for _, y in ordered), max, initial=float("-inf"))
    return [pair for pair, before in zip(ordered, best, strict=False) if pair[1] > before]


# ---------------------------------------------------------------------- drawing


def _draw_panel(axes: Axes, dataset: str, runs: list[Run], theme: Theme, unit: str) -> None:
    points = points_in(runs, unit)
    _draw_front(axes, points, theme)
    _draw_published(axes, dataset, theme, unit)
    sparse = [point for point in points if point.group.method != "dense"]
    for line in _lines(sparse):
        _draw_line(axes, line)
    _draw_dense(axes, dataset, [run for run in runs if setting("method")(run) == "dense"])
    axes.set(ylabel=f"test accuracy on {title_of(dataset)}, %")
    limit_accuracy(axes, min((point.y for point in sparse), default=90))
    set_log_scale(axes, "x")
    set_legend_above(axes)


def _draw_front(axes: Axes, points: Sequence[Point], theme: Theme) -> None:
    if len(points) < 2:
        return
    front = pareto_front([(point.x, point.y) for point in points])
    end = max(point.x for point in points)
    x, y = zip(*front, (end, front[-1][1]), strict=True)
    (band,) = axes.step(
        x, y, where="post", color=theme.soft, lw=6, alpha=0.25, solid_capstyle="round",
        solid_joinstyle="round", label="Pareto front", zorder=1,
    )  # fmt: skip
    set_mark(band, "Pareto front: the best accuracy at that cost or less")


def _draw_published(axes: Axes, dataset: str, theme: Theme, unit: str) -> None:
    scale = 100 if AXES[unit].endswith("%") else 1
    for name, pairs in published_in(unit, dataset).items():
        look: dict[str, Any] = {"color": theme.soft, "marker": marker_of(dataset, name)}
        look |= {"mfc": "none", "lw": 0.9, "ls": ":" if len(pairs) > 1 else ""}
        x, y = zip(*pairs, strict=True)
        axes.plot(x, y, markevery=[], label=f"{name}, published", **look)
        for pair in pairs:
            (mark,) = axes.plot(*pair, **look)
            used = f"{unit.replace('synops', 'SynOps')} {amount(unit, pair[0] / scale)}"
            set_mark(mark, f"{name}, published\naccuracy {pair[1]}% · {used}")


def _lines(points: Sequence[Point]) -> list[list[Point]]:
    """Return the points per line: one method, and one way of training apart from its fields."""
    lines: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        key = (point.group.method, *point.group.first.training_key)
        lines.setdefault(key, []).append(point)
    return [sorted(line, key=lambda point: (point.x, point.y)) for line in lines.values()]


def _draw_line(axes: Axes, points: Sequence[Point]) -> None:
    """Draw a line through the points of one method, and each point with its error bar."""
    method = points[0].group.method
    style = style_of(method)
    in_legend = method in axes.get_legend_handles_labels()[1]
    (line,) = axes.plot(
        [point.x for point in points], [point.y for point in points], color=style.colour,
        marker=style.marker, markevery=[], label=None if in_legend else method,
        ls="" if len(points) > MAX_JOINED else style.dash,
    )  # fmt: skip
    set_mark(line, method, each=[point.group.runs for point in points])
    for point in points:
        bars = axes.errorbar(point.x, point.y, point.error, color=style.colour, marker=style.marker)
        set_mark(bars.get_children(), point.text, point.group.runs)


def _draw_dense(axes: Axes, dataset: str, runs: list[Run]) -> None:
    counted = [run for group in final_repetitions(runs) for run in group.runs]
    accuracies = [100 * run.last["accuracy"] for run in counted]
    level = fmean(accuracies) if accuracies else DENSE.get(dataset)
    if level is None:
        return
    label, style = "dense" if runs else "dense, published", style_of("dense")
    line = axes.axhline(level, color=style.colour, lw=1.2, ls=style.dash, label=label)
    set_mark(line, f"{label}: accuracy {level:.2f}%", counted)
