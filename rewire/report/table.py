"""The figures of runs in rows and cards, for the page and for Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from rewire.report.runs import Run


@dataclass(frozen=True)
class Column:
    """A column: how to get its value, and how to show it (a share, a number, a word)."""

    name: str
    help: str
    kind: str
    value: Callable[[Run], Any]


def _measured(key: str) -> Callable[[Run], Any]:
    return lambda run: run.measured.get(key)


def _energy(run: Run) -> float | None:
    picojoules = run.measured.get("compute_pj")
    return None if picojoules is None else picojoules / 1e3


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
    Column("energy", "arithmetic of one image, nJ", "number", _energy),
    Column("silent", "neurons that never fire", "share", _measured("silent")),
    Column("size", "packed weights, bytes", "count", _measured("bytes_packed")),
    Column("time", "training, s", "number", lambda run: _seconds(run)),
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
    return f"{value:,.3g}" if column.kind == "number" else str(value)


def cards(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return headlines (what, figure, whose): the best, the sparsest near it, the thriftiest."""
    good = [run for run in runs if run.usable]
    if not good:
        return [("runs", str(len(runs)), "none has finished an epoch")]
    best = max(good, key=lambda run: run.last["accuracy"])
    near = [run for run in good if run.last["accuracy"] >= best.last["accuracy"] - 0.02]
    sparsest = min(near, key=lambda run: run.last["connectivity"])
    found = [
        ("best accuracy", percent(best.last["accuracy"]), best.name),
        ("least wiring within 2 points", percent(sparsest.last["connectivity"]), sparsest.name),
    ]
    if cost := sparsest.measured:
        used = cost["synops"] + cost["macs"]
        found.append(("its operations an image", f"{used:,.0f}", f"{cost['dense']:,.0f} if dense"))
        packed, dense = cost["bytes_packed"], cost["bytes_dense"]
        found.append(("its size, packed", f"{packed / 1e3:,.1f} kB", f"of {dense / 1e3:,.1f} kB"))
    return found
