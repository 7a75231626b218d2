"""Axes of the figures: logarithmic scales with plain numbers, limits, ticks, titles, legends."""

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

LETTER = 0.6  # mean width of a letter, of its height
HANDLE = 4.5  # width of a legend's line and the space around it, in letters' heights


def set_log_scale(axes: Axes, which: str) -> None:
    """Make the x or y axis logarithmic with plain numbers, at 1, 2, 5 if the range is short."""
    low, high = getattr(axes.dataLim, f"interval{which}")
    if not 0 < high < float("inf"):  # a logarithmic axis cannot show zeros only
        return
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 500 else (1,)))
    axis.set_major_formatter(lambda value, _: short_number(value))
    axis.set_minor_formatter(NullFormatter())


def short_number(value: float) -> str:
    """Return a number for a tick: 0.5, 20, 5k, 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def limit_accuracy(axes: Axes, lowest: float) -> None:
    """Let the axis of accuracies end at 100 %, with room for the markers at its top.

    It begins 3 points below the lowest accuracy: a difference of one image does not fill the axis.
    """
    axes.set_ylim(bottom=max(0, min(lowest, 99) - 3))
    low, high = axes.get_ylim()
    axes.set_ylim(top=min(100.5, high + 0.05 * (high - low)))


def set_whole_ticks(axes: Axes) -> None:
    """Put the ticks of the x axis at whole numbers, also for a single epoch."""
    low, high = axes.dataLim.intervalx
    if low == high:
        axes.set_xlim(low - 1, high + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def set_legend_above(axes: Axes) -> None:
    """Put the legend above the axes, where it hides no data, in as many columns as fit."""
    labels = axes.get_legend_handles_labels()[1]
    if not labels:
        return
    figure = axes.get_figure()
    assert figure is not None
    height = (rcParams["font.size"] - 1) / 72
    widest = (LETTER * max(map(len, labels)) + HANDLE) * height
    columns = max(1, min(4, int(figure.bbox.width / figure.dpi / widest)))
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.12, 1), ncols=columns, borderaxespad=0.4,
        handlelength=2.6, columnspacing=1.1,
    )  # fmt: skip


def set_left_title(axes: Axes, text: str) -> None:
    """Write a short title above the axes, on the left."""
    axes.set_title(text, loc="left")
