"""The figures of runs in rows and cards, for the page and for Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from spikewire.report.runs import Run


@dataclass(frozen=True)
class Column:
    """A column: how to get its value, and how to show it (a share, a number, a word)."""

    name: str
    help: str
    kind: str
    value: Callable[[Run], Any]


def _measured(key: str) -> Callable[[Run], Any]:
    return lambda run: run.measured.get(key)


def _scaled(key: str) -> Callable[[Run], float | None]:
    """Return a function to a thousandth of a measured figure."""
    return lambda run: run.measured[key] / 1e3 if key in run.measured else None


COLUMNS = (
    Column("run", "directory", "word", lambda run: run.name),
    Column("state", "finished, unfinished or damaged", "word", lambda run: run.state),
    Column("data", "data set", "word", lambda run: run.config and run.config.dataset),
    Column("method", "how it was wired", "word", lambda run: run.config and run.config.method),
    Column("setting", "penalty, or connectivity asked for", "word", lambda run: run.knob or None),
    Column("accuracy", "test set, last epoch", "share", lambda run: run.last.get("accuracy")),
    Column(
        "connectivity", "weights that exist", "share", lambda run: run.last.get("connectivity")
    ),
    Column(
        "synapses",
        "neuron-to-neuron links that exist and lead from input to output",
        "share",
        _measured("synapse_connectivity"),
    ),
    Column("SynOps", "accumulates an image", "count", _measured("synops")),
    Column("MACs", "multiply-accumulates an image", "count", _measured("macs")),
    Column("energy, nJ", "arithmetic of one image", "number", _scaled("compute_pj")),
    Column("silent", "neurons that never fire", "share", _measured("silent")),
    Column("size, kB", "packed weights", "number", _scaled("bytes_packed")),
    Column("time, s", "training", "number", lambda run: _seconds(run)),
)  # fmt: skip


def _seconds(run: Run) -> float | None:
    return sum(row["seconds"] for row in run.history) if run.history else None


def missing(value: Any) -> bool:
    """Tell whether there is nothing to show."""
    return value is None or (isinstance(value, float) and not isfinite(value))


def percent(share: float) -> str:
    """Return a share with two digits, more where there is little."""
    return f"{100 * share:.2f} %" if share >= 0.01 or share == 0 else f"{100 * share:.3f} %"


def show(column: Column, value: Any) -> str:
    """Return the cell's text."""
    if missing(value):
        return "–"
    if column.kind == "share":
        return percent(value)
    if column.kind == "count":
        return f"{value:,.0f}"
    if column.kind == "number":
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return str(value)


def cards(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return headlines (what, figure, whose): the best, the sparsest near it, the thriftiest."""
    good = [run for run in runs if run.usable]
    if not good:
        return [("runs", str(len(runs)), "none has finished an epoch")]
    sets = list(dict.fromkeys(run.config.dataset for run in good if run.config))
    if len(sets) > 1:  # an accuracy on one says nothing about another
        return [card for name in sets for card in _best(good, name)]
    return _best(good) + _cost(_sparsest(good))


def _best(runs: Sequence[Run], dataset: str = "") -> list[tuple[str, str, str]]:
    """Return the two headlines of accuracy and wiring, on one data set where it is named."""
    runs = [run for run in runs if not dataset or (run.config and run.config.dataset == dataset)]
    best, sparsest = max(runs, key=_accuracy), _sparsest(runs)
    where = f"{dataset}: " if dataset else ""
    return [
        (f"{where}best accuracy", percent(_accuracy(best)), best.name),
        (
            f"{where}least wiring within 2 points",
            percent(sparsest.last["connectivity"]),
            sparsest.name,
        ),
    ]


def _accuracy(run: Run) -> float:
    return run.last["accuracy"]


def _sparsest(runs: Sequence[Run]) -> Run:
    """Return the least connected run within 2 points of the best."""
    best = max(map(_accuracy, runs))
    near = [run for run in runs if _accuracy(run) >= best - 0.02]
    return min(near, key=lambda run: run.last["connectivity"])


def _cost(run: Run) -> list[tuple[str, str, str]]:
    """Return the headlines of that run's operations and size."""
    if not (cost := run.measured):
        return []
    used, packed, dense = cost["synops"] + cost["macs"], cost["bytes_packed"], cost["bytes_dense"]
    return [
        ("its operations an image", f"{used:,.0f}", f"{cost['dense']:,.0f} if dense"),
        ("its size, packed", f"{packed / 1e3:,.1f} kB", f"of {dense / 1e3:,.1f} kB"),
    ]
