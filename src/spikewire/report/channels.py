"""The figure of convolutions: how many weights of each kernel are kept, per pair of channels."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.errors import SpikewireError
from spikewire.report.axes import set_left_title
from spikewire.report.choice import shown_run_with
from spikewire.report.groups import identify, setting
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.rewiring import draw_image
from spikewire.report.runs import Run, spread
from spikewire.report.style import WIDTH, Theme, style_of
from spikewire.runs.rundir import RunDir

MAX_LAYERS = 6
MAX_CELLS = 64  # rows and columns of a map; more are averaged
COLUMNS = 3


def plot_channels(runs: Sequence[Run]) -> Plot | None:
    """Plot how many weights each kernel keeps, by input and output channel.

    Args:
        runs: Any runs; a finished one with convolutions is shown.

    Returns:
        One map per convolution, evenly spaced ones if there are many; None if there is none.
    """
    run = shown_run_with(runs, _named_convolution) or shown_run_with(runs, lambda x: x.finished)
    kept = _kept_per_pair(run) if run else {}
    if run is None or not kept:
        return None
    shown = dict(spread(list(kept.items()), MAX_LAYERS))
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)

    def draw(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, (name, counts) in zip(panels, shown.items(), strict=False):
            _draw_map(axes, run, name, counts)
        for axes in panels[len(shown) :]:
            axes.set_axis_off()
        figure.supylabel("output channel")
        figure.supxlabel("input channel")

    caption = (
        f"{run.label}. Weights kept of each kernel: empty where none is left, so that the pair of "
        "channels is not connected; full colour for a whole kernel. Empty rows are channels that "
        "compute nothing, empty columns channels that nothing reads."
    )
    size = (WIDTH, 0.6 + 1.75 * rows)
    return Plot("channels", "Kernels kept per pair of channels", caption, draw, _data(kept), size)


def _named_convolution(run: Run) -> bool:
    """Return whether a finished run has a layer called so; only then its network is read."""
    return run.finished and any("conv" in name for name in run.last.get("layers", {}))


def _kept_per_pair(run: Run) -> dict[str, np.ndarray]:
    """Return ``[output, input]`` weights kept per kernel, as a fraction, by layer."""
    try:
        _, masks = RunDir(run.path).load_model()
    except SpikewireError:
        return {}
    kernels = {name: mask for name, mask in masks.items() if mask.ndim == 4 and name.isprintable()}
    return {
        name: mask.flatten(2).double().mean(2).numpy()
        for name, mask in kernels.items()
        if mask.numel()
    }


def _draw_map(axes: Axes, run: Run, name: str, kept: np.ndarray) -> None:
    shade = style_of(setting("method")(run)).colour
    draw_image(axes, _averaged(kept), shade, 1.0, 0.08)
    height, width = kept.shape
    axes.images[0].set_extent((0, width, height, 0))
    axes.set(xticks=[0, width], yticks=[0, height], xlim=(0, width), ylim=(height, 0))
    axes.grid(visible=False)
    set_left_title(axes, name.removesuffix(".weight"))
    empty = (kept == 0).mean()
    text = f"{identify([run])}\n{name}: {kept.mean():.2%} of the weights"
    set_mark(axes.patch, f"{text}, {empty:.1%} of the kernels empty", [run])


def _averaged(values: np.ndarray) -> np.ndarray:
    """Return at most `MAX_CELLS` rows and columns: means over neighbours."""
    for axis in (0, 1):
        size = values.shape[axis]
        starts = np.unique(np.linspace(0, size, min(size, MAX_CELLS) + 1).astype(int)[:-1])
        widths = np.diff([*starts, size])
        shape = (-1, 1) if axis == 0 else (1, -1)
        values = np.add.reduceat(values, starts, axis) / widths.reshape(shape)
    return values


def _data(kept: dict[str, np.ndarray]) -> list[dict]:
    return [
        {
            "layer": name,
            "output_channels": counts.shape[0],
            "input_channels": counts.shape[1],
            "connectivity": float(counts.mean()),
            "empty_kernels": float((counts == 0).mean()),
            "empty_outputs": int((counts.sum(1) == 0).sum()),
            "unread_inputs": int((counts.sum(0) == 0).sum()),
        }
        for name, counts in kept.items()
    ]
