"""The figure of accuracy and connectivity over epochs: means over seeds with their spread."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from spikewire.report.axes import set_legend_above, set_log_scale, set_whole_ticks
from spikewire.report.groups import Group, group_by, opacities, repetitions, setting
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.runs import Run, thin_out, usable
from spikewire.report.style import WIDTH, Theme, style_of

METRICS = ("epoch", "accuracy", "connectivity", "loss", "test_loss", "seconds")
MAX_LABELS = 9  # lines that the legend names; of more, it names the methods
MARKS = 4  # markers on a line

Curve = list[tuple[int, float, float]]  # epoch, mean in %, standard deviation or 0


def plot_training(runs: Sequence[Run]) -> Plot | None:
    """Plot accuracy and connectivity over epochs (figure 4 of the paper).

    Args:
        runs: Any runs; those that cannot be drawn are left out.

    Returns:
        One line per setting, the mean over its seeds, with a band of one standard deviation; None
        if no run can be drawn.
    """
    good = usable(runs)
    if not good:
        return None
    groups = repetitions(good)
    few = len(groups) <= MAX_LABELS

    def draw(figure: Figure, theme: Theme) -> None:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        looks = zip(groups, opacities(groups), _labels(groups), strict=True)
        for group, opacity, label in looks:
            for axes, key in ((top, "accuracy"), (bottom, "connectivity")):
                line = _draw_curve(axes, group, key, opacity, label if axes is top else None)
                set_mark(line, group.describe(), group.runs)
                for band in _draw_spread(axes, group, key, few):
                    set_mark(band, group.describe(), group.runs, kind="band")
        top.set_ylabel("accuracy, %")
        top.set_ylim(*_accuracy_range(good))
        bottom.set(ylabel="connectivity, %", xlabel="epoch")
        set_whole_ticks(bottom)
        set_log_scale(bottom, "y")
        set_legend_above(top)

    title = "Accuracy and connectivity over training"
    return Plot("training", title, _caption(good, groups), draw, _data(good), (WIDTH, 4.6))


def _data(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [
        {"run": run.name, "label": run.label, "seed": run.seed}
        | {key: row[key] for key in METRICS if key in row}
        for run in runs
        for row in run.curve
    ]


def _caption(runs: Sequence[Run], groups: Sequence[Group]) -> str:
    """Return a caption that mentions only what these runs show."""
    penalties = {run.setting for run in runs if run.setting.startswith("α")}
    parts = [
        "Test accuracy (top) and fraction of synapses present (bottom, logarithmic) per epoch.",
        "Lines are means over seeds, bands one standard deviation."
        * any(len(group.runs) > 1 for group in groups),
        "Of the lines of one method, the paler ones have fewer synapses."
        * (len({group.method for group in groups}) < len(groups)),
        "A larger penalty α prunes faster." if len(penalties) > 1 else "",
        "Look for the connectivity at which accuracy starts to drop.",
        "All data sets are on the same axes." * (len(group_by(runs, setting("dataset"))) > 1),
    ]
    return " ".join(filter(None, parts))


def _labels(groups: Sequence[Group]) -> list[str | None]:
    """Return what the legend says of each group: its label or, where there are many, its method."""
    names = [group.label if len(groups) <= MAX_LABELS else group.method for group in groups]
    return [name if name not in names[:i] else None for i, name in enumerate(names)]


def _draw_curve(
    axes: Axes, group: Group, key: str, opacity: float, label: str | None
) -> list[Line2D]:
    """Draw the mean of a metric over epochs."""
    curve, style = _curve(group, key), style_of(group.method)
    return axes.plot(
        [epoch for epoch, _, _ in curve], [mean for _, mean, _ in curve], color=style.colour,
        ls=style.dash, alpha=opacity, marker=style.marker, label=label,
        markevery=max(1, -(-len(curve) // MARKS)),
    )  # fmt: skip


def _draw_spread(axes: Axes, group: Group, key: str, few: bool) -> list[Artist]:
    """Draw a band of one standard deviation over seeds; of many lines it is nearly invisible."""
    curve = _curve(group, key)
    if not any(error for _, _, error in curve):
        return []
    x, low, high = zip(*((x, y - error, y + error) for x, y, error in curve), strict=True)
    shade = style_of(group.method).colour
    return [axes.fill_between(x, low, high, color=shade, alpha=0.2 if few else 0.03, lw=0)]


def _curve(group: Group, key: str) -> Curve:
    """Return mean and deviation per epoch; epochs without a value are left out."""
    values: dict[int, list[float]] = {}
    for run in group.runs:
        for row in thin_out([row for row in run.history if isinstance(row.get(key), int | float)]):
            values.setdefault(row["epoch"], []).append(100 * row[key])
    return [
        (epoch, fmean(found), stdev(found) if len(found) > 1 else 0.0)
        for epoch, found in sorted(values.items())
    ]


def _accuracy_range(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the range of accuracies to show: all final ones, not those of the first epochs."""
    best = max(100 * row["accuracy"] for run in runs for row in run.history if row.get("accuracy"))
    worst = min(100 * run.last["accuracy"] for run in runs)
    return max(0, min(best - 30, worst - 5)), min(100.5, best + 2)
