"""The frontier: data set x method x connectivity x seed as a list of jobs that can be stopped.

Each job is one `spikewire train` that an engine takes to its end; it leaves an ordinary run
directory. The same command again runs only what is missing and goes on with what was cut short.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from spikewire.config import Config, flag, method_fields, resolve, settings
from spikewire.errors import SpikewireError, check, unknown
from spikewire.files import atomic_write, io_errors
from spikewire.frontier.engines import Engine, Task
from spikewire.methods import METHODS
from spikewire.runs.lock import locked
from spikewire.runs.rundir import RunDir

FRONTIER, LOGS = "frontier.json", "logs"


@dataclass(frozen=True)
class Job:
    """One run of the list; `connectivity` is None for the dense baseline."""

    dataset: str
    method: str
    connectivity: float | None
    seed: int

    @property
    def name(self) -> str:
        """The run directory's name, which tells the job."""
        share = "" if self.connectivity is None else f"-{self.connectivity:g}"
        return f"{self.dataset}-{self.method}{share}-seed{self.seed}"

    def settings(self, shared: Mapping[str, str]) -> dict[str, str]:
        """Return its flags: of the shared ones those its method takes, then its own."""
        taken = {*settings(), *method_fields(self.method)}
        own = {key: value for key, value in shared.items() if key in taken}
        own |= {"dataset": self.dataset, "method": self.method, "seed": str(self.seed)}
        return (
            own if self.connectivity is None else {**own, "connectivity": f"{self.connectivity:g}"}
        )


@dataclass(frozen=True)
class Outcome:
    """What became of a job; a failed one has `error` and no figures."""

    job: Job
    accuracy: float | None = None
    reached: float | None = None
    seconds: float | None = None
    error: str | None = None


def plan(
    datasets: Iterable[str], methods: Iterable[str], shares: Sequence[float], seeds: int
) -> list[Job]:
    """Return the jobs, the first seed of everything before the second; dense needs no share."""
    check(1 <= seeds <= 10_000, "seeds", seeds, "1 to 10,000")
    for share in shares:
        check(0 < share <= 1, "connectivity", share, "in (0, 1]")
    shares = [float(f"{share:g}") for share in shares]  # as a job's name tells it
    jobs: list[Job] = []
    for seed, dataset, method in product(range(seeds), datasets, methods):
        if method not in METHODS:
            raise unknown("methods", method, METHODS)
        if method == "dense":
            jobs.append(Job(dataset, method, None, seed))
        elif "connectivity" not in method_fields(method):
            raise SpikewireError(f"methods: {method} takes no connectivity, so it has no frontier")
        else:
            jobs += [Job(dataset, method, share, seed) for share in shares]
    return list(dict.fromkeys(jobs))


def prepare(
    jobs: Sequence[Job],
    out: Path,
    *,
    preset: str | None = None,
    file: str | None = None,
    flags: Mapping[str, str] | None = None,
    threads: int = 1,
) -> dict[Job, Task]:
    """Return each job's training, in order; `threads` is for those whose settings name none."""
    given = {key: value for key, value in (("preset", preset), ("config", file)) if value}
    shared = dict(flags or {})
    refuse_unused(shared, jobs)
    tasks = {}
    for job in jobs:
        own, run = job.settings(shared), out / job.name
        config = resolve(preset, file, own)
        refuse_other_settings(run, config)
        if not config.threads:
            own.setdefault("threads", str(threads))
        tasks[job] = Task(run, out / LOGS / f"{job.name}.txt", {**given, **own})
    return tasks


def missing(tasks: Iterable[Task]) -> list[Task]:
    """Return those that have not come to their end."""
    return [task for task in tasks if not RunDir(task.run).finished]


