"""The look of the figures: one style per method, used in every figure, and the two themes."""

from dataclasses import dataclass
from typing import Any

Dash = str | tuple[int, tuple[float, ...]]

LONG: Dash = (0, (7, 2, 1, 2))
FINE: Dash = (0, (1, 1))
SPARSE: Dash = (0, (10, 3))
DOUBLE: Dash = (0, (4, 1, 1, 1, 1, 1))


@dataclass(frozen=True)
class Style:
    """How a method is drawn.

    Args:
        colour: Its colour.
        marker: Its marker, in matplotlib's letters; no two methods have the same.
        dash: Its line style.
    """

    colour: str
    marker: str
    dash: Dash


# Every colour has a contrast of at least 3 with a white and with a dark background. Where two are
# hard to distinguish, also for a colour-blind reader, markers and dashes differ (a test simulates
# protanopia, deuteranopia and tritanopia).
STYLES: dict[str, Style] = {
    "gradr": Style("#0072b2", "o", "-"),
    "deepr": Style("#d55e00", "s", "--"),
    "budget": Style("#009472", "*", "-."),
    "rigl": Style("#b5479b", "^", ":"),
    "set": Style("#a87a00", "v", "-"),
    "stds": Style("#7f5fd6", "D", "--"),
    "upr": Style("#cc3344", "P", ":"),
    "admm": Style("#6b8b23", "X", "-."),
    "lottery": Style("#9a5b2e", "h", "--"),
    "magnitude": Style("#1c95ab", ">", "--"),
    "softdeepr": Style("#d4689a", "<", "-"),
    "soft": Style("#a935e0", "d", "-."),
    "aptn": Style("#4d7df2", "1", ":"),
    "sampling": Style("#00a500", "2", FINE),
    "similarity": Style("#ff0019", "3", DOUBLE),
    "gated": Style("#ff00cb", "4", SPARSE),
    "dense": Style("#717a85", "p", LONG),
}
OTHER = Style("#8a8f3a", "+", ":")  # a method that is not in the table
MARKERS = "osD^vPXph<>"  # of published results; not the star of our own method
COLOURS = tuple(style.colour for style in STYLES.values())


def style_of(method: str) -> Style:
    """Return the colour, marker and dash of a method, the same in every figure."""
    return STYLES.get(method, OTHER)


def colour(index: int) -> str:
    """Return a colour for something that is not a method; they repeat after the last."""
    return COLOURS[index % len(COLOURS)]


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
}

WIDTH = 5.4  # inches, of a figure that is not given another
NARROW = 4.5  # inches, below which letters are smaller


def matplotlib_settings(theme: Theme, key: str, width: float = WIDTH) -> dict[str, Any]:
    """Return matplotlib settings for a theme; text stays text, and equal data give equal files."""
    letters = 10 if width >= NARROW else 8
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": key,
        "pdf.fonttype": 42,  # TrueType, which journals accept
        "path.simplify": False,
        "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial"],
        "font.size": letters,
        "axes.titlesize": letters,
        "axes.labelsize": letters,
        "figure.labelsize": letters,
        "legend.fontsize": letters - 1,
        "legend.frameon": False,
        "lines.linewidth": 1.6 if width >= NARROW else 1.2,
        "lines.markersize": 5 if width >= NARROW else 4,
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
