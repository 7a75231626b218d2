"""Elements of the page: tables, figures with their choices and downloads, settings of a run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from spikewire.report.marks import Numbers, numbers_attribute
from spikewire.report.plot import Plot, inline_svg
from spikewire.report.runs import Run
from spikewire.report.table import Column, format_value, is_missing

Row = tuple[Sequence[int], str, Any]  # numbers of its runs, class, what the columns read
SAVES = {"svg": "SVG", "png": "PNG", "pdf": "PDF", "csv": "CSV", "json": "JSON"}
SAVE_HELP = {
    "svg": "vector image in the colours shown",
    "png": "image in the colours shown",
    "pdf": "opens the print dialogue with this figure alone: save as PDF",
    "csv": "the data behind this figure",
    "json": "the data behind this figure",
}


def table_element(
    key: str, columns: Sequence[Column], rows: Sequence[Row], *, hidden: bool = False
) -> str:
    """Return a table that can be sorted and filtered.

    Args:
        key: Id of the table.
        columns: Its columns.
        rows: Its rows.
        hidden: Whether its tab is not selected.
    """
    hide = [_says_nothing(column, rows) for column in columns]
    heads = "".join(
        f'<th scope="col" class="{column.kind}"{" hidden" * unseen}>'
        f'<button type="button" title="{escape(column.help)}">{escape(column.name)}</button></th>'
        for column, unseen in zip(columns, hide, strict=True)
    )
    body = "".join(_row(columns, row, hide) for row in rows)
    return f"""<div class="panel scroll" id="{key}-panel" tabindex="0" role="tabpanel"
aria-label="{key}"{" hidden" * hidden}>
<table id="{key}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"""


def _says_nothing(column: Column, rows: Sequence[Row]) -> bool:
    """Return whether a quiet column is hidden; the filter and the CSV file still have it."""
    return column.quiet and len({column.value(item) for _, _, item in rows}) < 2


def _row(columns: Sequence[Column], row: Row, hide: Sequence[bool]) -> str:
    numbers, state, item = row
    cells = []
    for column, unseen in zip(columns, hide, strict=True):
        value = column.value(item)
        raw = "" if is_missing(value) else value
        text = escape(format_value(column, value))
        kind = f'class="{column.kind}"{" hidden" * unseen}'
        cells.append(f'<td {kind} data-value="{escape(str(raw))}">{text}</td>')
    return f'<tr class="{state}"{numbers_attribute(numbers)}>{"".join(cells)}</tr>'


def figure_element(
    plots: Mapping[str, Plot], numbers: Numbers, choice: str = "", suffix: str = ""
) -> str:
    """Return a figure with its caption and downloads.

    Args:
        plots: The figure, or its versions by name: one is shown, the others can be chosen.
        numbers: The numbers of the runs of the page.
        choice: What is chosen between, where there are several.
        suffix: Makes the ids unique where a figure is on the page for several runs.
    """
    shown = [replace(plot, key=f"{plot.key}-{suffix}" if suffix else plot.key)
             for plot in plots.values()]  # fmt: skip
    first = shown[0]
    versions = "".join(
        f'<div class="version" data-version="{escape(name)}" data-key="{plot.key}"'
        f'{" hidden" * (plot is not first)}><h3 id="{plot.key}-title">{escape(plot.title)}</h3>'
        f"{inline_svg(plot, numbers)}<figcaption>{escape(plot.caption)}</figcaption></div>"
        for name, plot in zip(plots, shown, strict=True)
    )
    return f"""<figure id="{first.key}">{versions}{_choices(plots, choice)}
<div class="save" role="group" aria-label="Downloads">{_save_buttons()}</div>
<script type="application/json">{embed_json(columns_of(first.data))}</script></figure>"""


def _choices(plots: Mapping[str, Plot], choice: str) -> str:
    """Return one button per version of a figure."""
    if len(plots) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" data-choose="{escape(name)}" '
        f'aria-pressed="{str(i == 0).lower()}">{escape(name)}</button>'
        for i, name in enumerate(plots)
    )
    return f'<div class="choices" role="group" aria-label="{choice}">{choice} {buttons}</div>'


def _save_buttons() -> str:
    return "".join(
        f'<button type="button" class="link" data-kind="{kind}" title="{SAVE_HELP[kind]}">'
        f"{name}</button>"
        for kind, name in SAVES.items()
    )


def columns_of(data: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows as names of columns and values, with six digits: less to embed."""
    keys = list(dict.fromkeys(key for row in data for key in row))
    return {"keys": keys, "rows": [[_short(row.get(key)) for key in keys] for row in data]}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def embed_json(data: Any) -> str:
    """Return JSON without characters that HTML reads as markup."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def details(run: Run, number: int) -> str:
    """Return settings, machine and command of a run, and its problem if there is one."""
    problem = f'<p class="problem">{escape(run.problem)}</p>' if run.problem else ""
    config = run.config.to_toml() if run.config else "not readable"
    env = "\n".join(f"{k}: {v}" for k, v in run.env.items() if k != "command") or "not readable"
    return f"""<details{numbers_attribute([number])}>
<summary>{escape(run.name)}</summary>
{problem}<p class="note">{escape(str(run.path))}</p><pre>{escape(run.command)}</pre>
<div class="pair"><pre>{escape(config)}</pre><pre>{escape(env)}</pre></div></details>"""
