"""The figure of accuracy against energy per image."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.data import title_of
from spikewire.report.axes import limit_accuracy, set_legend_above, set_log_scale
from spikewire.report.groups import Group, final_metrics, group_by, setting
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.runs import Run, usable
from spikewire.report.style import WIDTH, Theme, style_of

COSTS = ("synops", "macs", "unpruned", "dense", "compute_pj", "memory_pj")
COSTS += ("synapses", "synapses_reached", "synapses_alive")


def plot_energy(runs: Sequence[Run]) -> Plot | None:
    """Plot the energy per image against accuracy.

    Args:
        runs: Any runs; those without measured costs are left out.

    Returns:
        One panel per data set, or None if no run has measured costs.
    """
    good = [run for run in usable(runs) if run.measured.get("compute_pj")]
    panels = group_by(good, setting("dataset"))
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (dataset, members) in zip(all_axes, panels.items(), strict=True):
            _draw_panel(axes, members)
            axes.set_ylabel(f"test accuracy on {title_of(dataset)}, %")
        all_axes[-1].set_xlabel("energy per image, nJ")

    data: list[dict[str, Any]] = [
        final_metrics(run) | {key: run.measured.get(key) for key in COSTS} for run in good
    ]
    caption = (
        "Up and to the left is better. Markers: arithmetic only, 0.9 pJ per accumulate and 4.6 pJ "
        "per multiply-accumulate (45 nm). The bar to the right adds one weight read from an 8 kB "
        "SRAM (5 pJ) per operation: an estimate of memory traffic, shown separately because it "
        "depends on the chip."
    )
    size = (WIDTH, 4.0 * len(panels))
    return Plot("energy", "Accuracy against energy", caption, draw, data, size)


def _draw_panel(axes: Axes, runs: Sequence[Run]) -> None:
    for method, members in group_by(runs, setting("method")).items():
        for i, run in enumerate(members):
            _draw_run(axes, run, label=method if i == 0 else None)
    limit_accuracy(axes, min(100 * run.last["accuracy"] for run in runs))
    set_log_scale(axes, "x")
    set_legend_above(axes)


def _draw_run(axes: Axes, run: Run, label: str | None) -> None:
    """Draw a marker at the energy of arithmetic, and a bar to that with memory traffic."""
    style, cost = style_of(setting("method")(run)), run.measured
    compute = cost["compute_pj"] / 1e3
    total = compute + cost["memory_pj"] / 1e3
    y = 100 * run.last["accuracy"]
    point = axes.plot(compute, y, ls="", color=style.colour, marker=style.marker, label=label)
    look = {"color": style.colour, "lw": 0.8, "alpha": 0.6, "marker": "|", "markevery": [1]}
    bar = axes.plot([compute, total], [y, y], **look)
    text = f"{Group((run,)).describe()}\narithmetic {compute:,.3g} nJ · with memory {total:,.3g} nJ"
    set_mark([*point, *bar], text, [run])
