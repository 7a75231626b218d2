"""The figure of accuracy against connectivity, with published results."""

from collections.abc import Sequence
from math import isnan, nan
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
MAX_JOINED = 12  # points that a line may join; more are a cloud


def plot_frontier(runs: Sequence[Run]) -> Plot | None:
    """Plot accuracy against connectivity, the dense network and published points (figure 5).

    Args:
        runs: Any runs; those that cannot be drawn are left out.

    Returns:
        One panel per data set, or None if no run can be drawn.

    Example:
        >>> save_figures([plot_frontier(find(["runs"]))], "figures")
    """
    good = usable(runs)
    panels = group_by(good, setting("dataset"))
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (dataset, members) in zip(all_axes, panels.items(), strict=True):
            _draw_panel(axes, dataset, members, theme)
        all_axes[-1].set_xlabel("connectivity, % of weights")

    size = (5.4, sum(4.6 if dataset in PUBLISHED else 3.6 for dataset in panels))
    title, data = "Accuracy against connectivity", [final_metrics(run) for run in good]
    return Plot("frontier", title, _caption(panels), draw, data, size)


def _caption(panels: dict[str, list[Run]]) -> str:
    """Return a caption that mentions only what these panels show."""
    runs = [run for members in panels.values() for run in members]
    repeated = len({run.recipe for run in runs}) < len(runs)
    over_seeds = ", mean and standard deviation over seeds" * repeated
    parts = [f"Each marker is the last epoch{over_seeds}; up and to the left is better."]
    if any(dataset in DENSE for dataset in panels) or "dense" in map(setting("method"), runs):
        parts.append("The dashed line is the dense network: a run on it has lost no accuracy.")
    if PUBLISHED.keys() & panels.keys():
        parts.append("Hollow grey markers are published results.")
        if "gradr" in map(setting("method"), runs):
            parts.append("gradr is Grad R's rule in the recipe of this run, not the authors' run.")
    if "cifar10" in panels:
        parts.append(
            "On CIFAR-10, accuracy varies by about 0.2 points between epochs: smaller differences "
            "are not significant."
        )
    return " ".join(parts)


def _draw_panel(axes: Axes, dataset: str, runs: list[Run], theme: Theme) -> None:
    _draw_published(axes, dataset, theme)
    lines = _lines(runs)
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


def _lines(runs: Sequence[Run]) -> dict[tuple[str, ...], list[Point]]:
    """Return the points per line: one method, and one way of training apart from its fields."""
    repeats: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        repeats.setdefault(run.recipe, []).append(run)
    lines: dict[tuple[str, ...], list[Point]] = {}
    for group in repeats.values():
        config = group[0].config
        if config and config.method != "dense":
            lines.setdefault((config.method, *group[0].training_key), []).append(_point(group))
    return lines


def _point(repeats: list[Run]) -> Point:
    """Return the mean of runs that differ by their seed only."""
    accuracies = [100 * run.last["accuracy"] for run in repeats]
    deviation = stdev(accuracies) if len(repeats) > 1 else nan  # one run has none
    connectivity = fmean(100 * run.last["connectivity"] for run in repeats)
    return connectivity, fmean(accuracies), deviation
