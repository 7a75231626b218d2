"""The figures: each a function from runs to a `Plot`, None where the runs hold nothing for it."""

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rewire.methods import METHODS
from rewire.published import DENSE, PUBLISHED
from rewire.report.runs import Run
from rewire.report.style import (
    DASHES,
    MARKERS,
    Plot,
    Theme,
    colour,
    log_axis,
    note,
    whole_numbers,
)
from rewire.traces import rate_edges

FEW = 7  # runs that can be told apart by colour; more are coloured by method


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return what gets a colour of its own: each run where they are few, else each method."""
    label: Callable[[Run], str] = lambda run: run.label  # noqa: E731
    if len({label(run) for run in runs}) > FEW:
        label = lambda run: run.config.method if run.config else run.name  # noqa: E731
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(label(run), []).append(run)
    return found


def hue(method: str) -> int:
    """Return the place of a method in the palette: the same in every figure."""
    names = list(dict.fromkeys(("gradr", "deepr", "budget", *sorted(METHODS))))
    return names.index(method) if method in names else len(names)


def series(run: Run, key: str, scale: float = 100.0) -> tuple[list[int], list[float]]:
    """Return (epochs, values) of a figure of the metrics; a value that is missing is left out."""
    rows = [row for row in run.history if isinstance(row.get(key), int | float)]
    return [row["epoch"] for row in rows], [scale * row[key] for row in rows]


# ---------------------------------------------------------------------- over training


def training(runs: Sequence[Run]) -> Plot | None:
    """Accuracy and connectivity over epochs (the paper's figure 4)."""
    good = usable(runs)
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for i, (label, members) in enumerate(groups(good).items()):
            i = hue(label) if label in METHODS else i
            style: dict[str, Any] = {"color": colour(i), "ls": DASHES[i // FEW % 4]}
            style |= {"alpha": 1.0 if len(good) <= FEW else 0.55}
            for j, run in enumerate(members):
                top.plot(*series(run, "accuracy"), label=label if j == 0 else None, **style)
                bottom.plot(*series(run, "connectivity"), **style)
        top.set_ylabel("accuracy, %")
        best = max(max(series(run, "accuracy")[1]) for run in good)
        top.set_ylim(max(0, best - 30), min(100.5, best + 2))
        bottom.set(ylabel="connectivity, %", xlabel="epoch")
        whole_numbers(bottom)
        log_axis(bottom, "y")
        figure.legend(loc="outside upper left", ncols=3)

    data = [
        {"run": run.name, "label": run.label, **{k: row[k] for k in KEYS if k in row}}
        for run in good
        for row in run.history
    ]
    caption = (
        "Test accuracy (above) and the share of synapses that exist (below, logarithmic) after "
        "each epoch. A larger penalty prunes faster; look for where accuracy starts to pay."
    )
    return Plot(
        "training", "Accuracy and connectivity over training", caption, draw, data, (5.4, 4.4)
    )


COSTS = ("synops", "macs", "unpruned", "dense", "compute_pj", "memory_pj", "synapse_connectivity")
KEYS = ("epoch", "accuracy", "connectivity", "loss", "test_loss", "seconds")


# ---------------------------------------------------------------------- where runs end


def frontier(runs: Sequence[Run]) -> Plot | None:
    """Accuracy against connectivity, with the dense line and published points (figure 5)."""
    good = usable(runs)
    datasets = list(dict.fromkeys(run.config.dataset for run in good if run.config))
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(len(datasets), 1, squeeze=False)[:, 0]
        for axes, dataset in zip(panels, datasets, strict=True):
            _frontier(axes, dataset, [r for r in good if _end(r)["dataset"] == dataset], theme)
        panels[-1].set_xlabel("connectivity, % of weights")

    caption = (
        "Each mark is the last epoch, mean and deviation over seeds; up and to the left is better. "
        "The dashed line is the dense network, hollow grey marks are published results. Epoch "
        "noise is about 0.2 points on CIFAR-10: smaller gaps mean nothing."
    )
    data = [{"run": run.name, **_end(run)} for run in good]
    size = (5.4, 3.4 * len(datasets) + 0.4)
    return Plot("frontier", "Accuracy against connectivity", caption, draw, data, size)


def _end(run: Run) -> dict[str, Any]:
    assert run.config
    last = {key: run.last.get(key) for key in ("epoch", "accuracy", "connectivity")}
    return {"dataset": run.config.dataset, "method": run.config.method, "knob": run.knob, **last}


def _frontier(axes: Axes, dataset: str, runs: list[Run], theme: Theme) -> None:
    for i, (name, pairs) in enumerate(PUBLISHED.get(dataset, {}).items()):
        axes.plot(
            *zip(*pairs, strict=True), color=theme.faint, marker=MARKERS[i % len(MARKERS)],
            mfc="none", ls=":", lw=0.8, label=f"{name}, published",
        )  # fmt: skip
    dense = [
        100 * run.last["accuracy"] for run in runs if run.config and run.config.method == "dense"
    ]
    level = float(np.mean(dense)) if dense else DENSE.get(dataset)
    if level is not None:
        axes.axhline(level, color=theme.ink, lw=1, ls="--", label="dense")
    ours = _points(runs)
    for method, points in ours.items():
        i, (x, y, deviation) = hue(method), zip(*sorted(points), strict=True)
        alone: dict[str, Any] = {"ls": ""} if len(points) > 12 else {}
        axes.errorbar(
            x, y, deviation if any(deviation) else None, color=colour(i), capsize=2,
            marker=MARKERS[i % len(MARKERS)], label=method, **alone,
        )  # fmt: skip
    axes.set(ylabel="test accuracy, %")
    low = min((y for points in ours.values() for _, y, _ in points), default=90)
    axes.set_ylim(bottom=max(0, min(low, 99) - 3))
    log_axis(axes, "x")
    note(axes, dataset)
    axes.legend(loc="lower right", ncols=2 if len(axes.lines) > 5 else 1)


def _points(runs: Sequence[Run]) -> dict[str, list[tuple[float, float, float]]]:
    """Return (connectivity, accuracy, its deviation) in %, over seeds, by method."""
    repeats: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        repeats.setdefault(run.recipe, []).append(run)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for group in repeats.values():
        config = group[0].config
        if config and config.method != "dense":
            shares = [100 * run.last["connectivity"] for run in group]
            accuracies = [100 * run.last["accuracy"] for run in group]
            deviation = stdev(accuracies) if len(group) > 1 else 0.0
            point = (fmean(shares), fmean(accuracies), deviation)
            found.setdefault(config.method, []).append(point)
    return found


def energy(runs: Sequence[Run]) -> Plot | None:
    """Energy of one inference against accuracy."""
    good = [run for run in usable(runs) if run.measured.get("compute_pj")]
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for label, members in _methods(good).items():
            i = hue(label)
            x = [run.measured["compute_pj"] / 1e3 for run in members]
            far = [
                (run.measured["compute_pj"] + run.measured["memory_pj"]) / 1e3 for run in members
            ]
            y = [100 * run.last["accuracy"] for run in members]
            axes.hlines(y, x, far, color=colour(i), lw=0.8, alpha=0.6)
            axes.plot(x, y, ls="", color=colour(i), marker=MARKERS[i % len(MARKERS)], label=label)
            axes.plot(far, y, ls="", color=colour(i), marker="|", ms=7)
        axes.set(xlabel="energy, nJ an image", ylabel="test accuracy, %")
        log_axis(axes, "x")
        axes.legend(loc="lower right")

    data = [
        {"run": run.name, **_end(run), **{k: run.measured.get(k) for k in COSTS}} for run in good
    ]
    caption = (
        "Marks: arithmetic only, 0.9 pJ an accumulate and 4.6 pJ a multiply-accumulate (45 nm). "
        "The bar to the right adds one weight read from an 8 kB SRAM (5 pJ) an operation: an "
        "estimate of memory traffic, kept apart because it depends on the chip."
    )
    return Plot("energy", "Energy against accuracy", caption, draw, data)


def _methods(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.config:
            found.setdefault(run.config.method, []).append(run)
    return found


def layers(runs: Sequence[Run]) -> Plot | None:
    """Draw the connectivity of each layer."""
    good = [run for run in usable(runs) if run.last.get("layers")]
    shown = spread(good, FEW)
    if not shown:
        return None
    names = list(dict.fromkeys(name for run in shown for name in run.last["layers"]))

    def share(run: Run, name: str) -> float:
        layer = run.last["layers"].get(name)
        return 100 * layer["present"] / layer["total"] if layer else float("nan")

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        height = 0.8 / len(shown)
        for i, run in enumerate(shown):
            places = np.arange(len(names)) - 0.4 + (i + 0.5) * height
            values = [share(run, name) for name in names]
            axes.barh(places, values, height * 0.88, color=colour(i), label=run.label)
        axes.set(xlabel="connectivity, %", yticks=range(len(names)))
        axes.set_yticklabels([name.removesuffix(".weight") for name in names])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        log_axis(axes, "x")
        figure.legend(loc="outside upper left", ncols=3)

    data = [
        {"run": run.name, "layer": name, **counts}
        for run in good
        for name, counts in run.last["layers"].items()
    ]
    caption = (
        "Where the surviving synapses sit. Wide layers give up most; a layer near 0 % is a "
        "bottleneck, and none may die unnoticed."
    )
    size = (5.4, max(2.8, 0.22 * len(names) * len(shown) + 1.4))
    return Plot("layers", "Connectivity of each layer", caption, draw, data, size)


FIGURES: tuple[Callable[[Sequence[Run]], Plot | None], ...] = (
    frontier,
    training,
    energy,
    layers,
    theta,
    turnover,
    firing,
)


def draw_all(runs: Sequence[Run]) -> list[Plot]:
    """Return every figure the runs hold something for."""
    return [plot for figure in FIGURES if (plot := figure(runs)) is not None]
