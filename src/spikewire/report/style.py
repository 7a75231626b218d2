"""Style of the figures: palette, themes, axes, and rendering to SVG or PNG."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

# Okabe and Ito's palette without its yellow and black: readable for colour-blind readers, on light
# and dark backgrounds; markers and dashes repeat the distinction for print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C7A3D")
MARKERS = "osD^vPXp*h<>"
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Theme:
    """Colours of a figure.

    Args:
        ink: Text and axes.
        soft: Published results, which stay in the background.
        faint: Grid lines.
        paper: The background.
    """

    ink: str
    soft: str
    faint: str
    paper: str


LIGHT = Theme("#1d2126", "#717a85", "#c3c8ce", "#ffffff")
DARK = Theme("#e8eaed", "#a6adb6", "#454c54", "#16191d")
# placeholders: the page replaces them by its CSS variables, so that one SVG serves both themes
PAGE = Theme("#010203", "#717273", "#a1a2a3", "#fdfcfb")
VARIABLES = {
    PAGE.ink: "var(--ink)",
    PAGE.soft: "var(--soft)",
    PAGE.faint: "var(--faint)",
    PAGE.paper: "var(--card)",
    "#0072b2": "var(--blue)",  # too dark on a dark background
}


@dataclass(frozen=True)
class Plot:
    """A figure that is not drawn yet; `render` draws it.

    Args:
        key: Name of its file and of its element in the page.
        title: Title above the figure.
        caption: What it shows and what to look for.
        draw: Draws on an empty matplotlib figure in the colours of a theme.
        data: The data behind the figure, one dict per row.
        size: Width and height in inches.
    """

    key: str
    title: str
    caption: str
    draw: Callable[[Figure, Theme], None]
    data: list[dict[str, Any]] = field(default_factory=list)
    size: tuple[float, float] = (5.4, 3.6)


def matplotlib_settings(theme: Theme, key: str) -> dict[str, Any]:
    """Return matplotlib settings for a theme; text stays text, and equal data give equal files."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": key,
        "font.size": 10,
        "axes.titlesize": 10,
        "axes.labelsize": 10,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "lines.markersize": 4.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.linewidth": 0.4,
        "text.color": theme.ink,
        "axes.edgecolor": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.titlecolor": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "grid.color": theme.faint,
        "axes.facecolor": theme.paper,
        "figure.facecolor": theme.paper,
        "figure.constrained_layout.h_pad": 0.08,
        "figure.constrained_layout.w_pad": 0.08,
        "text.parse_math": False,
    }


def render(plot: Plot, theme: Theme = LIGHT, kind: str = "svg", dpi: int = 160) -> bytes:
    """Draw a figure and return it as a file.

    The global state of matplotlib is left unchanged.

    Args:
        plot: The figure.
        theme: Its colours: `LIGHT`, `DARK` or your own.
        kind: ``"svg"``, ``"png"`` or another format of matplotlib.
        dpi: Resolution of a PNG.

    Returns:
        The content of the file.

    Example:
        >>> Path("frontier.svg").write_bytes(render(plot_frontier(runs), DARK))
    """
    with matplotlib.rc_context(matplotlib_settings(theme, plot.key)):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=plot.size, layout="constrained")
        plot.draw(figure, theme)
        file = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(file, format=kind, dpi=dpi, metadata=metadata)
    return file.getvalue()


def inline_svg(plot: Plot) -> str:
    """Return the figure as an SVG element in the colours of the page, with unique ids."""
    text = render(plot, PAGE).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r'\bid="', f'id="{plot.key}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{plot.key}-", text)
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box
    return f'<svg {box[0]} role="img" aria-labelledby="{plot.key}-title">{body}'.strip()


def colour(index: int) -> str:
    """Return a colour of the palette; it repeats after the last."""
    return COLOURS[index % len(COLOURS)]


def set_log_scale(axes: Axes, which: str) -> None:
    """Make the x or y axis logarithmic with plain numbers, at 1, 2, 5 if the range is short."""
    low, high = getattr(axes.dataLim, f"interval{which}")
    if not 0 < high < float("inf"):  # a logarithmic axis cannot show zeros only
        return
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 500 else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:.0e}")
    axis.set_minor_formatter(NullFormatter())


def limit_accuracy(axes: Axes, bottom: float | None = None) -> None:
    """Let the axis of accuracies end at 100 %, with room for the markers at its top."""
    axes.set_ylim(bottom=bottom)
    low, high = axes.get_ylim()
    axes.set_ylim(top=min(100.5, high + 0.05 * (high - low)))


def set_epoch_ticks(axes: Axes) -> None:
    """Put the ticks of the x axis at whole numbers, also for a single epoch."""
    low, high = axes.dataLim.intervalx
    if low == high:
        axes.set_xlim(low - 1, high + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def set_legend_above(axes: Axes, columns: int = 3) -> None:
    """Put the legend above the axes, where it hides no data."""
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.12, 1), ncols=columns, borderaxespad=0.4,
        handlelength=1.6, columnspacing=1.1,
    )  # fmt: skip


def set_left_title(axes: Axes, text: str) -> None:
    """Write a short title above the axes, on the left."""
    axes.set_title(text, loc="left")
