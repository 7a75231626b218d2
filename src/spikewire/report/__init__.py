"""Figures and one self-contained page, from run directories, and figures from recorded results."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from spikewire.errors import unknown
from spikewire.files import atomic_write, io_errors, make_folder
from spikewire.report import markdown, page
from spikewire.report.comparison import plot_results
from spikewire.report.figures import FIGURES, plot_all
from spikewire.report.frontier import plot_frontier
from spikewire.report.paper import plot_paper
from spikewire.report.plot import Plot, check_width, render
from spikewire.report.runs import Run, find, load
from spikewire.report.style import DARK, LIGHT, STYLES, Style, Theme

FORMATS = ("html", "md")
FILES = (  # of each figure: theme, end of its name, kind
    (LIGHT, "", "svg"),
    (LIGHT, "", "png"),
    (LIGHT, "", "pdf"),
    (DARK, "-dark", "svg"),
    (DARK, "-dark", "png"),
)
KINDS = tuple(dict.fromkeys(kind for _, _, kind in FILES))

__all__ = [
    "DARK",
    "FIGURES",
    "FORMATS",
    "KINDS",
    "LIGHT",
    "Plot",
    "Run",
    "STYLES",
    "Style",
    "Theme",
    "check_width",
    "find",
    "load",
    "plot_all",
    "plot_frontier",
    "plot_paper",
    "plot_results",
    "render",
    "save_figures",
    "write",
]


def write(
    paths: Iterable[str | Path],
    out: str | Path,
    *,
    format: str = "html",
    title: str = "Runs",
    refresh: int = 0,
    unit: str = "connectivity",
) -> list[Run]:
    """Write the report of all runs at or below the given paths.

    Args:
        paths: Run directories, or folders that contain them, up to three levels deep.
        out: The file to write; an existing one is replaced.
        format: ``"html"`` or ``"md"``.
        title: The heading.
        refresh: Seconds after which an open HTML page reloads itself; 0 for never.
        unit: What accuracy is drawn against: ``"connectivity"``, ``"synapses"``, ``"synops"`` or
            ``"bytes"``.

    Returns:
        The runs in the report.

    Raises:
        SpikewireError: The format is unknown, a path contains no run, or the file cannot be
            written.

    Example:
        >>> spikewire.report.write(["runs"], "report.html", title="Digits")
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    runs, path = find(paths), Path(out)
    html = format == "html"
    content = page.build(runs, title, refresh, unit) if html else markdown.build(runs, title)
    with io_errors(path), atomic_write(path) as file:
        file.write(content.encode(errors="replace"))  # file names may contain any bytes
    return runs


def save_figures(
    plots: Iterable[Plot | None],
    out: str | Path,
    *,
    width: float | None = None,
    kinds: Sequence[str] = KINDS,
) -> list[Path]:
    """Write figures as SVG, PNG and PDF; SVG and PNG also in a dark version.

    Args:
        plots: Figures, as returned by `plot_all` or `plot_paper`; None, as a plot returns without
            data, is left out.
        out: The folder; it is created if necessary. Files are named after `Plot.key`.
        width: Width in inches, such as 3.3 for one column of a paper; None: 5.4.
        kinds: Which of ``"svg"``, ``"png"`` and ``"pdf"`` to write.

    Returns:
        The paths of all files, figure by figure.

    Raises:
        SpikewireError: A file cannot be written, or the width is not in [2, 20].

    Example:
        >>> save_figures(plot_all(find(["runs"])), "figures")
    """
    folder = Path(out)
    written = []
    with io_errors(folder):
        make_folder(folder)
        for plot in filter(None, plots):
            for theme, suffix, kind in FILES:
                if kind in kinds:
                    path = folder / f"{plot.key}{suffix}.{kind}"
                    with atomic_write(path) as file:
                        file.write(render(plot, theme, kind, width=width))
                    written.append(path)
    return written
