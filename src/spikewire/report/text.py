"""The report as Markdown."""

from collections.abc import Sequence

from spikewire.report.runs import Run
from spikewire.report.table import COLUMNS, cards, show


def build(runs: Sequence[Run], title: str = "Runs") -> str:
    """Return headlines, the table and the commands."""
    lines = [f"# {_plain(title)}", ""]
    lines += [f"- {what}: **{figure}** ({_plain(more)})" for what, figure, more in cards(runs)]
    lines += ["", _line([column.name for column in COLUMNS])]
    lines.append(_line([":--" if c.kind == "word" else "--:" for c in COLUMNS]))
    lines += [_line([show(c, c.value(run)) for c in COLUMNS]) for run in runs]
    lines += ["", "## Commands", ""]
    for run in runs:
        lines += [f"- {_plain(run.name)}: {_code(run.command)}"]
        lines += [f"  - problem: {_plain(run.problem)}"] if run.problem else []
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_plain, cells))} |"


def _plain(text: str) -> str:
    """Return text that Markdown and the HTML in it leave alone."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _code(text: str) -> str:
    """Return a code span; a fence longer than any run of backquotes inside."""
    fence = "`" * (max((len(run) for run in text.split() if set(run) == {"`"}), default=0) + 1)
    fence = "``" if "`" in text and len(fence) < 2 else fence
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"
