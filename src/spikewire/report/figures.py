"""The figures of the report, in order: those of all runs, and those of the inside of one run."""

from collections.abc import Callable, Sequence

from spikewire.report.activity import plot_activity
from spikewire.report.channels import plot_channels
from spikewire.report.choice import dense_twins
from spikewire.report.confusion import plot_confusion
from spikewire.report.energy import plot_energy
from spikewire.report.frontier import plot_frontier
from spikewire.report.internals import (
    plot_firing,
    plot_parameters,
    plot_theta,
    plot_turnover,
)
from spikewire.report.layers import plot_layers
from spikewire.report.plot import Plot
from spikewire.report.rewiring import plot_rewiring
from spikewire.report.runs import Run
from spikewire.report.training import plot_training

FigureFunction = Callable[[Sequence[Run]], Plot | None]

OVERVIEW: tuple[FigureFunction, ...] = (
    plot_frontier,
    plot_training,
    plot_energy,
    plot_layers,
    plot_firing,
    plot_parameters,
)
INSIDE: tuple[FigureFunction, ...] = (
    plot_rewiring,
    plot_channels,
    plot_activity,
    plot_confusion,
    plot_theta,
    plot_turnover,
)
FIGURES = OVERVIEW + INSIDE


def plot_all(runs: Sequence[Run], unit: str = "connectivity") -> list[Plot]:
    """Return every figure for which the runs have data.

    Args:
        runs: Runs, as returned by `find`.
        unit: What accuracy is drawn against: see `plot_frontier`.

    Returns:
        The figures in the order of `FIGURES`.

    Example:
        >>> save_figures(plot_all(find(["runs"])), "figures")
    """
    plots = [plot_frontier(runs, unit), *(figure(runs) for figure in FIGURES[1:])]
    return [plot for plot in plots if plot is not None]


def inside_plots(run: Run, runs: Sequence[Run]) -> list[Plot]:
    """Return the figures of the inside of a run, next to a dense run of the same network.

    Args:
        run: The run.
        runs: All runs, among which a dense one is looked for.

    Returns:
        Those of `INSIDE` for which the run has data.
    """
    dense = dense_twins(run, runs)[:1] if run.snapshots else []
    found = (figure([run, *dense] if figure is plot_activity else [run]) for figure in INSIDE)
    return [plot for plot in found if plot is not None]
