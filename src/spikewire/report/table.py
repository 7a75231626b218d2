"""The runs as rows of a table and as headlines, for the page and for Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from spikewire.report.runs import Run
from spikewire.text import percent, size

Card = tuple[str, str, str]  # what, figure, detail


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Args:
        name: Its header.
        help: What it shows.
        kind: How a value is formatted: ``"word"``, ``"fraction"``, ``"count"`` or ``"number"``.
        value: Returns the value of a run.
    """

    name: str
    help: str
    kind: str
    value: Callable[[Run], Any]


def _measured(key: str) -> Callable[[Run], Any]:
    """Return a function that returns a measured value."""
    return lambda run: run.measured.get(key)


def _measured_kilo(key: str) -> Callable[[Run], float | None]:
    """Return a function that returns a measured value divided by 1000."""
    return lambda run: run.measured[key] / 1e3 if key in run.measured else None


def _seconds(run: Run) -> float | None:
    return sum(row["seconds"] for row in run.history) if run.history else None


COLUMNS = (
    Column("run", "directory", "word", lambda run: run.name),
    Column("state", "finished, unfinished or damaged", "word", lambda run: run.state),
    Column("data", "data set", "word", lambda run: run.config and run.config.dataset),
    Column("method", "pruning method", "word", lambda run: run.config and run.config.method),
    Column("setting", "target connectivity or penalty", "word", lambda run: run.setting or None),
    Column("accuracy", "test set, last epoch", "fraction", lambda run: run.last.get("accuracy")),
    Column(
        "connectivity",
        "fraction of weights present",
        "fraction",
        lambda run: run.last.get("connectivity"),
    ),
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
    Column("energy, nJ", "arithmetic per image", "number", _measured_kilo("compute_pj")),
    Column("silent", "fraction of neurons that never fire", "fraction", _measured("silent")),
    Column("size, kB", "packed weights", "number", _measured_kilo("bytes_packed")),
    Column("time, s", "training", "number", _seconds),
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
    if column.kind == "count":
        return f"{value:,.0f}"
    if column.kind == "number":
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return str(value)


# ---------------------------------------------------------------------- headlines


def cards(runs: Sequence[Run]) -> list[Card]:
    """Return the headlines: best accuracy, lowest connectivity near it, and its costs."""
    good = [run for run in runs if run.usable]
    if not good:
        return [("runs", str(len(runs)), "none has finished an epoch")]
    datasets = list(dict.fromkeys(run.config.dataset for run in good if run.config))
    if len(datasets) > 1:  # accuracies on different data sets cannot be compared
        return [card for dataset in datasets for card in _dataset_cards(good, dataset)]
    return _accuracy_cards(good) + _cost_cards(_sparsest(good))


def _dataset_cards(runs: Sequence[Run], dataset: str) -> list[Card]:
    members = [run for run in runs if run.config and run.config.dataset == dataset]
    return _accuracy_cards(members, f"{dataset}: ")


def _accuracy_cards(runs: Sequence[Run], prefix: str = "") -> list[Card]:
    best, sparsest = max(runs, key=_accuracy), _sparsest(runs)
    connectivity = percent(sparsest.last["connectivity"])
    return [
        (f"{prefix}best accuracy", percent(_accuracy(best)), best.name),
        (f"{prefix}lowest connectivity within 2 points of the best", connectivity, sparsest.name),
    ]


def _accuracy(run: Run) -> float:
    return run.last["accuracy"]


def _sparsest(runs: Sequence[Run]) -> Run:
    """Return the run of lowest connectivity whose accuracy is within 2 points of the best."""
    best = max(map(_accuracy, runs))
    near = [run for run in runs if _accuracy(run) >= best - 0.02]
    return min(near, key=lambda run: run.last["connectivity"])


def _cost_cards(run: Run) -> list[Card]:
    """Return the headlines of a run's operations and size."""
    if not (cost := run.measured):
        return []
    used, packed, dense = cost["synops"] + cost["macs"], cost["bytes_packed"], cost["bytes_dense"]
    return [
        ("operations per image there", f"{used:,.0f}", f"{cost['dense']:,.0f} if dense"),
        ("packed size there", size(packed), f"of {size(dense)}"),
    ]
