"""Results as JSON files: means and standard deviations over seeds.

The folder has one subfolder per data set. A file is one run (``benchmarks/time_to_accuracy.py``),
where ``-seed1`` at the end of its name marks a repetition, or a frontier (`spikewire frontier`).
Files that begin with ``first-``, ``second-`` or ``third-`` hold superseded recipes and are skipped.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from spikewire.errors import SpikewireError
from spikewire.files import read_errors
from spikewire.pruning import UNITS

SUPERSEDED = ("first-", "second-", "third-")


@dataclass(frozen=True)
class Result:
    """One point: the mean over seeds.

    Args:
        dataset: Name of the data set.
        method: Name of the method.
        line: Label of the line that joins it with others.
        accuracy: Mean accuracy in %.
        deviation: Its sample standard deviation; None for one run.
        n: Number of runs.
        connectivity: Fraction of weights, in %.
        synapses: Fraction of synapses reached from the input, in %; None if unknown.
        at_least: Whether `synapses` counts those on a path to the output only, which are fewer.
        synops: Operations per sample; None if unknown.
        unit: Unit of the target.
    """

    dataset: str
    method: str
    line: str
    accuracy: float
    deviation: float | None
    n: int
    connectivity: float
    synapses: float | None = None
    at_least: bool = False
    synops: float | None = None
    unit: str = "connectivity"


def read_results(folder: str | Path) -> list[Result]:
    """Read the results of all data sets.

    Args:
        folder: The folder; one subfolder per data set.

    Returns:
        One result per point, by data set and file.

    Raises:
        SpikewireError: A file is damaged, or there is no result.

    Example:
        >>> [result.accuracy for result in read_results("results") if result.dataset == "cifar10"]
    """
    found = []
    for path in sorted(Path(folder).glob("*/")):
        found += _read_folder(path)
    if not found:
        raise SpikewireError(f"{folder}: contains no results; see results/README.md")
    return found


def _read_folder(folder: Path) -> list[Result]:
    repetitions: dict[Path, list[dict[str, Any]]] = {}
    frontiers: list[Result] = []
    for path in sorted(folder.glob("*.json")):
        if path.name.startswith(SUPERSEDED):
            continue
        with read_errors(path):
            content = json.loads(path.read_text("utf-8"))
            if "points" in content:
                frontiers += _read_frontier(content)
            elif "accuracy" in content:
                first = folder / re.sub(r"-seed\d+\.json$", ".json", path.name)
                repetitions.setdefault(first, []).append(content)
    runs = []
    for path, contents in repetitions.items():
        with read_errors(path):
            runs.append(_average(folder.name, contents))
    return [*runs, *_with_labels(frontiers)]


def _read_frontier(content: dict[str, Any]) -> Iterator[Result]:
    """Yield the points of a frontier; older files call target and actual "asked" and "reached"."""
    preset = re.search(r"--preset (\S+)", content.get("command", ""))
    for point in content["points"]:
        if point["accuracy"] is not None:
            deviation = point["deviation"]
            yield Result(
                dataset=point["dataset"],
                method=point["method"],
                line=preset[1] if preset else "",
                accuracy=100 * point["accuracy"],
                deviation=None if deviation is None else 100 * deviation,
                n=point["n"],
                connectivity=100 * point["actual" if "actual" in point else "reached"],
            )


def _with_labels(results: Sequence[Result]) -> list[Result]:
    """Return results whose lines are labelled by the method, and by the preset if it has two."""
    presets: dict[str, set[str]] = {}
    for result in results:
        presets.setdefault(result.method, set()).add(result.line)

    def label(result: Result) -> str:
        several = len(presets[result.method]) > 1
        return f"{result.method}, {result.line}" if several else result.method

    return [replace(result, line=label(result)) for result in results]


def _average(dataset: str, runs: Sequence[dict[str, Any]]) -> Result:
    """Return the mean of runs that differ by their seed; some have only an accuracy."""
    accuracies = [100 * run["accuracy"] for run in runs]
    config = tomllib.loads("\n".join(next((run["config"] for run in runs if "config" in run), [])))
    method = config.get("method", "budget")
    unit = next((unit for unit in UNITS if unit in config.get(method, {})), "connectivity")
    reached = _mean(runs, "synapses_reached")
    alive = _mean(runs, "synapses_alive", "synapse_connectivity")
    synapses = alive if reached is None else reached
    line = method if unit == "connectivity" else f"{method}, target in {unit}"
    return Result(
        dataset=dataset,
        method=method,
        line=f"{line}, with a teacher" if config.get("teacher") else line,
        accuracy=fmean(accuracies),
        deviation=stdev(accuracies) if len(runs) > 1 else None,
        n=len(runs),
        connectivity=100 * fmean(run["connectivity"] for run in runs),
        synapses=None if synapses is None else 100 * synapses,
        at_least=reached is None,
        synops=_mean(runs, "synops"),
        unit=unit,
    )


def _mean(runs: Sequence[dict[str, Any]], *names: str) -> float | None:
    """Return the mean of what was measured, under one of several names; None if it was not."""
    measured = [run.get("measured", {}) for run in runs]
    found = [next((row[name] for name in names if row.get(name)), None) for row in measured]
    known = [value for value in found if value is not None]
    return fmean(known) if known else None
