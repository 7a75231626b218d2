"""The figures of the report; each function returns a `Plot`, or None if the runs lack its data."""

from collections.abc import Callable, Sequence
from math import floor, log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.methods import METHODS
from spikewire.report.frontier import plot_frontier
from spikewire.report.groups import (
    MAX_COLOURS,
    colour_groups,
    final_metrics,
    group_by,
    palette_index,
    setting,
)
from spikewire.report.internals import (
    plot_firing,
    plot_parameters,
    plot_theta,
    plot_turnover,
)
from spikewire.report.runs import Run, spread, thin_out, usable
from spikewire.report.style import (
    DASHES,
    MARKERS,
    Plot,
    Theme,
    colour,
    limit_accuracy,
    set_epoch_ticks,
    set_legend_above,
    set_log_scale,
)

COSTS = ("synops", "macs", "unpruned", "dense", "compute_pj", "memory_pj")
COSTS += ("synapses", "synapses_reached", "synapses_alive")
METRICS = ("epoch", "accuracy", "connectivity", "loss", "test_loss", "seconds")
LOG_RATIO = 20  # largest over smallest bar from which the axis of bars is logarithmic


# ---------------------------------------------------------------------- over training


def plot_training(runs: Sequence[Run]) -> Plot | None:
    """Plot accuracy and connectivity over epochs (figure 4 of the paper)."""
    good = usable(runs)
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        _draw_curves(top, bottom, good)
        top.set_ylabel("accuracy, %")
        top.set_ylim(*_accuracy_range(good))
        bottom.set(ylabel="connectivity, %", xlabel="epoch")
        set_epoch_ticks(bottom)
        set_log_scale(bottom, "y")
        set_legend_above(top)

    data = [
        {"run": run.name, "label": run.label, **{key: row[key] for key in METRICS if key in row}}
        for run in good
        for row in run.curve
    ]
    title = "Accuracy and connectivity over training"
    return Plot("training", title, _training_caption(good), draw, data, (5.4, 4.4))


def _training_caption(runs: Sequence[Run]) -> str:
    """Return a caption that mentions only what these runs show."""
    penalties = {run.setting for run in runs if run.setting.startswith("α")}
    parts = [
        "Test accuracy (top) and fraction of synapses present (bottom, logarithmic) per epoch.",
        "A larger penalty α prunes faster." if len(penalties) > 1 else "",
        "Look for the connectivity at which accuracy starts to drop.",
        "All data sets are on the same axes." * (len(group_by(runs, setting("dataset"))) > 1),
    ]
    return " ".join(filter(None, parts))


