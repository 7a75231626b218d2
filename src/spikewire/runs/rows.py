"""The check of metrics that were read from a file: types and ranges of every field."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from spikewire.errors import SpikewireError

LARGEST = 1e18  # of any count, time or energy; a figure of larger numbers could not be drawn
NAME_LENGTH = 200
FRACTIONS = ("accuracy", "connectivity")
COUNTS = ("present", "total", "pruned", "regrown")  # of a layer
COSTS = ("synops", "macs", "dense", "compute_pj", "memory_pj", "bytes_dense", "bytes_packed")
OPERATIONS = ("synops", "macs", "unpruned", "dense", "compute_pj", "memory_pj")
FILE = "bytes_file"  # a cost too, which rows of earlier versions do not have


def measured_in(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was measured at an epoch; without operations where none could be counted.

    A network whose layers are never called, such as a Boltzmann machine that uses the weights of
    its layer directly, has no operations even with all weights and inputs: they are not known.

    Args:
        row: The metrics of one epoch.
    """
    found = row.get("measured") or {}
    if found.get("dense") == 0:
        return {key: value for key, value in found.items() if key not in OPERATIONS}
    return dict(found)


def in_unit(row: Mapping[str, Any], unit: str) -> float | None:
    """Return what a row of metrics says in the unit of a target; None where it was not measured.

    Args:
        row: The metrics of one epoch; the last epoch of a run is always measured.
        unit: ``"connectivity"``, ``"synapses"``, ``"synops"`` or ``"bytes"``: the size of the
            packed file, in rows of earlier versions without its header.
    """
    if unit == "connectivity":
        return row["connectivity"]
    measured = measured_in(row)
    if unit == "bytes":
        return measured.get(FILE, measured.get("bytes_packed"))
    return measured.get(unit)


def check_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise for the first row with numbers that no run writes.

    Args:
        rows: Rows of metrics, as returned by `RunDir.history`.

    Raises:
        SpikewireError: ``epoch 3: connectivity is 1.5``.
    """
    for row in rows:
        if problem := problem_of(row):
            raise SpikewireError(f"metrics.jsonl: epoch {_shown(row['epoch'])}: {problem}")


def problem_of(row: Mapping[str, Any]) -> str:
    """Return what is wrong with a row of metrics in one line, else nothing.

    Args:
        row: The metrics of one epoch. Epoch, connectivity and seconds are required; fields that
            this version does not know must be numbers, None, or names with numbers.
    """
    for key in ("epoch", "connectivity", "seconds"):
        if not _is_number(row.get(key)):
            return f"{key} is {_shown(row.get(key))}"
    if type(row["epoch"]) is not int or row["epoch"] < 1:
        return "it is not a whole number of at least 1"
    for key in FRACTIONS:
        if row.get(key) is not None and not (_is_number(row[key]) and 0 <= row[key] <= 1):
            return f"{key} is {_shown(row[key])}"
    if row["seconds"] < 0:
        return f"seconds is {_shown(row['seconds'])}"
    return _problem_of_values(row, "") or _problem_of_layers(row) or _problem_of_costs(row)


def _problem_of_layers(row: Mapping[str, Any]) -> str:
    layers = row.get("layers", {})
    for name, counts in layers.items() if isinstance(layers, dict) else [("layers", layers)]:
        if not isinstance(counts, dict):
            return f"{_shown(name)} has no counts"
        numbers = [counts.get(key) for key in COUNTS]
        if not all(type(n) is int and n >= 0 for n in numbers) or not (
            0 < counts["total"] >= counts["present"]
        ):
            return f"the counts of {_shown(name)} are {_shown(numbers)}"
    return ""


def _problem_of_costs(row: Mapping[str, Any]) -> str:
    measured = row.get("measured", {})
    if not isinstance(measured, dict):
        return f"measured is {_shown(measured)}"
    for key in (*COSTS, *({FILE} & measured.keys())) if measured else ():
        if not (_is_number(measured.get(key)) and measured[key] >= 0):
            return f"measured.{key} is {_shown(measured.get(key))}"
    return ""


def _problem_of_values(values: Mapping[Any, Any], where: str, depth: int = 0) -> str:
    """Check that all values are numbers or None, in mappings with short printable names."""
    for key, value in values.items():
        name = f"{where}{key}"
        if not isinstance(key, str) or not key.isprintable() or len(key) > NAME_LENGTH:
            return f"{_shown(name)} is not a name"
        if isinstance(value, dict) and depth < 3:
            if problem := _problem_of_values(value, f"{name}.", depth + 1):
                return problem
        elif value is not None and not _is_number(value):
            return f"{_shown(name)} is {_shown(value)}"
    return ""


def _is_number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and -LARGEST <= value <= LARGEST and isfinite(value)


def _shown(value: object) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(value)[:60])
