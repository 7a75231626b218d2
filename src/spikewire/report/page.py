"""The report as one self-contained HTML page: no requests, and all names are escaped."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources

from spikewire.data import title_of
from spikewire.report.choice import MAX_SHOWN, shown_runs
from spikewire.report.elements import details, figure_element, table_element
from spikewire.report.figures import OVERVIEW, inside_plots
from spikewire.report.frontier import AXES, plot_frontier
from spikewire.report.groups import final_repetitions
from spikewire.report.headlines import cards
from spikewire.report.marks import Numbers, number_runs
from spikewire.report.plot import Plot
from spikewire.report.runs import Run
from spikewire.report.table import MEANS, run_columns

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
NO_FIGURES = "<p>No run has finished an epoch yet.</p>"
UNIT_NAMES = {
    "connectivity": "weights", "synapses": "synapses", "synops": "SynOps", "bytes": "bytes",
}  # fmt: skip


def build(
    runs: Sequence[Run], title: str = "Runs", refresh: int = 0, unit: str = "connectivity"
) -> str:
    """Return the page.

    Args:
        runs: Runs, as returned by `find`.
        title: The heading.
        refresh: Seconds after which an open page reloads itself; 0 for never.
        unit: What accuracy is drawn against first; the page can switch it.

    Returns:
        The HTML text.
    """
    numbers = number_runs(runs)
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
<script>{_read_asset("state.js")}</script>
</head>
<body>
<header>
<div><h1>{escape(title)}</h1><p class="lead">{escape(_summary(runs))}</p></div>
<button id="theme" type="button" aria-label="Switch between light and dark">◐</button>
</header>
<main>
<ul class="cards">{_cards(runs)}</ul>
{_tables(runs, numbers)}
<h2 id="figures">Figures</h2>
<div class="figures">{_overview(runs, numbers, unit) or NO_FIGURES}</div>
{_inside(runs, numbers)}
<h2 id="settings">Settings, machine and command of each run</h2>
<div class="panel">{"".join(details(run, i) for i, run in enumerate(runs))}</div>
</main>
<footer>Made by spikewire on {now}.
Connectivity is counted by masks, not by non-zero weights.</footer>
<div id="tip" role="tooltip" hidden></div>
<script>{_read_asset("page.js")}{_read_asset("save.js")}</script>
</body>
</html>
"""


def _read_asset(name: str) -> str:
    return resources.files("spikewire.report").joinpath(name).read_text("utf-8")


def _summary(runs: Sequence[Run]) -> str:
    done = sum(run.state == "finished" for run in runs)
    datasets = sorted({title_of(run.config.dataset) for run in runs if run.config})
    methods = dict.fromkeys(run.config.method for run in runs if run.config)
    text = f"{len(runs)} run{'s' * (len(runs) != 1)} on {', '.join(datasets) or 'unknown data'}"
    text += f": {', '.join(methods)}" if methods else ""
    return text if done == len(runs) else f"{text}; {done} finished"


def _cards(runs: Sequence[Run]) -> str:
    return "".join(
        f"<li><span>{escape(what)}</span><b>{escape(figure)}</b><span>{escape(more)}</span></li>"
        for what, figure, more in cards(runs)
    )


def _tables(runs: Sequence[Run], numbers: Numbers) -> str:
    """Return the filter, which acts on the whole page, and the two tables as tabs."""
    groups = final_repetitions([run for run in runs if run.usable])
    means = [([numbers[str(run.path)] for run in group.runs], "", group) for group in groups]
    every = [([i], run.state, run) for i, run in enumerate(runs)]
    first = "means" if any(len(group.runs) > 1 for group in groups) else "runs"
    names = {"means": "Mean over seeds", "runs": "Runs"}
    tabs = "".join(
        f'<button type="button" role="tab" aria-controls="{key}-panel" data-tab="{key}" '
        f'aria-selected="{str(key == first).lower()}">{name}</button>'
        for key, name in names.items()
    )
    return f"""<div class="tools">
<label><input id="filter" type="search" aria-label="Filter tables and figures by run"
placeholder="Filter tables and figures: gradr seed=1 …"></label>
<span id="count" class="note" role="status">{len(runs)} runs</span></div>
<div class="tabs" role="tablist">{tabs}<span></span>
<button type="button" class="link" id="table-csv">CSV</button></div>
{table_element("means", MEANS, means, hidden=first != "means")}
{table_element("runs", run_columns(groups), every, hidden=first != "runs")}"""


def _overview(runs: Sequence[Run], numbers: Numbers, unit: str) -> str:
    """Return the figures of all runs; the first can be switched between units."""
    units = [unit, *(other for other in AXES if other != unit)]
    found = {name: plot_frontier(runs, name) for name in units}
    frontier = {UNIT_NAMES[name]: plot for name, plot in found.items() if plot}
    rest = [plot for figure in OVERVIEW[1:] if (plot := figure(runs))]
    elements = [figure_element(frontier, numbers, "x-axis")] if frontier else []
    return "".join([*elements, *(figure_element({"": plot}, numbers) for plot in rest)])


def _inside(runs: Sequence[Run], numbers: Numbers) -> str:
    """Return the figures of the inside of one run; which run can be chosen."""
    sections: dict[str, list[Plot]] = {
        run.name: plots for run in shown_runs(runs) if (plots := inside_plots(run, runs))
    }
    if not sections:
        return ""
    options = "".join(f"<option>{escape(name)}</option>" for name in sections)
    parts = "".join(
        f'<div class="figures inside" data-run="{escape(name)}"{" hidden" * (i > 0)}>'
        + "".join(figure_element({"": plot}, numbers, suffix=str(i) if i else "") for plot in plots)
        + "</div>"
        for i, (name, plots) in enumerate(sections.items())
    )
    few = f"Up to {MAX_SHOWN} settings can be chosen here, the first seed of each."
    return f"""<h2 id="inside">Inside one run</h2>
<div class="tools"><label class="choose">Run
<select id="chosen">{options}</select></label><span class="note">{few}</span></div>
{parts}"""
