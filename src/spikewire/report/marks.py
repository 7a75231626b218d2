"""Marks: what a reader can point at in a figure, with its text and the runs behind it.

A mark travels through matplotlib as the id of an artist. In an SVG file it becomes a group with a
``<title>``, which browsers show on hover; in the page it also has the numbers of its runs, by which
the page filters and highlights. Other formats ignore it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from html import escape

from matplotlib.artist import Artist

from spikewire.report.runs import Run

PREFIX = "mark-"
Numbers = Mapping[str, int]  # of the runs of a page, by their paths


def set_mark(
    artists: Artist | Iterable[Artist],
    text: str,
    runs: Iterable[Run] = (),
    *,
    kind: str = "",
    each: Iterable[Iterable[Run]] = (),
) -> None:
    """Give artists the text that is shown on hover, and the runs that they show.

    Args:
        artists: One artist of matplotlib, or several that belong together: the text is that of the
            first.
        text: What to show: run, seed, values.
        runs: The runs; the mark is shown while one of them is, and always if there are none.
        kind: A class for the style sheet of the page, such as ``"band"``.
        each: Instead of `runs`, those of each point that a line joins; the line is shown while
            each of its points is.
    """
    parts = [[str(run.path) for run in part] for part in (each or [runs])]
    for artist in [artists] if isinstance(artists, Artist) else artists:
        artist.set_gid(PREFIX + _encode([text, parts, kind]))
        text = ""


def _encode(value: object) -> str:
    """Return a value as letters and digits, which need no quotes in XML."""
    return json.dumps(value).encode().hex()


def write_marks(svg: str, numbers: Numbers | None = None) -> str:
    """Return an SVG with its marks as titles instead of ids.

    Args:
        svg: An SVG of matplotlib.
        numbers: The numbers of the runs, for a page; None for a file.
    """

    def group(found: re.Match[str]) -> str:
        text, parts, kind = json.loads(bytes.fromhex(found[1]))
        title = f"<title>{escape(text)}</title>" if text else ""
        if numbers is None:
            return f"<g>{title}"
        shown = numbers_attribute(*([numbers[path] for path in part] for part in parts))
        return f'<g class="mark{f" {kind}" if kind else ""}"{shown}>{title}'

    return re.sub(f'<g id="{PREFIX}([0-9a-f]*)">', group, svg)


def numbers_attribute(*parts: Iterable[int]) -> str:
    """Return numbers of runs as an attribute ``data-runs``, such as ``"1 2"`` or ``"1 2|3 4"``."""
    return f' data-runs="{"|".join(" ".join(map(str, part)) for part in parts)}"'


def number_runs(runs: Iterable[Run]) -> dict[str, int]:
    """Return the number of each run of a page, by its path; names of runs may be equal."""
    return {str(run.path): i for i, run in enumerate(runs)}
