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


def usable(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with something to draw, the best connected first."""
    good = [run for run in runs if run.usable]
    return sorted(good, key=lambda run: (-run.last["connectivity"], run.name))


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


def spread(runs: Sequence[Run], count: int) -> list[Run]:
    """Return at most `count` runs, evenly over those sorted by connectivity."""
    if len(runs) <= count:
        return list(runs)
    return [runs[round(i * (len(runs) - 1) / (count - 1))] for i in range(count)]


# ---------------------------------------------------------------------- inside one run


def subject(runs: Sequence[Run]) -> Run | None:
    """Return the run whose inside is shown: traced, rewired, in the middle of the field."""
    good = [
        run
        for run in usable(runs)
        if run.traces and run.config and run.config.method not in ("dense",)
    ]
    rewiring = [run for run in good if run.config and run.config.method == "gradr"] or good
    return rewiring[len(rewiring) // 2] if rewiring else None


def heart(run: Run) -> str:
    """Return the layer to look at: the second convolution, else the largest."""
    sizes = {name: counts["total"] for name, counts in run.last["layers"].items()}
    convolutions = [name for name in sizes if "conv" in name]
    return convolutions[1] if len(convolutions) > 1 else max(sizes, key=lambda name: sizes[name])


def theta(runs: Sequence[Run]) -> Plot | None:
    """Ridges of theta over epochs (figure 6a)."""
    run = subject(runs)
    if run is None or run.traces is None or not run.last.get("layers"):
        return None
    traces, layer = run.traces, heart(run)
    place = traces.layers.index(layer)
    picks = sorted({round(i) for i in np.linspace(0, len(traces.epochs) - 1, 9)})

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for row, i in enumerate(picks):
            x, y = _density(traces.theta[i][place], traces.theta_range[i][place])
            base, shade = -row, 0.35 + 0.6 * row / max(1, len(picks) - 1)
            crest = base + 1.7 * y
            axes.fill_between(x, base, crest, color=colour(0), alpha=shade, lw=0, zorder=row)
            axes.plot(x, crest, color=theme.paper, lw=0.8, zorder=row + 0.5)
        axes.axvline(0, color=theme.ink, lw=1, ls="--", zorder=99)
        axes.set(xlabel="θ: synapses left of 0 do not exist", ylabel="epoch")
        axes.set_yticks([-row for row in range(len(picks))], [str(traces.epochs[i]) for i in picks])
        axes.grid(visible=False)
        note(axes, f"{run.label}, {layer.removesuffix('.weight')}")

    data = [
        {"epoch": traces.epochs[i], "layer": name, "low": float(traces.theta_range[i][k][0]),
         "high": float(traces.theta_range[i][k][1]), "counts": traces.theta[i][k].tolist()}
        for i in range(len(traces.epochs)) for k, name in enumerate(traces.layers)
    ]  # fmt: skip
    caption = (
        "The hidden parameter θ of every synapse, first epoch on top. The prior drags the whole "
        "population left; what the loss needs stays right of 0, what lies left of it may return."
    )
    return Plot("theta", "How the hidden parameters move", caption, draw, data, (5.4, 4.2))


def _density(counts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return centres and a smoothed height of at most 1, without the outliers in the end bins."""
    edges = np.linspace(ends[0], ends[1], len(counts) + 1)
    smooth = np.convolve(counts, [0.25, 0.5, 0.25], mode="same")[1:-1]
    return ((edges[:-1] + edges[1:]) / 2)[1:-1], smooth / max(1.0, float(smooth.max()))


def turnover(runs: Sequence[Run]) -> Plot | None:
    """Pruned and regrown synapses of each epoch (figure 6b)."""
    run = subject(runs)
    if run is None or not run.last.get("layers"):
        return None
    layer = heart(run)
    rows = [
        (row["epoch"], row["layers"][layer])
        for row in run.history
        if layer in row.get("layers", {})
    ]

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for key, shade, marker in (("pruned", colour(1), "v"), ("regrown", colour(2), "^")):
            points = [(epoch, counts[key]) for epoch, counts in rows if counts[key]]
            if points:
                x, y = zip(*points, strict=True)
                axes.plot(x, y, color=shade, marker=marker, label=key)
        axes.set(xlabel="epoch", ylabel="synapses an epoch")
        log_axis(axes, "y")
        whole_numbers(axes)
        note(axes, f"{run.label}, {layer.removesuffix('.weight')}")
        axes.legend(loc="upper right")

    data = [
        {"epoch": row["epoch"], "layer": name, **counts}
        for row in run.history
        for name, counts in row.get("layers", {}).items()
    ]
    caption = (
        "Synapses that vanished and that came back within each epoch, logarithmic. Early on nearly "
        "all of it is pruning; where the lines meet, the wiring changes at a constant size."
    )
    return Plot("turnover", "Pruned and regrown synapses", caption, draw, data)


def firing(runs: Sequence[Run]) -> Plot | None:
    """Distribution of neurons' firing rates at several connectivities (figure 7)."""
    good = [run for run in usable(runs) if run.traces and run.traces.rates and run.traces.neurons]
    shown = spread(good, 6)
    if not shown:
        return None

    def counts(run: Run) -> tuple[str, np.ndarray]:
        assert run.traces
        place = max(0, len(run.traces.neurons) - 2)  # what hears the first fully connected layer
        return run.traces.neurons[place], run.traces.rates[-1][place]

    def draw(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        edges = np.array(rate_edges())
        for i, (axes, run) in enumerate(zip(panels, shown, strict=True)):
            _, values = counts(run)
            axes.stairs(100 * values / values.sum(), edges, fill=True, color=colour(i))
            axes.set(yscale="log", ylim=(0.2, 100), yticks=[1, 10, 100])
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter("{x:g}")
            text = f"{100 * run.last['connectivity']:.3g} % connected ({run.label})"
            axes.text(0.99, 0.88, text, transform=axes.transAxes, ha="right", va="top")
        figure.supylabel("share of neurons, %", fontsize=9)
        panels[-1].set_xlabel("spikes a time step, mean over the test images")

    edges = rate_edges()
    data = [
        {"run": run.name, "neurons": counts(run)[0], "connectivity": run.last["connectivity"],
         "rate_from": edges[0], "rate_to": edges[-1], "counts": counts(run)[1].tolist()}
        for run in good
    ]  # fmt: skip
    caption = (
        "How often the neurons after the first fully connected layer fire, from the best connected "
        "run (top) to the sparsest. At 0 are the silent ones: fewer synapses, less to drive them."
    )
    return Plot(
        "firing", "Firing rates at several connectivities", caption, draw, data,
        (5.4, 0.8 * len(shown) + 1.2),
    )  # fmt: skip


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