def run(
    tasks: Mapping[Job, Task],
    out: Path,
    engine: Engine,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Have the engine do what is missing; return the outcome of every job, in order."""
    with io_errors(out):
        (out / LOGS).mkdir(parents=True, exist_ok=True)
    outcomes: dict[Job, Outcome] = {}
    job_of = {task: job for job, task in tasks.items()}

    def ended(task: Task, error: str | None = None) -> None:
        job = job_of[task]
        outcomes[job] = Outcome(job, error=error) if error else outcome_of(job, RunDir(task.run))
        on_outcome(outcomes[job])

    with locked(out, "frontier"):
        todo = missing(tasks.values())
        for task in tasks.values():
            if task not in todo:
                ended(task)
        with closing(engine.work(todo)) as ending:
            for task, error in ending:
                ended(task, error)
        in_order = [outcomes[job] for job in tasks]
        save(out, in_order)
    return in_order


def refuse_unused(flags: Mapping[str, str], jobs: Sequence[Job]) -> None:
    """Raise for a flag that none of the methods takes."""
    taken = {*settings(), *(key for job in jobs for key in method_fields(job.method))}
    for key in flags.keys() - taken:
        raise SpikewireError(f"{flag(key)}: none of the methods takes it")


def refuse_other_settings(folder: Path, config: Config) -> None:
    """Raise if the directory holds a run of other settings: a frontier compares like with like."""
    run = RunDir(folder)
    if run.started and (differing := config.differences(asdict(run.config()))):
        raise SpikewireError(f"{folder}: was made with other settings: {', '.join(differing)}")


def outcome_of(job: Job, run: RunDir) -> Outcome:
    """Read a finished run's last epoch."""
    try:
        rows = run.history()
        last, seconds = rows[-1], sum(row["seconds"] for row in rows)
        return Outcome(job, last["accuracy"], last["connectivity"], round(seconds, 1))
    except (SpikewireError, LookupError, TypeError) as error:
        damaged = f"{run.path}: its metrics are damaged"
        return Outcome(job, error=str(error) if isinstance(error, SpikewireError) else damaged)


# ---------------------------------------------------------------------- what it shows


@dataclass(frozen=True)
class Point:
    """The runs of one (data set, method, connectivity): mean and sample standard deviation."""

    dataset: str
    method: str
    asked: float | None
    reached: float
    accuracy: float
    deviation: float
    seconds: float
    n: int
    failed: int


def points(outcomes: Iterable[Outcome]) -> list[Point]:
    """Group outcomes over seeds; a group in which all failed is left out."""
    groups: dict[tuple[str, str, float | None], list[Outcome]] = {}
    for outcome in outcomes:
        job = outcome.job
        groups.setdefault((job.dataset, job.method, job.connectivity), []).append(outcome)
    return [_point(*key, group) for key, group in groups.items() if any(not x.error for x in group)]


def _point(dataset: str, method: str, asked: float | None, group: list[Outcome]) -> Point:
    done = [outcome for outcome in group if not outcome.error]
    accuracies = [outcome.accuracy or 0.0 for outcome in done]
    return Point(
        dataset=dataset,
        method=method,
        asked=asked,
        reached=statistics.fmean(outcome.reached or 0.0 for outcome in done),
        accuracy=statistics.fmean(accuracies),
        deviation=statistics.stdev(accuracies) if len(done) > 1 else 0.0,
        seconds=statistics.fmean(outcome.seconds or 0.0 for outcome in done),
        n=len(done),
        failed=len(group) - len(done),
    )


def draw(outcomes: Iterable[Outcome], out: Path) -> list[Path]:
    """Draw the report's figure of the runs that have ended well; return the files."""
    from spikewire.report import load, save_figures
    from spikewire.report.figures import frontier

    plot = frontier([load(out / x.job.name) for x in outcomes if not x.error])
    return save_figures([plot], out) if plot else []


def save(out: Path, outcomes: Sequence[Outcome]) -> None:
    """Write `frontier.json`: every run, and the points they make."""
    content: dict[str, Any] = {
        "runs": [{**asdict(x.job), "name": x.job.name, **_figures(x)} for x in outcomes],
        "points": [asdict(point) for point in points(outcomes)],
    }
    with io_errors(out), atomic_write(out / FRONTIER) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def _figures(outcome: Outcome) -> dict[str, Any]:
    figures = asdict(outcome)
    del figures["job"]
    return figures
