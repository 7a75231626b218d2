"""A figure that is not drawn yet, and its rendering to SVG, PNG or PDF."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from spikewire.errors import check
from spikewire.report.marks import Numbers, write_marks
from spikewire.report.style import LIGHT, PAGE, VARIABLES, WIDTH, Theme, matplotlib_settings

WIDTHS = (2.0, 20.0)  # inches
NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # equal data give equal files


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
    size: tuple[float, float] = (WIDTH, 3.6)


def render(
    plot: Plot,
    theme: Theme = LIGHT,
    kind: str = "svg",
    dpi: int = 160,
    *,
    width: float | None = None,
) -> bytes:
    """Draw a figure and return it as a file.

    The global state of matplotlib is left unchanged. In an SVG every mark has a title with the run,
    its seed and values, which browsers show on hover.

    Args:
        plot: The figure.
        theme: Its colours: `LIGHT`, `DARK` or your own.
        kind: ``"svg"``, ``"png"``, ``"pdf"`` or another format of matplotlib.
        dpi: Resolution of a PNG.
        width: Width in inches, such as 3.3 for one column of a paper; letters are then smaller.
            None: that of the figure.

    Returns:
        The content of the file.

    Raises:
        SpikewireError: The width is not in [2, 20].

    Example:
        >>> Path("frontier.svg").write_bytes(render(plot_frontier(runs), DARK))
    """
    content = _draw(plot, theme, kind, dpi, scaled_size(plot.size, width))
    return write_marks(_compact(content)).encode() if kind == "svg" else content


def _draw(plot: Plot, theme: Theme, kind: str, dpi: int, size: tuple[float, float]) -> bytes:
    """Return the file as matplotlib writes it."""
    with matplotlib.rc_context(matplotlib_settings(theme, plot.key, size[0])):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=size, layout="constrained")
        plot.draw(figure, theme)
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=dpi, metadata=NO_DATE.get(kind))
    return file.getvalue()


def check_width(width: float | None, name: str = "width") -> None:
    """Check a width in inches; `name` is what the message calls it.

    Raises:
        SpikewireError: The width is not in [2, 20].
    """
    low, high = WIDTHS
    fits = width is None or low <= width <= high
    check(fits, name, width, f"in [{low:g}, {high:g}] inches")


def scaled_size(size: tuple[float, float], width: float | None) -> tuple[float, float]:
    """Return width and height for another width; text keeps its size, so the height shrinks less.

    Raises:
        SpikewireError: The width is not in [2, 20].
    """
    check_width(width)
    return size if width is None else (width, size[1] * (width / size[0]) ** 0.5)


def _compact(content: bytes) -> str:
    """Return an SVG without metadata and indentation, in hundredths of a point."""
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", content.decode(), flags=re.S)
    text = re.sub(r">\s+<", "><", text)
    text = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", text)
    return re.sub(r'\b(?:d|x|y|x1|x2|y1|y2|transform|points)="[^"]*"', _rounded, text)


def _rounded(found: re.Match[str]) -> str:
    short = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", found[0])
    return short.replace(" \n", " ")


def inline_svg(plot: Plot, numbers: Numbers) -> str:
    """Return the figure as an SVG element in the colours of the page, with unique ids.

    Args:
        plot: The figure.
        numbers: The numbers of the runs of the page, by their paths.
    """
    text = write_marks(_compact(_draw(plot, PAGE, "svg", 72, plot.size)), numbers)
    text = text[text.index("<svg") :]
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r"font-family: [^;]*; ", "", text)  # the page has its own
    text = _without_unused_ids(text)
    text = re.sub(r'\bid="', f'id="{plot.key}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{plot.key}-", text)
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    assert box
    return f'<svg {box[0]} role="img" aria-labelledby="{plot.key}-title">{body}'.strip()


def _without_unused_ids(svg: str) -> str:
    """Return an SVG without the ids that nothing refers to, which are most of them."""
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