def _draw_curves(top: Axes, bottom: Axes, runs: Sequence[Run]) -> None:
    """Draw accuracy above and connectivity below, one line per run."""
    alpha = 1.0 if len(runs) <= MAX_COLOURS else 0.75
    for i, (label, members) in enumerate(colour_groups(runs).items()):
        i = palette_index(label) if label in METHODS else i
        style: dict[str, Any] = {"color": colour(i), "ls": DASHES[i // MAX_COLOURS % 4]}
        for j, run in enumerate(members):
            style |= {"alpha": alpha, "marker": "o" if len(run.history) == 1 else ""}
            top.plot(*_series(run, "accuracy"), label=label if j == 0 else None, **style)
            bottom.plot(*_series(run, "connectivity"), **style)


def _series(run: Run, key: str) -> tuple[list[int], list[float]]:
    """Return epochs and values in % of a metric; epochs without a value are left out."""
    rows = thin_out([row for row in run.history if isinstance(row.get(key), int | float)])
    return [row["epoch"] for row in rows], [100 * row[key] for row in rows]


def _accuracy_range(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the range of accuracies to show: all final ones, not those of the first epochs."""
    best = max(max(_series(run, "accuracy")[1]) for run in runs)
    worst = min(100 * run.last["accuracy"] for run in runs)
    return max(0, min(best - 30, worst - 5)), min(100.5, best + 2)


# ---------------------------------------------------------------------- at the last epoch


def plot_energy(runs: Sequence[Run]) -> Plot | None:
    """Plot the energy per image against accuracy."""
    good = [run for run in usable(runs) if run.measured.get("compute_pj")]
    panels = group_by(good, setting("dataset"))
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (dataset, members) in zip(all_axes, panels.items(), strict=True):
            _draw_energy(axes, members)
            axes.set_ylabel(f"test accuracy on {dataset}, %")
        all_axes[-1].set_xlabel("energy per image, nJ")

    data = [{**final_metrics(run), **{k: run.measured.get(k) for k in COSTS}} for run in good]
    caption = (
        "Up and to the left is better. Markers: arithmetic only, 0.9 pJ per accumulate and 4.6 pJ "
        "per multiply-accumulate (45 nm). The bar to the right adds one weight read from an 8 kB "
        "SRAM (5 pJ) per operation: an estimate of memory traffic, shown separately because it "
        "depends on the chip."
    )
    size = (5.4, 3.6 * len(panels))
    return Plot("energy", "Accuracy against energy", caption, draw, data, size)


def _draw_energy(axes: Axes, runs: Sequence[Run]) -> None:
    for method, members in group_by(runs, setting("method")).items():
        i, costs = palette_index(method), [run.measured for run in members]
        compute = [cost["compute_pj"] / 1e3 for cost in costs]
        total = [(cost["compute_pj"] + cost["memory_pj"]) / 1e3 for cost in costs]
        y = [100 * run.last["accuracy"] for run in members]
        axes.hlines(y, compute, total, color=colour(i), lw=0.8, alpha=0.6)
        marker = MARKERS[i % len(MARKERS)]
        axes.plot(compute, y, ls="", color=colour(i), marker=marker, label=method)
        axes.plot(total, y, ls="", color=colour(i), marker="|", ms=7)
    limit_accuracy(axes)
    set_log_scale(axes, "x")
    set_legend_above(axes, 4)


def plot_layers(runs: Sequence[Run]) -> Plot | None:
    """Plot the connectivity per layer, one panel per network."""
    good = [run for run in usable(runs) if run.last.get("layers")]
    models = group_by(good, setting("model"))
    panels = {model: spread(members, MAX_COLOURS) for model, members in models.items()}
    if not good:
        return None
    bars = [sum(len(run.last["layers"]) for run in shown) for shown in panels.values()]
    heights = [max(1.2, 0.2 * count + 0.4) for count in bars]

    def draw(figure: Figure, theme: Theme) -> None:
        all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (model, shown) in zip(all_axes, panels.items(), strict=True):
            _draw_layers(axes, shown)
            axes.set_ylabel(model)
        all_axes[-1].set_xlabel("connectivity, %")

    data = [
        {"run": run.name, "layer": name, **counts}
        for run in good
        for name, counts in run.last["layers"].items()
    ]
    caption = (
        "Fraction of synapses present per layer at the last epoch. Wide layers usually lose most; "
        "a layer near 0 % is a bottleneck."
    )
    size = (5.4, sum(heights) + 0.6 + 0.6 * len(panels))
    return Plot("layers", "Connectivity per layer", caption, draw, data, size)


def _draw_layers(axes: Axes, runs: Sequence[Run]) -> None:
    names = list(dict.fromkeys(name for run in runs for name in run.last["layers"]))
    values = np.array([[_layer_percent(run, name) for name in names] for run in runs])
    height = 0.8 / len(runs)
    for i, run in enumerate(runs):
        positions = np.arange(len(names)) - 0.4 + (i + 0.5) * height
        axes.barh(positions, values[i], height * 0.88, color=colour(i), label=run.label)
    axes.set(yticks=range(len(names)))
    axes.set_yticklabels([name.removesuffix(".weight") for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    positive = values[values > 0]
    if positive.size and positive.max() / positive.min() > LOG_RATIO:
        axes.set_xlim(10 ** floor(log10(positive.min())) / 2, positive.max() * 1.1)
        set_log_scale(axes, "x")
    set_legend_above(axes)


def _layer_percent(run: Run, name: str) -> float:
    """Return the connectivity of a layer in %; NaN if the run has no such layer."""
    layer = run.last["layers"].get(name)
    return 100 * layer["present"] / layer["total"] if layer else float("nan")


FIGURES: tuple[Callable[[Sequence[Run]], Plot | None], ...] = (
    plot_frontier,
    plot_training,
    plot_energy,
    plot_layers,
    plot_theta,
    plot_turnover,
    plot_firing,
    plot_parameters,
)


def plot_all(runs: Sequence[Run], unit: str = "connectivity") -> list[Plot]:
    """Return every figure for which the runs have data.

    Args:
        runs: Runs, as returned by `find`.
        unit: What accuracy is drawn against: see `plot_frontier`.

    Returns:
        The figures in the order of `FIGURES`.

    Example:
        >>> save_figures(plot_all(find(["runs"])), "figures")
    """
    plots = [plot_frontier(runs, unit), *(figure(runs) for figure in FIGURES[1:])]
    return [plot for plot in plots if plot is not None]
