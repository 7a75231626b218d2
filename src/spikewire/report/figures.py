"""The figures: each a function from runs to a `Plot`, None where the runs hold nothing for it."""

from collections.abc import Callable, Sequence
from math import floor, log10
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.methods import METHODS
from spikewire.report.inside import firing, parameters, theta, turnover
from spikewire.report.published import DENSE, PUBLISHED
from spikewire.report.runs import Run, spread, thinned, usable
from spikewire.report.style import (
    DASHES,
    MARKERS,
    Plot,
    Theme,
    colour,
    legend_above,
    log_axis,
    whole_numbers,
)

FEW = 7  # runs that can be told apart by colour; more are coloured by method
COSTS = ("synops", "macs", "unpruned", "dense", "compute_pj", "memory_pj", "synapse_connectivity")
KEYS = ("epoch", "accuracy", "connectivity", "loss", "test_loss", "seconds")


def grouped(runs: Sequence[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    """Return the runs by what `key` says of each, in their order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def setting(name: str) -> Callable[[Run], str]:
    """Return a function to a run's setting of that name."""
    return lambda run: getattr(run.config, name, run.name)


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return what gets a colour of its own: each run where they are few, else each method."""
    found = grouped(runs, lambda run: run.label)
    return found if len(found) <= FEW else grouped(runs, setting("method"))


def hue(method: str) -> int:
    """Return the place of a method in the palette: the same in every figure."""
    names = list(dict.fromkeys(("gradr", "deepr", "budget", *sorted(METHODS))))
    return names.index(method) if method in names else len(names)


def series(run: Run, key: str, scale: float = 100.0) -> tuple[list[int], list[float]]:
    """Return (epochs, values) of a figure of the metrics; a value that is missing is left out."""
    rows = thinned([row for row in run.history if isinstance(row.get(key), int | float)])
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
            style |= {"alpha": 1.0 if len(good) <= FEW else 0.75}
            for j, run in enumerate(members):
                style["marker"] = "o" if len(run.history) == 1 else ""  # a line needs two points
                top.plot(*series(run, "accuracy"), label=label if j == 0 else None, **style)
                bottom.plot(*series(run, "connectivity"), **style)
        top.set_ylabel("accuracy, %")
        top.set_ylim(*_heights(good))
        bottom.set(ylabel="connectivity, %", xlabel="epoch")
        whole_numbers(bottom)
        log_axis(bottom, "y")
        legend_above(top)

    data = [
        {"run": run.name, "label": run.label, **{k: row[k] for k in KEYS if k in row}}
        for run in good
        for row in run.curve
    ]
    several = len({run.knob for run in good if run.knob.startswith("α")}) > 1
    caption = (
        "Test accuracy (above) and the share of synapses that exist (below, logarithmic) after "
        f"each epoch.{' A larger penalty α prunes faster.' if several else ''} Look for where "
        "accuracy starts to pay for the synapses that go."
        f"{' Data sets share these axes.' * (len(grouped(good, setting('dataset'))) > 1)}"
    )
    return Plot(
        "training", "Accuracy and connectivity over training", caption, draw, data, (5.4, 4.4)
    )


def _heights(runs: Sequence[Run]) -> tuple[float, float]:
    """Return the range of accuracies to show: how runs end, not how they begin."""
    best = max(max(series(run, "accuracy")[1]) for run in runs)
    worst = min(100 * run.last["accuracy"] for run in runs)
    return max(0, min(best - 30, worst - 5)), min(100.5, best + 2)


# ---------------------------------------------------------------------- where runs end


def frontier(runs: Sequence[Run]) -> Plot | None:
    """Accuracy against connectivity, with the dense line and published points (figure 5)."""
    good = usable(runs)
    panels = grouped(good, setting("dataset"))
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (dataset, members) in zip(places, panels.items(), strict=True):
            _frontier(axes, dataset, members, theme)
        places[-1].set_xlabel("connectivity, % of weights")

    data = [{"run": run.name, **_end(run)} for run in good]
    size = (5.4, sum(4.6 if dataset in PUBLISHED else 3.6 for dataset in panels))
    title = "Accuracy against connectivity"
    return Plot("frontier", title, _frontier_caption(panels), draw, data, size)


def _frontier_caption(panels: dict[str, list[Run]]) -> str:
    """Return what to see in those panels, and nothing of what is not there."""
    runs = [run for members in panels.values() for run in members]
    repeated = len({run.recipe for run in runs}) < len(runs)
    parts = [
        f"Each mark is the last epoch{', mean and deviation over seeds' * repeated}; "
        "up and to the left is better."
    ]
    if any(dataset in DENSE for dataset in panels) or "dense" in map(setting("method"), runs):
        parts.append("The dashed line is the dense network: what lies on it has lost nothing.")
    if PUBLISHED.keys() & panels.keys():
        parts.append("Hollow grey marks are published results.")
    if "cifar10" in panels:
        parts.append("Epoch noise is about 0.2 points on CIFAR-10: smaller gaps mean nothing.")
    return " ".join(parts)


def _end(run: Run) -> dict[str, Any]:
    assert run.config
    last = {key: run.last.get(key) for key in ("epoch", "accuracy", "connectivity")}
    return {"dataset": run.config.dataset, "method": run.config.method, "knob": run.knob, **last}


def _frontier(axes: Axes, dataset: str, runs: list[Run], theme: Theme) -> None:
    for i, (name, pairs) in enumerate(PUBLISHED.get(dataset, {}).items()):
        axes.plot(
            *zip(*pairs, strict=True), color=theme.soft, marker=MARKERS[i % len(MARKERS)],
            mfc="none", ls=":", lw=0.9, label=f"{name}, published",
        )  # fmt: skip
    ours = _points(runs)
    for (method, *_), points in ours.items():
        i, (x, y, deviation) = hue(method), zip(*sorted(points), strict=True)
        known = method in axes.get_legend_handles_labels()[1]
        axes.errorbar(
            x, y, deviation if any(deviation) else None, color=colour(i), capsize=2,
            marker=MARKERS[i % len(MARKERS)], label=None if known else method,
            ls="" if len(points) > 12 else "-",
        )  # fmt: skip
    dense = [100 * run.last["accuracy"] for run in runs if setting("method")(run) == "dense"]
    level = fmean(dense) if dense else DENSE.get(dataset)
    if level is not None:
        whose = "dense" if dense else "dense, published"
        axes.axhline(level, color=theme.ink, lw=1, ls="--", label=whose)
    axes.set(ylabel=f"test accuracy on {dataset}, %")
    low = min((y for points in ours.values() for _, y, _ in points), default=90)
    _limit(axes, max(0, min(low, 99) - 3))
    log_axis(axes, "x")
    legend_above(axes, 2 if dataset in PUBLISHED else 3)


def _limit(axes: Axes, bottom: float | None = None) -> None:
    """Let no axis of accuracies pass 100 %, and no mark at its top be cut in half."""
    axes.set_ylim(bottom=bottom)
    low, high = axes.get_ylim()
    axes.set_ylim(top=min(100.5, high + 0.05 * (high - low)))


def _points(runs: Sequence[Run]) -> dict[tuple[str, ...], list[tuple[float, float, float]]]:
    """Return (connectivity, accuracy, its deviation) in %, over seeds.

    The key begins with the method; runs trained otherwise are another line.
    """
    repeats: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        repeats.setdefault(run.recipe, []).append(run)
    found: dict[tuple[str, ...], list[tuple[float, float, float]]] = {}
    for group in repeats.values():
        config = group[0].config
        if config and config.method != "dense":
            shares = [100 * run.last["connectivity"] for run in group]
            accuracies = [100 * run.last["accuracy"] for run in group]
            deviation = stdev(accuracies) if len(group) > 1 else 0.0
            point = (fmean(shares), fmean(accuracies), deviation)
            found.setdefault((config.method, *group[0].schooling), []).append(point)
    return found


def energy(runs: Sequence[Run]) -> Plot | None:
    """Energy of one inference against accuracy."""
    good = [run for run in usable(runs) if run.measured.get("compute_pj")]
    panels = grouped(good, setting("dataset"))
    if not good:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (dataset, members) in zip(places, panels.items(), strict=True):
            _energy(axes, members)
            axes.set_ylabel(f"test accuracy on {dataset}, %")
        places[-1].set_xlabel("energy, nJ an image")

    data = [
        {"run": run.name, **_end(run), **{k: run.measured.get(k) for k in COSTS}} for run in good
    ]
    caption = (
        "Up and to the left is better. Marks: arithmetic only, 0.9 pJ an accumulate and 4.6 pJ a "
        "multiply-accumulate (45 nm). The bar to the right adds one weight read from an 8 kB SRAM "
        "(5 pJ) an operation: an estimate of memory traffic, kept apart since it depends on the "
        "chip."
    )
    size = (5.4, 3.6 * len(panels))
    return Plot("energy", "Energy against accuracy", caption, draw, data, size)


def _energy(axes: Axes, runs: Sequence[Run]) -> None:
    for method, members in grouped(runs, setting("method")).items():
        i, costs = hue(method), [run.measured for run in members]
        x = [cost["compute_pj"] / 1e3 for cost in costs]
        far = [(cost["compute_pj"] + cost["memory_pj"]) / 1e3 for cost in costs]
        y = [100 * run.last["accuracy"] for run in members]
        axes.hlines(y, x, far, color=colour(i), lw=0.8, alpha=0.6)
        axes.plot(x, y, ls="", color=colour(i), marker=MARKERS[i % len(MARKERS)], label=method)
        axes.plot(far, y, ls="", color=colour(i), marker="|", ms=7)
    _limit(axes)
    log_axis(axes, "x")
    legend_above(axes, 4)


def layers(runs: Sequence[Run]) -> Plot | None:
    """Draw the connectivity of each layer, a panel for each network."""
    good = [run for run in usable(runs) if run.last.get("layers")]
    panels = {key: spread(all_, FEW) for key, all_ in grouped(good, setting("model")).items()}
    if not good:
        return None
    bars = [sum(len(run.last["layers"]) for run in shown) for shown in panels.values()]
    heights = [max(1.2, 0.2 * count + 0.4) for count in bars]

    def draw(figure: Figure, theme: Theme) -> None:
        places = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (model, shown) in zip(places, panels.items(), strict=True):
            _layers(axes, shown)
            axes.set_ylabel(model)
        places[-1].set_xlabel("connectivity, %")

    data = [
        {"run": run.name, "layer": name, **counts}
        for run in good
        for name, counts in run.last["layers"].items()
    ]
    caption = (
        "Where the surviving synapses sit. Wide layers give up most; a layer near 0 % is a "
        "bottleneck, and none may die unnoticed."
    )
    size = (5.4, sum(heights) + 0.6 + 0.6 * len(panels))
    return Plot("layers", "Connectivity of each layer", caption, draw, data, size)


def _layers(axes: Axes, runs: Sequence[Run]) -> None:
    names = list(dict.fromkeys(name for run in runs for name in run.last["layers"]))
    shares = np.array([[_share(run, name) for name in names] for run in runs])
    height = 0.8 / len(runs)
    for i, run in enumerate(runs):
        places = np.arange(len(names)) - 0.4 + (i + 0.5) * height
        axes.barh(places, shares[i], height * 0.88, color=colour(i), label=run.label)
    axes.set(yticks=range(len(names)))
    axes.set_yticklabels([name.removesuffix(".weight") for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    alive = shares[shares > 0]
    if alive.size and alive.max() / alive.min() > 20:  # else a length from 0 says it better
        axes.set_xlim(10 ** floor(log10(alive.min())) / 2, alive.max() * 1.1)
        log_axis(axes, "x")
    legend_above(axes)


def _share(run: Run, name: str) -> float:
    layer = run.last["layers"].get(name)
    return 100 * layer["present"] / layer["total"] if layer else float("nan")


FIGURES: tuple[Callable[[Sequence[Run]], Plot | None], ...] = (
    frontier,
    training,
    energy,
    layers,
    theta,
    turnover,
    firing,
    parameters,
)


def draw_all(runs: Sequence[Run]) -> list[Plot]:
    """Return every figure the runs hold something for."""
    return [plot for figure in FIGURES if (plot := figure(runs)) is not None]
