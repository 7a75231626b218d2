"""The columns of the two tables: one row per run, and one row per setting with means over seeds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from spikewire.data import title_of
from spikewire.report.groups import Group, final_accuracy, final_connectivity
from spikewire.report.runs import Run
from spikewire.text import percent


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        name: Its header.
        help: What it shows.
        kind: How a value is formatted: ``"word"``, ``"fraction"``, ``"spread"``, ``"count"`` or
            ``"number"``.
        value: Returns the value of a row: of a `Run`, or of a `Group`.
        quiet: Whether the page hides the column while all rows have the same value.
    """

    name: str
    help: str
    kind: str
    value: Callable[[Any], Any]
    quiet: bool = False


def _measured(key: str, divisor: float = 1) -> Callable[[Run], Any]:
    """Return a function that returns a measured value, None where it could not be measured."""

    def value(run: Run) -> Any:
        found = run.measured.get(key)
        return None if found is None else found / divisor

    return value


def _kilobytes(run: Run) -> float | None:
    """Return the size of the packed file in kB."""
    size = run.in_unit("bytes")
    return None if size is None else size / 1e3


def _seconds(run: Run) -> float | None:
    return sum(row["seconds"] for row in run.history) if run.history else None


METHOD = Column("method", "pruning method", "word", lambda run: run.config and run.config.method)
SETTING = Column("setting", "target or penalty", "word", lambda run: run.setting or None)
DATA = Column(
    "data",
    "data set",
    "word",
    lambda run: run.config and title_of(run.config.dataset),
    quiet=True,  # the page says above which data set it is
)
ACCURACY = Column("accuracy", "test set, last epoch that was tested", "fraction", final_accuracy)
CONNECTIVITY = Column("connectivity", "fraction of weights present", "fraction", final_connectivity)
COSTS = (
    Column(
        "synapses",
        "fraction of synapses present: weights times the positions at which each is applied",
        "fraction",
        _measured("synapses"),
    ),
    Column(
        "reached",
        "fraction of synapses reached from the input: the connectivity of UPR",
        "fraction",
        _measured("synapses_reached"),
    ),
    Column(
        "alive",
        "fraction of synapses on a path from input to output",
        "fraction",
        _measured("synapses_alive"),
    ),
    Column("SynOps", "accumulates per image", "count", _measured("synops")),
    Column("MACs", "multiply-accumulates per image", "count", _measured("macs")),
    Column("energy, nJ", "arithmetic per image", "number", _measured("compute_pj", 1e3)),
    Column("silent", "fraction of neurons that never fire", "fraction", _measured("silent")),
    Column("size, kB", "packed file of 16-bit weights, header included", "number", _kilobytes),
    Column("time, s", "training", "number", _seconds),
)

STATE = Column(
    "state",
    "finished, unfinished or damaged; repeated: its seed has a later run, which the means count",
    "word",
    lambda run: run.state,
)

# accuracy and connectivity come first: a phone shows about three columns
COLUMNS = (
    Column("run", "directory", "word", lambda run: run.name),
    ACCURACY,
    CONNECTIVITY,
    METHOD,
    SETTING,
    Column("seed", "seed of the random numbers", "count", lambda run: run.seed),
    DATA,
    STATE,
    *COSTS,
)


def run_columns(groups: Iterable[Group]) -> tuple[Column, ...]:
    """Return the columns of the table of runs, in which the runs that no mean counts are marked.

    Args:
        groups: The groups whose means are shown.
    """
    repeated = {run.path for group in groups for run in group.repeated}

    def state(run: Run) -> str:
        return f"{run.state}, repeated" if run.path in repeated else run.state

    return tuple(replace(c, value=state) if c is STATE else c for c in COLUMNS)


def _of_first(column: Column) -> Column:
    """Return the column with the value that all runs of a group have."""
    return replace(column, value=lambda group: column.value(group.first))


def _mean(column: Column) -> Column:
    """Return the column with the mean over the seeds of a group."""
    about = f"{column.help}; mean over seeds"
    return replace(column, help=about, value=lambda group: group.mean(column.value))


def _deviation(group: Group) -> float | None:
    return group.deviation(final_accuracy)


MEANS = (
    _of_first(METHOD),
    _of_first(SETTING),
    _mean(ACCURACY),
    Column("std", "sample standard deviation of the accuracy over seeds", "spread", _deviation),
    _mean(CONNECTIVITY),
    Column("n", "number of seeds", "count", lambda group: len(group.runs)),
    _of_first(DATA),
    *map(_mean, COSTS),
)


def is_missing(value: Any) -> bool:
    """Return whether a value is None or not finite."""
    return value is None or (isinstance(value, float) and not isfinite(value))


def format_value(column: Column, value: Any) -> str:
    """Return the text of a cell."""
    if is_missing(value):
        return "–"
    if column.kind == "fraction":
        return percent(value)
    if column.kind == "spread":
        return f"± {100 * value:.2f}"
    if column.kind == "count":
        return f"{value:,.0f}"
    if column.kind == "number":
        return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"
    return str(value)
