"""The report as one self-contained HTML page: no requests, and all names are escaped."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any

from spikewire.report.figures import plot_all
from spikewire.report.runs import Run
from spikewire.report.style import Plot, inline_svg
from spikewire.report.table import COLUMNS, cards, format_value, is_missing

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
NO_FIGURES = "<p>No run has finished an epoch yet.</p>"


def build(
    runs: Sequence[Run], title: str = "Runs", refresh: int = 0, unit: str = "connectivity"
) -> str:
    """Return the page.

    Args:
        runs: Runs, as returned by `find`.
        title: The heading.
        refresh: Seconds after which an open page reloads itself; 0 for never.
        unit: What accuracy is drawn against: see `plot_frontier`.

    Returns:
        The HTML text.
    """
    plots = plot_all(runs, unit)
    reload = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
{reload}<link rel="icon" href="data:,">
<title>{escape(title)} · spikewire</title>
<style>{_read_asset("page.css")}</style>
</head>
<body>
<header>
<div><h1>{escape(title)}</h1><p class="lead">{escape(_summary(runs))}</p></div>
<button id="theme" type="button" aria-label="Switch between light and dark">◐</button>
</header>
<main>
<ul class="cards">{_cards(runs)}</ul>
<h2 id="table">Runs</h2>
{_table(runs)}
<h2 id="figures">Figures</h2>
<div class="figures">{"".join(map(_figure, plots)) or NO_FIGURES}</div>
<h2 id="settings">Settings, machine and command of each run</h2>
<div class="panel">{"".join(map(_details, runs))}</div>
</main>
<footer>Made by spikewire on {now}.
Connectivity is counted by masks, not by non-zero weights.</footer>
<script>{_read_asset("page.js")}</script>
</body>
</html>
"""


def _read_asset(name: str) -> str:
    return resources.files("spikewire.report").joinpath(name).read_text("utf-8")


def _summary(runs: Sequence[Run]) -> str:
    done = sum(run.state == "finished" for run in runs)
    datasets = sorted({run.config.dataset for run in runs if run.config})
    text = f"{len(runs)} run{'s' * (len(runs) != 1)} on {', '.join(datasets) or 'unknown data'}"
    return text if done == len(runs) else f"{text}; {done} finished"


def _cards(runs: Sequence[Run]) -> str:
    return "".join(
        f"<li><span>{escape(what)}</span><b>{escape(figure)}</b><span>{escape(more)}</span></li>"
        for what, figure, more in cards(runs)
    )


def _table(runs: Sequence[Run]) -> str:
    heads = "".join(
        f'<th scope="col" class="{column.kind}">'
        f'<button type="button" title="{escape(column.help)}">{escape(column.name)}</button></th>'
        for column in COLUMNS
    )
    return f"""<div class="tools">
<label><input id="filter" type="search" aria-label="Filter runs"
placeholder="Filter: gradr digits …"></label>
<span id="count" class="note" role="status">{len(runs)} runs</span></div>
<div class="panel scroll" tabindex="0" role="region" aria-labelledby="table"><table id="runs">
<thead><tr>{heads}</tr></thead>
<tbody>{"".join(map(_row, runs))}</tbody>
</table></div>"""


def _row(run: Run) -> str:
    cells = []
    for column in COLUMNS:
        value = column.value(run)
        raw = "" if is_missing(value) else value
        text = escape(format_value(column, value))
        cells.append(f'<td class="{column.kind}" data-value="{escape(str(raw))}">{text}</td>')
    return f'<tr class="{run.state}">{"".join(cells)}</tr>'


def _figure(plot: Plot) -> str:
    saves = "".join(
        f'<button type="button" data-figure="{plot.key}" data-kind="{kind}">{kind.upper()}</button>'
        for kind in ("csv", "json")
    )
    return f"""<figure id="{plot.key}">
<h3 id="{plot.key}-title">{escape(plot.title)}</h3>
{inline_svg(plot)}
<figcaption>{escape(plot.caption)}</figcaption>
<div class="save" role="group" aria-label="Data behind this figure">{saves}</div>
<script type="application/json" id="{plot.key}-data">{_embed_json(plot.data)}</script>
</figure>"""


def _embed_json(data: Any) -> str:
    """Return JSON without characters that HTML reads as markup."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _details(run: Run) -> str:
    problem = f'<p class="problem">{escape(run.problem)}</p>' if run.problem else ""
    config = run.config.to_toml() if run.config else "not readable"
    env = "\n".join(f"{k}: {v}" for k, v in run.env.items() if k != "command") or "not readable"
    return f"""<details><summary>{escape(run.name)}</summary>{problem}
<p class="note">{escape(str(run.path))}</p><pre>{escape(run.command)}</pre>
<div class="pair"><pre>{escape(config)}</pre><pre>{escape(env)}</pre></div></details>"""
