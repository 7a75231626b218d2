"""Figures of the internals of runs: θ, turnover, firing rates, parameters of a dense network."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from spikewire.errors import SpikewireError
from spikewire.report.axes import set_left_title, set_log_scale, set_whole_ticks
from spikewire.report.choice import shown_layer, shown_run
from spikewire.report.groups import identify, repetitions
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.runs import Run, spread, usable
from spikewire.report.style import WIDTH, Theme, colour, style_of
from spikewire.runs.rundir import RunDir
from spikewire.runs.traces import Traces, rate_edges

# methods in which a synapse with θ < 0 is absent
SIGNED = ("gradr", "deepr", "softdeepr", "sampling")
RIDGES = 9  # epochs shown in the figure of θ
RATE_PANELS = 6  # runs shown in the figure of firing rates
MAX_MARKS = 60  # epochs of a line that have a mark each
PARAMETER_BINS = 60
MAX_PARAMETERS = 24  # panels of the figure of parameters


def _colour(run: Run) -> str:
    return style_of(run.config.method if run.config else "").colour


def _layer_title(run: Run, layer: str) -> str:
    return f"{run.label}, {layer.removesuffix('.weight')}"


# ---------------------------------------------------------------------- latent parameters


def plot_theta(runs: Sequence[Run]) -> Plot | None:
    """Plot the distribution of θ over epochs as ridges (figure 6a of the paper)."""
    run = shown_run(runs)
    if run is None or run.traces is None or not run.last.get("layers"):
        return None
    traces, layer = run.traces, shown_layer(run)
    if layer not in traces.layers or not traces.epochs:
        return None
    signed = run.config is not None and run.config.method in SIGNED
    picks = sorted({round(i) for i in np.linspace(0, len(traces.epochs) - 1, RIDGES)})

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _draw_ridges(axes, run, traces.layers.index(layer), picks, theme)
        axes.set(xlabel="θ: synapses left of 0 are absent" if signed else "latent weight")
        axes.set(ylabel="epoch")
        set_left_title(axes, _layer_title(run, layer))

    size = (WIDTH, 1.8 + 0.28 * len(picks))
    title, caption = "Latent parameters over training", _theta_caption(signed)
    return Plot("theta", title, caption, draw, _theta_data(traces), size)


def _theta_caption(signed: bool) -> str:
    if signed:
        return (
            "Distribution of the latent parameter θ over all synapses of a layer, first epoch at "
            "the top. Penalty or prior moves θ to the left; synapses that reduce the loss stay "
            "right of 0, and synapses left of 0 can be regrown."
        )
    return (
        "Distribution of the latent weight over all synapses of a layer, first epoch at the top. "
        "Look for the separation into a few large weights and many around 0."
    )


def _draw_ridges(axes: Axes, run: Run, index: int, picks: list[int], theme: Theme) -> None:
    """Draw one density per picked epoch, each below the one before."""
    traces, tint = run.traces, _colour(run)
    assert traces is not None
    for row, i in enumerate(picks):
        x, y = _density(traces.theta[i][index], traces.theta_range[i][index])
        base, shade = -row, 0.35 + 0.6 * row / max(1, len(picks) - 1)
        crest = base + 1.7 * y
        outline = ([x[0], *x, x[-1]], [base, *crest, base])
        (ridge,) = axes.fill(*outline, color=tint, alpha=shade, lw=0, zorder=row)
        set_mark(ridge, f"{identify([run])}\nepoch {traces.epochs[i]}", [run])
        axes.plot(x, crest, color=theme.paper, lw=0.8, zorder=row + 0.5)
    axes.axvline(0, color=theme.ink, lw=1, ls="--", zorder=99)
    axes.set_yticks([-row for row in range(len(picks))], [str(traces.epochs[i]) for i in picks])
    axes.grid(visible=False)


def _density(counts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return bin centres and smoothed heights up to 1, without the outliers in the end bins."""
    edges = np.linspace(ends[0], ends[1], len(counts) + 1)
    smooth = np.convolve(counts, [0.25, 0.5, 0.25], mode="same")[1:-1]
    return ((edges[:-1] + edges[1:]) / 2)[1:-1], smooth / max(1.0, float(smooth.max()))


