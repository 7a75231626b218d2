"""The figure of connectivity per layer."""

from collections.abc import Sequence
from math import floor, log10

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.report.axes import set_legend_above, set_log_scale
from spikewire.report.groups import (
    Group,
    final_repetitions,
    group_by,
    identify,
    opacities,
    setting,
)
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.runs import Run, spread, usable
from spikewire.report.style import WIDTH, Theme, style_of

MAX_BARS = 7  # settings shown per network
LOG_RATIO = 20  # largest over smallest bar from which the axis of bars is logarithmic


def plot_layers(runs: Sequence[Run]) -> Plot | None:
    """Plot the connectivity per layer, one panel per network.

    Args:
        runs: Any runs; those that cannot be drawn are left out.

    Returns:
        Means over seeds, of at most `MAX_BARS` settings per network; None if no run can be drawn.
    """
    good = [run for run in usable(runs) if run.last.get("layers")]
    models = group_by(good, setting("model"))
    panels = {
        model: spread(final_repetitions(members), MAX_BARS) for model, members in models.items()
    }
    if not good:
        return None
    bars = [sum(len(group.first.last["layers"]) for group in shown) for shown in panels.values()]
    heights = [max(1.2, 0.2 * count + 0.4) for count in bars]

    def draw(figure: Figure, theme: Theme) -> None:
        all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (model, shown) in zip(all_axes, panels.items(), strict=True):
            _draw_panel(axes, shown)
            axes.set_ylabel(model)

    data = [
        {"run": run.name, "seed": run.seed, "layer": name, **counts}
        for run in good
        for name, counts in run.last["layers"].items()
    ]
    caption = (
        "Fraction of synapses present per layer at the last epoch. Wide layers usually lose most; "
        "a layer near 0 % is a bottleneck."
    )
    size = (WIDTH, sum(heights) + 0.6 + 0.6 * len(panels))
    return Plot("layers", "Connectivity per layer", caption, draw, data, size)


def _draw_panel(axes: Axes, groups: Sequence[Group]) -> None:
    names = list(dict.fromkeys(name for group in groups for name in group.first.last["layers"]))
    values = np.array([[_layer_percent(group, name) for name in names] for group in groups])
    height = 0.8 / len(groups)
    for i, (group, opacity) in enumerate(zip(groups, opacities(groups), strict=True)):
        positions = np.arange(len(names)) - 0.4 + (i + 0.5) * height
        shade = style_of(group.method).colour
        bars = axes.barh(
            positions, values[i], height * 0.88, color=shade, alpha=opacity, label=group.label
        )
        for name, value, bar in zip(names, values[i], bars, strict=True):
            text = f"{group.label} · {identify(group.runs)}\n{name}: {value:.3g}% present"
            set_mark(bar, text, group.runs)
    axes.set(yticks=range(len(names)))
    axes.set_yticklabels([name.removesuffix(".weight") for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    positive = values[values > 0]
    axes.set_xlabel("connectivity, %")
    if positive.size and positive.max() / positive.min() > LOG_RATIO:
        axes.set_xlabel("connectivity, %, logarithmic")
        axes.set_xlim(10 ** floor(log10(positive.min())) / 2, positive.max() * 1.1)
        set_log_scale(axes, "x")
    set_legend_above(axes)


def _layer_percent(group: Group, name: str) -> float:
    """Return the mean connectivity of a layer in %; NaN if the runs have no such layer."""

    def of(run: Run) -> float | None:
        layer = run.last["layers"].get(name)
        return 100 * layer["present"] / layer["total"] if layer else None

    found = group.mean(of)
    return float("nan") if found is None else found
