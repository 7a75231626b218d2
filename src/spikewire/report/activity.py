"""The figure of one test image on its way through the layers: spikes and membrane potentials."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.report.axes import set_whole_ticks
from spikewire.report.choice import dense_twins, is_dense, shown_run_with
from spikewire.report.groups import identify, setting
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.rewiring import draw_image
from spikewire.report.runs import Run, spread
from spikewire.report.style import WIDTH, Theme, style_of
from spikewire.runs.snapshots import Snapshots, even_indices

MAX_LAYERS = 4


def plot_activity(runs: Sequence[Run]) -> Plot | None:
    """Plot spikes and membrane potentials for the first test image, dense against sparse.

    Args:
        runs: Any runs; one that has kept its activity is shown, next to a dense run of the same
            network if there is one.

    Returns:
        Per spiking layer a raster and the trace of one neuron; None if no run has kept any.
    """
    run = shown_run_with(runs, lambda run: _kept(run) is not None)
    if run is None:
        return None
    pair = [run] if is_dense(run) else [*_comparable(run, runs)[:1], run]
    kept = _kept(run)
    assert kept is not None
    layers = spread(list(range(len(kept.neurons))), MAX_LAYERS)
    pictured = int(kept.image.size > 0)

    def draw(figure: Figure, theme: Theme) -> None:
        heights = [1.6] * pictured + [2.2, 1.3] * len(layers)
        grid = figure.subplots(
            len(heights), len(pair), squeeze=False, sharey="row", height_ratios=heights
        )
        for column, member in zip(grid.T, pair, strict=True):
            if pictured:
                _draw_picture(column[0], kept)
            _draw_run(column[pictured:], member, run, layers, theme)
            column[0].set_title(member.label, loc="left")
        for row, layer in enumerate(layers):
            grid[pictured + 2 * row, 0].set_ylabel(f"{kept.neurons[layer]}\nneuron")
            grid[pictured + 2 * row + 1, 0].set_ylabel("potential")
        for axes in grid[pictured:-1].flat:
            axes.tick_params(labelbottom=False)
        for axes in grid[-1]:
            axes.set_xlabel("time step")
        for axes in grid[pictured:].flat:
            set_whole_ticks(axes)

    size = (WIDTH, 0.7 + 0.9 * pictured + 1.9 * len(layers))
    title = "One test image through the layers"
    return Plot("activity", title, _caption(pair, kept), draw, _data(pair), size)


def _kept(run: Run) -> Snapshots | None:
    """Return the snapshots of a run, if they have its activity."""
    return run.snapshots if run.snapshots is not None and run.snapshots.spikes.size else None


def _comparable(run: Run, runs: Sequence[Run]) -> list[Run]:
    """Return dense runs whose activity has the same layers and time steps."""
    mine = _kept(run)
    return [
        other
        for other in dense_twins(run, runs)
        if mine is not None
        and (theirs := _kept(other)) is not None
        and theirs.spikes.shape == mine.spikes.shape
        and theirs.sizes.tolist() == mine.sizes.tolist()
    ]


def _caption(pair: Sequence[Run], kept: Snapshots) -> str:
    names = " and ".join(run.label for run in pair)
    return (
        f"The first test image, of class {kept.label[0]}, in {names}. Each raster shows up to 48 "
        "evenly spaced neurons of a layer, a mark per spike. Below it, for the one of them that "
        "fires most in the sparse network: its membrane potential before each reset, and the "
        "threshold (dashed)."
    )


def _data(pair: Sequence[Run]) -> list[dict]:
    rows = []
    for run in pair:
        kept = _kept(run)
        assert kept is not None
        for i, name in enumerate(kept.neurons.tolist()):
            for neuron, index in enumerate(even_indices(int(kept.sizes[i]), kept.spikes.shape[2])):
                fired = np.flatnonzero(kept.spikes[i, :, neuron])
                rows.append(
                    {"run": run.name, "layer": name, "neuron": int(index),
                     "time_steps_of_spikes": fired.tolist()}
                )  # fmt: skip
    return rows


# ---------------------------------------------------------------------- drawing


def _draw_run(
    column: np.ndarray, run: Run, subject: Run, layers: Sequence[int], theme: Theme
) -> None:
    """Draw all layers of a run; the neuron traced is chosen in `subject`."""
    kept, chosen = _kept(run), _kept(subject)
    assert kept is not None
    assert chosen is not None
    for row, layer in enumerate(layers):
        count = min(int(kept.sizes[layer]), kept.spikes.shape[2])
        neuron = int(chosen.spikes[layer, :, :count].sum(0).argmax())
        _draw_raster(column[2 * row], run, kept, layer, count)
        _draw_potential(column[2 * row + 1], run, kept, layer, neuron, theme)


def _draw_picture(axes: Axes, kept: Snapshots) -> None:
    """Draw the input; dark is bright on light paper, as ink."""
    image = kept.image if kept.image.shape[2] == 3 else 255 - kept.image[:, :, 0]
    axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="none", aspect="equal")
    axes.set_anchor("W")
    axes.set_axis_off()


def _draw_raster(axes: Axes, run: Run, kept: Snapshots, layer: int, count: int) -> None:
    spikes = kept.spikes[layer, :, :count]
    draw_image(axes, spikes.T, style_of(setting("method")(run)).colour, 1.0)
    axes.images[0].set_extent((0.5, len(spikes) + 0.5, count, 0))
    axes.grid(visible=False)
    axes.set(yticks=[0, count], xlim=(0.5, len(spikes) + 0.5))
    text = f"{identify([run])}\n{kept.neurons[layer]}: {int(spikes.sum())} spikes of {count}"
    set_mark(axes.patch, f"{text} neurons in {len(spikes)} time steps", [run])


def _draw_potential(
    axes: Axes, run: Run, kept: Snapshots, layer: int, neuron: int, theme: Theme
) -> None:
    style, values = style_of(setting("method")(run)), kept.membrane[layer, :, neuron]
    steps = np.arange(1, len(values) + 1)
    (line,) = axes.plot(steps, values, color=style.colour, lw=1.2)
    axes.set_xlim(0.5, len(values) + 0.5)
    fired = kept.spikes[layer, :, neuron] > 0
    axes.plot(steps[fired], values[fired], ls="", color=style.colour, marker="o", ms=3)
    axes.axhline(float(kept.thresholds[layer]), color=theme.soft, lw=0.8, ls="--")
    index = int(even_indices(int(kept.sizes[layer]), kept.spikes.shape[2])[neuron])
    text = f"{identify([run])}\n{kept.neurons[layer]}, neuron {index}: {int(fired.sum())} spikes"
    set_mark(line, text, [run])