def _theta_data(traces: Traces) -> list[dict]:
    return [
        {"epoch": traces.epochs[i], "layer": name, "low": float(traces.theta_range[i][k][0]),
         "high": float(traces.theta_range[i][k][1]), "counts": traces.theta[i][k].tolist()}
        for i in range(len(traces.epochs)) for k, name in enumerate(traces.layers)
    ]  # fmt: skip


# ---------------------------------------------------------------------- turnover


def plot_turnover(runs: Sequence[Run]) -> Plot | None:
    """Plot pruned and regrown synapses per epoch (figure 6b of the paper)."""
    run = shown_run(runs)
    if run is None or not run.last.get("layers"):
        return None
    layer = shown_layer(run)
    if not any(_turnover(run, layer, key) for key in ("pruned", "regrown")):
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _draw_turnover(axes, run, layer)
        axes.set(xlabel="epoch", ylabel="synapses per epoch")
        set_log_scale(axes, "y")
        set_whole_ticks(axes)
        set_left_title(axes, _layer_title(run, layer))
        axes.legend(loc="upper right")

    data = [
        {"epoch": row["epoch"], "layer": name, **counts}
        for row in run.curve
        for name, counts in row.get("layers", {}).items()
    ]
    caption = (
        "Synapses pruned and regrown within each epoch, logarithmic. At first nearly all changes "
        "are pruning; where the lines meet, the connectivity is constant while synapses are still "
        "replaced."
    )
    return Plot("turnover", "Pruned and regrown synapses", caption, draw, data)


def _turnover(run: Run, layer: str, key: str) -> list[tuple[int, int]]:
    """Return epochs and numbers of synapses pruned or regrown, where there were any."""
    rows = [row for row in run.curve if layer in row.get("layers", {})]
    points = [(row["epoch"], row["layers"][layer][key]) for row in rows]
    return [point for point in points if point[1]]


def _draw_turnover(axes: Axes, run: Run, layer: str) -> None:
    for key, shade, marker in (("pruned", colour(1), "v"), ("regrown", colour(2), "^")):
        if points := _turnover(run, layer, key):
            x, y = zip(*points, strict=True)
            lines = axes.plot(x, y, color=shade, marker=marker, label=key, markevery=[])
            if len(points) <= MAX_MARKS:
                lines += [axes.plot(*point, color=shade, marker=marker)[0] for point in points]
            for line, (epoch, count) in zip(lines, [points[-1], *points], strict=False):
                text = f"{identify([run])}\nepoch {epoch}: {count:,} synapses {key}"
                set_mark(line, text, [run])


# ---------------------------------------------------------------------- firing rates


def plot_firing(runs: Sequence[Run]) -> Plot | None:
    """Plot the distribution of firing rates at several connectivities (figure 7 of the paper)."""
    good = [run for run in usable(runs) if run.traces and run.traces.rates and run.traces.neurons]
    good = [run for run in good if _late_rates(run)[1].any()]
    settings = [group.first for group in repetitions(good)]  # one panel per setting, not seed
    shown = spread(settings, RATE_PANELS)
    if not shown:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axes, run in zip(panels, shown, strict=True):
            _draw_rates(axes, run)
        figure.supylabel("fraction of neurons, %")
        panels[-1].set_xlabel("mean spikes per time step")

    names = ", ".join(dict.fromkeys(_late_rates(run)[0] for run in shown))
    order = ", by decreasing connectivity from top to bottom" * (len(shown) > 1)
    count = len(settings)
    few = f" {len(shown)} of {count} settings are shown." * (len(shown) < count)
    caption = (
        f"Firing rates of the neurons of a late hidden layer ({names}){order}; logarithmic. The "
        f"bar at 0 shows the silent neurons; with few synapses there are often more of them.{few}"
    )
    title = "Firing rates at several connectivities" if len(shown) > 1 else "Firing rates"
    data, size = [_rates_data(run) for run in good], (WIDTH, 0.85 * len(shown) + 1.2)
    return Plot("firing", title, caption, draw, data, size)


