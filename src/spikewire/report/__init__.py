"""Figures and one self-contained page, from run directories only."""

from collections.abc import Iterable
from pathlib import Path

from spikewire.errors import unknown
from spikewire.files import atomic_write, io_errors
from spikewire.report import page, text
from spikewire.report.figures import FIGURES, draw_all
from spikewire.report.runs import Run, find, load
from spikewire.report.style import DARK, LIGHT, Plot, render

FORMATS = ("html", "md")

__all__ = [
    "FIGURES",
    "FORMATS",
    "Plot",
    "Run",
    "draw_all",
    "find",
    "load",
    "render",
    "save_figures",
    "write",
]


def write(
    paths: Iterable[str | Path],
    out: str | Path,
    *,
    form: str = "html",
    title: str = "Runs",
    refresh: int = 0,
) -> list[Run]:
    """Write the report of all runs at or under `paths` to `out`; return the runs."""
    if form not in FORMATS:
        raise unknown("--format", form, FORMATS)
    runs = find(paths)
    where = Path(out)
    content = page.build(runs, title, refresh) if form == "html" else text.build(runs, title)
    with io_errors(where), atomic_write(where) as file:
        file.write(content.encode(errors="replace"))  # names of files may hold any bytes
    return runs


def save_figures(plots: Iterable[Plot], out: str | Path) -> list[Path]:
    """Write each figure as SVG and PNG, light and dark, under `out`; return the light SVGs."""
    folder = Path(out)
    written = []
    with io_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for plot in plots:
            for theme, tail in ((LIGHT, ""), (DARK, "-dark")):
                for kind in ("svg", "png"):
                    (folder / f"{plot.key}{tail}.{kind}").write_bytes(render(plot, theme, kind))
            written.append(folder / f"{plot.key}.svg")
    return written
