"""The results of a frontier: one outcome per job, one point per group of seeds, frontier.json."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spikewire.errors import SpikewireError
from spikewire.files import atomic_write, io_errors
from spikewire.frontier.jobs import Job
from spikewire.runs.rows import in_unit
from spikewire.runs.rundir import RunDir

FRONTIER = "frontier.json"


@dataclass(frozen=True)
class Outcome:
    """The result of one job.

    Args:
        job: The job.
        accuracy: Test accuracy after the last epoch; None if the job failed.
        actual: What the trained network has of the target's unit; None if the job failed.
        seconds: Training time; None if the job failed.
        error: Why the job failed, in one line; None if it did not.
    """

    job: Job
    accuracy: float | None = None
    actual: float | None = None
    seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Point:
    """The mean over the seeds of one data set, method and target.

    Args:
        dataset: Name of the data set.
        method: Name of the pruning method.
        target: The target; None for the dense baseline.
        actual: Mean of what the trained networks have of the target's unit.
        accuracy: Mean test accuracy.
        deviation: Sample standard deviation of the accuracy; None for one run.
        seconds: Mean training time.
        n: Number of finished runs.
        failed: Number of failed runs.
        unit: Unit of `target` and `actual`.
    """

    dataset: str
    method: str
    target: float | None
    actual: float
    accuracy: float
    deviation: float | None
    seconds: float
    n: int
    failed: int
    unit: str = "connectivity"


def read_outcome(job: Job, run: RunDir) -> Outcome:
    """Return the result of a finished run, from its metrics.

    Args:
        job: The job.
        run: Its run directory.

    Returns:
        The result of the last epoch; an outcome with an error if the metrics are damaged.
    """
    try:
        rows = run.history()
        last, seconds = rows[-1], sum(row["seconds"] for row in rows)
        if (actual := in_unit(last, job.unit)) is None:
            raise LookupError(job.unit)
        return Outcome(job, last["accuracy"], actual, round(seconds, 1))
    except SpikewireError as error:
        return Outcome(job, error=str(error))
    except (LookupError, TypeError):
        return Outcome(job, error=f"{run.path}: its metrics are damaged")


def points(outcomes: Iterable[Outcome]) -> list[Point]:
    """Return the mean over seeds for each data set, method and target.

    Args:
        outcomes: The results of all jobs.

    Returns:
        One point per group, in the order of its first job; a group without a finished run is left
        out.
    """
    groups: dict[tuple[str, str, float | None], list[Outcome]] = {}
    for outcome in outcomes:
        job = outcome.job
        groups.setdefault((job.dataset, job.method, job.target), []).append(outcome)
    return [_point(*key, group) for key, group in groups.items() if any(not x.error for x in group)]


def _point(dataset: str, method: str, target: float | None, group: list[Outcome]) -> Point:
    finished = [outcome for outcome in group if not outcome.error]
    accuracies = [outcome.accuracy or 0.0 for outcome in finished]
    return Point(
        dataset=dataset,
        method=method,
        target=target,
        actual=statistics.fmean(outcome.actual or 0.0 for outcome in finished),
        accuracy=statistics.fmean(accuracies),
        deviation=statistics.stdev(accuracies) if len(finished) > 1 else None,
        seconds=statistics.fmean(outcome.seconds or 0.0 for outcome in finished),
        n=len(finished),
        failed=len(group) - len(finished),
        unit=group[0].job.unit,
    )


def save_outcomes(out: Path, outcomes: Sequence[Outcome]) -> None:
    """Write ``frontier.json``: all runs, and the points over their seeds.

    Args:
        out: The directory of the frontier.
        outcomes: The results of all jobs.

    Raises:
        SpikewireError: If the file cannot be written.
    """
    content = {
        "runs": [outcome_row(outcome) for outcome in outcomes],
        "points": [asdict(point) for point in points(outcomes)],
    }
    with io_errors(out), atomic_write(out / FRONTIER) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as it is written in ``frontier.json``."""
    result = asdict(outcome)
    return {**result.pop("job"), "name": outcome.job.name, **result}
