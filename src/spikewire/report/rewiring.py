"""The picture of rewiring: synapses per pixel and receptive fields, over training."""

from collections.abc import Sequence

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from spikewire.report.choice import shown_run_with
from spikewire.report.groups import identify, setting
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.runs import Run
from spikewire.report.style import WIDTH, Theme, colour, style_of
from spikewire.runs.snapshots import Snapshots

ROWS = 4  # receptive fields shown
CELL = 0.88  # side of a picture in a grid of unit squares
PRESENT = 0.25  # opacity of the smallest weight that exists


def plot_rewiring(runs: Sequence[Run]) -> Plot | None:
    """Plot where the synapses of the input layer are, over training.

    Args:
        runs: Any runs; one with snapshots of its input layer is shown.

    Returns:
        A map of the synapses per pixel, where the input layer is fully connected, and the weights
        of some of its neurons, one column per epoch; None if no run has snapshots of it.
    """
    run = shown_run_with(runs, lambda run: _kept(run) is not None)
    kept = _kept(run) if run else None
    if run is None or kept is None:
        return None
    rows = _rows(kept)
    mapped = bool(kept.fan_out.size)

    def height(width: float) -> float:
        """Return the height at which square pictures fill a width, in inches."""
        return 0.4 + (width - 0.8) / max(len(kept.epochs), ROWS) * (len(rows) + mapped)

    def draw(figure: Figure, theme: Theme) -> None:
        figure.set_figheight(height(figure.get_figwidth()))
        axes = figure.subplots()
        for column, epoch in enumerate(kept.epochs):
            if mapped:
                _draw_map(axes, run, kept, column)
            for row, neuron in enumerate(rows, mapped):
                _draw_field(axes, run, kept, column, (row, neuron))
            label = "epoch " * (column == 0) + str(epoch)
            axes.text(column + CELL / 2, -0.08, label, ha="center", va="bottom")
        _set_grid(axes, ["synapses"] * mapped + [f"#{neuron}" for neuron in rows], len(kept.epochs))

    size = (WIDTH, height(WIDTH))
    title = "Rewiring of the input layer" if mapped else "Kernels of the first layer"
    return Plot("rewiring", title, _caption(run, kept, mapped), draw, _data(kept), size)


def _kept(run: Run) -> Snapshots | None:
    """Return the snapshots of a run, if they have its input layer."""
    return run.snapshots if run.snapshots is not None and run.snapshots.fields.size else None


def _rows(kept: Snapshots) -> list[int]:
    """Return the neurons that are shown: those with most synapses at the end, in their order."""
    present = (kept.fields[-1] != 0).reshape(kept.fields.shape[1], -1).sum(1)
    return sorted(np.argsort(-present, kind="stable")[:ROWS].tolist())


def _caption(run: Run, kept: Snapshots, mapped: bool) -> str:
    layer = str(kept.layer[0]).removesuffix(".weight")
    first = (
        f"Top: synapses that leave each pixel for {layer}, each map scaled to its largest number; "
        "pixels that carry no information lose theirs. Below: the incoming weights of neurons"
        if mapped
        else f"Kernels of {layer}"
    )
    return (
        f"{run.label}. {first} (blue positive, orange negative, empty: no synapse), summed over "
        f"the channels of the input; of {kept.fields.shape[1]} evenly spaced neurons, those with "
        "most synapses at the end."
    )


def _data(kept: Snapshots) -> list[dict]:
    """Return one row per epoch and picture; the weights are in the run's ``snapshots.npz``."""
    maps = [
        {"epoch": int(epoch), "picture": "synapses per pixel", "values": values.ravel().tolist()}
        for epoch, values in zip(kept.epochs, kept.fan_out, strict=False)
    ]
    fields = [
        {"epoch": int(epoch), "picture": f"inputs of neuron {i}",
         "values": int((kept.fields[e, i] != 0).sum())}
        for e, epoch in enumerate(kept.epochs) for i in _rows(kept)
    ]  # fmt: skip
    return maps + fields


# ---------------------------------------------------------------------- drawing


def fading(shade: str, least: float = 0.0) -> LinearSegmentedColormap:
    """Return a colour map from a transparent to an opaque colour, for light and dark paper."""
    rgb = to_rgb(shade)
    return LinearSegmentedColormap.from_list("fading", [(*rgb, least), (*rgb, 1.0)])


def draw_image(
    axes: Axes,
    values: np.ndarray,
    shade: str,
    high: float,
    least: float = 0.0,
    *,
    extent: tuple[float, float, float, float] | None = None,
) -> None:
    """Draw values as opacity of a colour; 0 is empty.

    Args:
        axes: Where to draw.
        values: The values; those of 0 and below are empty.
        shade: The colour.
        high: The value of full colour.
        least: Opacity of the smallest value above 0.
        extent: Left, right, bottom and top of the picture; None: a unit square per value.
    """
    axes.imshow(
        np.ma.masked_less_equal(values.astype(float), 0), cmap=fading(shade, least), vmin=0,
        vmax=max(high, 1e-12), interpolation="none", aspect="auto", extent=extent,
    )  # fmt: skip


def _draw_map(axes: Axes, run: Run, kept: Snapshots, column: int) -> None:
    """Draw the synapses per pixel of one epoch, scaled to their largest number."""
    values, epoch = kept.fan_out[column], kept.epochs[column]
    shade, place = style_of(setting("method")(run)).colour, _place(0, column)
    draw_image(axes, values, shade, float(values.max()), 0.04, extent=place)
    text = (
        f"{identify([run])}\nepoch {epoch}: {values.sum():,} synapses, up to {values.max():,} "
        f"from one pixel, none from {(values == 0).sum():,} of {values.size:,} pixels"
    )
    _draw_frame(axes, place, text, run)


def _draw_field(axes: Axes, run: Run, kept: Snapshots, column: int, cell: tuple[int, int]) -> None:
    """Draw the weights of a neuron at one epoch, scaled to its largest of all epochs."""
    row, neuron = cell
    high = float(np.abs(kept.fields[:, neuron].astype(np.float32)).max())
    values, place = kept.fields[column, neuron].astype(np.float32), _place(row, column)
    for sign, index in ((1, 0), (-1, 1)):
        if (sign * values > 0).any():
            draw_image(axes, sign * values, colour(index), high, PRESENT, extent=place)
    text = f"{identify([run])}\nepoch {kept.epochs[column]}: {(values != 0).sum():,} inputs"
    _draw_frame(axes, place, text, run)


def _place(row: int, column: int) -> tuple[float, float, float, float]:
    """Return left, right, bottom and top of a picture; rows count downwards."""
    return column, column + CELL, row + CELL, row


def _draw_frame(axes: Axes, place: tuple[float, float, float, float], text: str, run: Run) -> None:
    """Draw a thin frame, which also is what a reader points at."""
    left, right, bottom, top = place
    frame = Rectangle((left, top), right - left, bottom - top, fc="#00000000", lw=0.5, zorder=3)
    frame.set_edgecolor(rcParams["grid.color"])
    axes.add_patch(frame)
    set_mark(frame, text, [run])


def _set_grid(axes: Axes, labels: Sequence[str], columns: int) -> None:
    """Show the grid of pictures without axes, with a label per row."""
    axes.set(xlim=(0, columns), ylim=(len(labels), -0.3), xticks=[], aspect="equal")
    axes.set_yticks([row + CELL / 2 for row in range(len(labels))], labels)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