def _late_rates(run: Run) -> tuple[str, np.ndarray]:
    """Return name and counts of the last but one spiking layer, at the last traced epoch."""
    assert run.traces
    index = max(0, len(run.traces.neurons) - 2)
    return run.traces.neurons[index], run.traces.rates[-1][index]


def _draw_rates(axes: Axes, run: Run) -> None:
    _, counts = _late_rates(run)
    edges = np.array(rate_edges())
    steps = axes.stairs(100 * counts / counts.sum(), edges, fill=True, color=_colour(run))
    silent = 100 * counts[0] / counts.sum()
    text = f"{run.label} · {identify([run])}\n{silent:.1f}% of the neurons fire in under 2%"
    set_mark(steps, f"{text} of the time steps", [run])
    axes.set(yscale="log", ylim=(0.2, 100), yticks=[1, 10, 100])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    text = f"connectivity {100 * run.last['connectivity']:.3g}% ({run.label})"
    axes.text(0.99, 0.88, text, transform=axes.transAxes, ha="right", va="top")


def _rates_data(run: Run) -> dict:
    name, counts = _late_rates(run)
    edges = rate_edges()
    return {
        "run": run.name, "neurons": name, "connectivity": run.last["connectivity"],
        "rate_from": edges[0], "rate_to": edges[-1], "counts": counts.tolist(),
    }  # fmt: skip


# ---------------------------------------------------------------------- parameters


def plot_parameters(runs: Sequence[Run]) -> Plot | None:
    """Plot the distribution of every parameter of a dense network (figure 3 of the paper)."""
    dense = [r for r in usable(runs) if r.config and r.config.method == "dense" and r.finished]
    if not dense:
        return None
    found = ((run, _parameters(run)) for run in dense)
    run, shown = next(((run, values) for run, values in found if values), (dense[0], {}))
    if not shown:
        return None
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)

    def draw(figure: Figure, theme: Theme) -> None:
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, (name, values) in zip(panels, shown.items(), strict=False):
            bars = axes.hist(values, PARAMETER_BINS, color=_colour(run), density=True)[2]
            set_mark(bars, f"{identify([run])}\n{name}: {values.size:,} values", [run])
            axes.set_yticks([])
            set_left_title(axes, name)
        for axes in panels[len(shown) :]:
            axes.set_axis_off()

    data = [_parameter_data(name, values) for name, values in shown.items()]
    caption = (
        "Distribution of each parameter of a dense network. Most are close to 0, which motivates a "
        "prior that is largest at 0."
    )
    size = (WIDTH, 1.5 * rows + 0.4)
    return Plot("parameters", "Parameters of a dense network", caption, draw, data, size)


def _parameters(run: Run) -> dict[str, np.ndarray]:
    """Return the parameters of a network that can be drawn, by name."""
    try:
        weights, _ = RunDir(run.path).load_model()
    except SpikewireError:
        return {}
    floats = {
        name: weight.double().flatten().numpy()
        for name, weight in weights.items()
        if weight.is_floating_point() and weight.numel() > 1 and name.isprintable()
    }
    drawable = {n: x for n, x in floats.items() if np.isfinite(x).all() and np.abs(x).max() < 1e30}
    return dict(list(drawable.items())[:MAX_PARAMETERS])


def _parameter_data(name: str, values: np.ndarray) -> dict:
    counts, edges = np.histogram(values, PARAMETER_BINS)
    ends = {"low": float(edges[0]), "high": float(edges[-1])}
    return {"parameter": name, **ends, "counts": counts.tolist()}
