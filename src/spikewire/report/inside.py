"""Figures of the inside of runs: θ, turnover, firing rates, the weights of a dense network."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from spikewire.errors import SpikewireError
from spikewire.report.runs import Run, spread, usable
from spikewire.report.style import Plot, Theme, colour, log_axis, note, whole_numbers
from spikewire.runs.rundir import RunDir
from spikewire.runs.traces import rate_edges

SIGNED = ("gradr", "deepr", "softdeepr")  # methods whose θ has a sign: left of 0 is no synapse


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
    signed = run.config is not None and run.config.method in SIGNED
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
        words = "θ: synapses left of 0 do not exist" if signed else "latent weight"
        axes.set(xlabel=words, ylabel="epoch")
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
        if signed
        else "What the optimizer moves, of every synapse, first epoch on top. Look for how the "
        "population parts into the few that carry the network and the many around 0."
    )
    size = (5.4, 1.8 + 0.28 * len(picks))
    return Plot("theta", "How the hidden parameters move", caption, draw, data, size)


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
        (row["epoch"], row["layers"][layer]) for row in run.curve if layer in row.get("layers", {})
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
        for row in run.curve
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
        place = max(0, len(run.traces.neurons) - 2)  # the last but one: hidden, and late
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
        figure.supylabel("share of neurons, %", fontsize=10)
        panels[-1].set_xlabel("spikes a time step, mean over the test images")

    edges = rate_edges()
    data = [
        {"run": run.name, "neurons": counts(run)[0], "connectivity": run.last["connectivity"],
         "rate_from": edges[0], "rate_to": edges[-1], "counts": counts(run)[1].tolist()}
        for run in good
    ]  # fmt: skip
    names = ", ".join(dict.fromkeys(counts(run)[0] for run in shown))
    order = ", from the best connected run (top) to the sparsest" * (len(shown) > 1)
    caption = (
        f"How often the neurons of a late hidden layer ({names}) fire{order}; logarithmic. At 0 "
        "are the silent ones: fewer synapses, less to drive them."
    )
    title = "Firing rates at several connectivities" if len(shown) > 1 else "Firing rates"
    return Plot("firing", title, caption, draw, data, (5.4, 0.85 * len(shown) + 1.2))


def parameters(runs: Sequence[Run]) -> Plot | None:
    """Draw the distribution of every parameter of a dense network (figure 3)."""
    dense = [r for r in usable(runs) if r.config and r.config.method == "dense" and r.finished]
    if not dense:
        return None
    try:
        weights, _ = RunDir(dense[0].path).load_model()
    except SpikewireError:
        return None
    shown = {n: w.float().flatten().numpy() for n, w in weights.items() if w.numel() > 1}
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)

    def draw(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for axes, (name, values) in zip(panels, shown.items(), strict=False):
            axes.hist(values, 60, color=colour(0), density=True)
            axes.set_yticks([])
            note(axes, name)
        for axes in list(panels)[len(shown) :]:
            axes.set_axis_off()

    data = []
    for name, values in shown.items():
        counts, edges = np.histogram(values, 60)
        ends = {"low": float(edges[0]), "high": float(edges[-1])}
        data.append({"parameter": name, **ends, "counts": counts.tolist()})
    caption = "A dense network's parameters gather around 0: the ground for a prior peaked there."
    size = (5.4, 1.5 * rows + 0.4)
    return Plot("parameters", "Parameters of a dense network", caption, draw, data, size)
