"""How far a frontier is, read from logs and run directories while an engine runs its jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from spikewire.errors import SpikewireError
from spikewire.frontier.engines import Task
from spikewire.frontier.jobs import Job
from spikewire.frontier.outcomes import Outcome
from spikewire.runs.history import last_rows
from spikewire.runs.names import METRICS
from spikewire.runs.rundir import RunDir


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Args:
        name: Name of the run.
        epoch: Number of finished epochs.
        epochs: Number of all epochs; None before the run directory is made.
        accuracy: The last test accuracy; None before the first test.
        connectivity: Connectivity after the last epoch; None before the first one.
        seconds_left: Estimated time to the end; None before the first epoch.
    """

    name: str
    epoch: int = 0
    epochs: int | None = None
    accuracy: float | None = None
    connectivity: float | None = None
    seconds_left: float | None = None


class Watch:
    """What the jobs of a frontier are doing, whichever engine runs them.

    A job has started when its log was touched after this object was made, and has ended when
    `record` was called with its outcome.

    Args:
        tasks: The tasks by job, from `prepare`.

    Example:
        >>> watch = Watch(tasks)
        >>> run(tasks, out, engine, on_outcome=watch.record)
        >>> watch.running()  # from another thread
    """

    def __init__(self, tasks: Mapping[Job, Task]) -> None:
        self.tasks = tasks
        self.done: list[Outcome] = []
        self.failed: list[Outcome] = []
        self._ended: set[Job] = set()
        self._touched = {job: _touched(task.log) for job, task in tasks.items()}
        self._epochs: dict[Job, int] = {}

    def record(self, outcome: Outcome) -> None:
        """Record that a job has ended."""
        (self.failed if outcome.error else self.done).append(outcome)
        self._ended.add(outcome.job)

    def running(self) -> list[Progress]:
        """Return how far each job is that has started and not ended, in the order of the jobs."""
        jobs = [job for job in self.tasks if job not in self._ended]
        return [self._progress(job) for job in jobs if self._started(job)]

    def seconds_left(self, running: Sequence[Progress]) -> float | None:
        """Return the estimated time to the end of all jobs; None before anything is known.

        Waiting jobs are expected to take as long as the mean of those that have ended or are
        running, and as many to run at the same time as now.

        Args:
            running: The jobs that are running, from `running`.
        """
        left = [x.seconds_left for x in running if x.seconds_left is not None]
        whole = [x.seconds for x in self.done if x.seconds is not None]
        whole += [_whole(x) for x in running if x.seconds_left is not None]
        if not whole or not running:
            return None
        waiting = len(self.tasks) - len(self._ended) - len(left)
        return (sum(left) + waiting * fmean(whole)) / len(running)

    def _started(self, job: Job) -> bool:
        return _touched(self.tasks[job].log) != self._touched[job]

    def _progress(self, job: Job) -> Progress:
        run = self.tasks[job].run
        epochs, rows = self._all_epochs(job), last_rows(run / METRICS)
        if not rows:
            return Progress(job.name, epochs=epochs)
        epoch, seconds = rows[-1]["epoch"], _numbers(rows, "seconds")
        accuracies = _numbers(rows, "accuracy")
        return Progress(
            job.name,
            epoch,
            epochs,
            accuracies[-1] if accuracies else None,
            *_numbers(rows[-1:], "connectivity"),
            seconds_left=(epochs - epoch) * fmean(seconds) if epochs and seconds else None,
        )

    def _all_epochs(self, job: Job) -> int | None:
        """Return the number of epochs in the run's settings, as soon as they are written."""
        if job not in self._epochs:
            try:
                self._epochs[job] = RunDir(self.tasks[job].run).config().epochs
            except (SpikewireError, OSError):
                return None
        return self._epochs[job]


def _whole(progress: Progress) -> float:
    """Return the estimated time of a whole run, from what is left of it."""
    epochs, left = progress.epochs or 0, progress.seconds_left or 0.0
    return left * epochs / max(1, epochs - progress.epoch)


def _numbers(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if isinstance(row.get(key), int | float)]


def _touched(log: Path) -> int | None:
    """Return when a log was last written or touched; None if it is absent."""
    try:
        return log.stat().st_mtime_ns
    except OSError:
        return None
