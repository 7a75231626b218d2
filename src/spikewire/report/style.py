"""How figures look: palette, themes, and one drawing turned into SVG or PNG."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

# Okabe and Ito's palette without its yellow and black: readable for colour-blind readers, on both
# grounds; markers and dashes say the same again for print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C7A3D")
MARKERS = "osD^vPX"
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Theme:
    """Ink for text and axes, soft for what stands back, faint for grids, paper for the ground."""

    ink: str
    soft: str
    faint: str
    paper: str


LIGHT = Theme("#1d2126", "#717a85", "#c3c8ce", "#ffffff")
DARK = Theme("#e8eaed", "#a6adb6", "#454c54", "#16191d")
# colours no one would choose: they are replaced by the page's own, so that one drawing serves both
PAGE = Theme("#010203", "#717273", "#a1a2a3", "#fdfcfb")
VARIABLES = {
    PAGE.ink: "var(--ink)",
    PAGE.soft: "var(--soft)",
    PAGE.faint: "var(--faint)",
    PAGE.paper: "var(--card)",
    "#0072b2": "var(--blue)",  # the one of the palette that is dull on a dark ground
}


@dataclass(frozen=True)
class Plot:
    """A figure still to be drawn: what it shows, what to see in it, and the data behind it."""

    key: str
    title: str
    caption: str
    draw: Callable[[Figure, Theme], None]
    data: list[dict[str, Any]] = field(default_factory=list)
    size: tuple[float, float] = (5.4, 3.6)


def settings(theme: Theme, key: str) -> dict[str, Any]:
    """Return matplotlib's settings for a theme: text stays text, the same data the same file."""
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
    """Draw `plot` and return the file's bytes; no global state of matplotlib is left changed."""
    with matplotlib.rc_context(settings(theme, plot.key)):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=plot.size, layout="constrained")
        plot.draw(figure, theme)
        file = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(file, format=kind, dpi=dpi, metadata=metadata)
    return file.getvalue()


def inline(plot: Plot) -> str:
    """Return the SVG as an element of the page, in the page's colours, with names of its own."""
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
    """Return the palette's colour, over again beyond its end."""
    return COLOURS[index % len(COLOURS)]


def log_axis(axes: Axes, which: str) -> None:
    """Make an axis logarithmic with plain numbers, at 1, 2, 5 where it is short."""
    low, high = getattr(axes.dataLim, f"interval{which}")
    if not 0 < high < float("inf"):  # a log axis has no place for dead networks alone
        return
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 500 else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:.0e}")
    axis.set_minor_formatter(NullFormatter())


def whole_numbers(axes: Axes) -> None:
    """Let the ticks of the epochs be epochs, also where there is but one."""
    low, high = axes.dataLim.intervalx
    if low == high:
        axes.set_xlim(low - 1, high + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def legend_above(axes: Axes, columns: int = 3) -> None:
    """Put the legend over the axes, where it hides no data."""
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.12, 1), ncols=columns, borderaxespad=0.4,
        handlelength=1.6, columnspacing=1.1,
    )  # fmt: skip


def note(axes: Axes, text: str) -> None:
    """Write a short title above the axes, at the left."""
    axes.set_title(text, loc="left")
