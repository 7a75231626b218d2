"""The runs whose inside is shown, and the figures of one of them."""

from collections.abc import Sequence

from spikewire.report.figures import INSIDE
from spikewire.report.groups import repetitions, setting
from spikewire.report.internals import shown_run
from spikewire.report.plot import Plot
from spikewire.report.runs import Run, spread, usable

MAX_SHOWN = 8  # runs of which the page holds the inside: each adds about 100 kB


def shown_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that can be chosen: the first seed of each setting, the default one first."""
    firsts = [group.first for group in repetitions(usable(runs))]
    default = shown_run(runs)
    if default is None:
        return spread(firsts, MAX_SHOWN)
    others = [run for run in firsts if run.recipe != default.recipe]
    return [default, *spread(others, MAX_SHOWN - 1)]


def inside_plots(run: Run, runs: Sequence[Run]) -> list[Plot]:
    """Return the figures of the inside of a run, next to dense runs of the same network."""
    alike = [setting(name) for name in ("dataset", "model")]
    dense = [
        other
        for other in usable(runs)
        if setting("method")(other) == "dense"
        and other is not run
        and all(value(other) == value(run) for value in alike)
    ]
    return [plot for figure in INSIDE if (plot := figure([run, *dense[:1]]))]
