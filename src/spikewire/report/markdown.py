"""The report as Markdown."""

import re
from collections.abc import Sequence
from typing import Any

from spikewire.report.groups import final_repetitions
from spikewire.report.headlines import cards
from spikewire.report.runs import Run
from spikewire.report.table import MEANS, Column, format_value, run_columns


def build(runs: Sequence[Run], title: str = "Runs") -> str:
    """Return the report as Markdown: headlines, the tables and the commands.

    Args:
        runs: Runs, as returned by `find`.
        title: The heading.

    Returns:
        The Markdown text; names of runs are escaped.
    """
    lines = [f"# {_escape(title)}", ""]
    lines += [f"- {what}: **{figure}** ({_escape(more)})" for what, figure, more in cards(runs)]
    groups = final_repetitions([run for run in runs if run.usable])
    if any(len(group.runs) > 1 for group in groups):
        lines += ["", "## Mean over seeds", "", *_table(MEANS, groups)]
    lines += ["", "## Runs", "", *_table(run_columns(groups), runs)]
    lines += ["", "## Commands", ""]
    for run in runs:
        lines += [f"- {_escape(run.name)}: {_code_span(run.command)}"]
        lines += [f"  - problem: {_escape(run.problem)}"] if run.problem else []
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[Column], items: Sequence[Any]) -> list[str]:
    head = _row([column.name for column in columns])
    rule = _row([":--" if column.kind == "word" else "--:" for column in columns])
    rows = [_row([format_value(c, c.value(item)) for c in columns]) for item in items]
    return [head, rule, *rows]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escape, cells))} |"


def _escape(text: str) -> str:
    """Return text without meaning for Markdown and for HTML in it."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _code_span(text: str) -> str:
    """Return a code span on one line, with a fence longer than any backquotes inside."""
    text = "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"
