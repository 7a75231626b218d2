"""Running a frontier: each job is one `spikewire train` that an engine runs to its end.

A job leaves an ordinary run directory. The same frontier again runs only what is missing and
resumes what was interrupted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from spikewire.config import Config, flag, method_fields, resolve, settings
from spikewire.errors import SpikewireError
from spikewire.files import io_errors, make_folder, require_plain
from spikewire.frontier.engines import Engine, Task
from spikewire.frontier.jobs import Job
from spikewire.frontier.outcomes import FRONTIER, Outcome, read_outcome, save_outcomes
from spikewire.runs.lock import locked
from spikewire.runs.rundir import RunDir

LOGS = "logs"


def prepare(
    jobs: Sequence[Job],
    out: Path,
    *,
    preset: str | None = None,
    file: str | None = None,
    flags: Mapping[str, str] | None = None,
    threads: int = 1,
) -> dict[Job, Task]:
    """Return the training of each job, after checking all of their settings.

    Args:
        jobs: The jobs, from `plan`.
        out: The directory of the frontier; each job has a run directory in it.
        preset: Name of the preset that all jobs start from.
        file: A TOML file with settings for all jobs.
        flags: Further settings for all jobs, as texts by field name.
        threads: CPU threads of the jobs whose settings do not name a number.

    Returns:
        The tasks by job, in the order of the jobs.

    Raises:
        SpikewireError: If a setting is invalid or used by no method, or if a run directory was
            made with other settings.
    """
    given = {key: value for key, value in (("preset", preset), ("config", file)) if value}
    shared = dict(flags or {})
    _refuse_unused(shared, jobs)
    tasks = {}
    for job in jobs:
        own, run = job.settings(shared), out / job.name
        config = resolve(preset, file, own)
        _refuse_other_settings(run, config)
        if not config.threads:
            own.setdefault("threads", str(threads))
        tasks[job] = Task(run, out / LOGS / f"{job.name}.txt", {**given, **own})
    return tasks


def missing(tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks whose run is not finished."""
    return [task for task in tasks if not RunDir(task.run).finished]


def run(
    tasks: Mapping[Job, Task],
    out: Path,
    engine: Engine,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run what is missing and write ``frontier.json``.

    Args:
        tasks: The tasks by job, from `prepare`.
        out: The directory of the frontier, which is locked against a second one.
        engine: Where the tasks run.
        on_outcome: Called with the result of each job as soon as it is known; first with those of
            the jobs that were finished before.

    Returns:
        The results of all jobs, in order.

    Raises:
        SpikewireError: If another frontier runs in `out`, or if it cannot be written.

    Example:
        >>> jobs = plan(["digits"], ["deepr", "budget"], [0.1, 0.05], seeds=3)
        >>> tasks = prepare(jobs, Path("runs/frontier"))
        >>> points(run(tasks, Path("runs/frontier"), Local(jobs=2)))
    """
    with io_errors(out):
        make_folder(out / LOGS)
        for path in (out / FRONTIER, *(task.run for task in tasks.values())):
            require_plain(path)
    outcomes: dict[Job, Outcome] = {}
    job_of = {task: job for job, task in tasks.items()}

    def record(task: Task, error: str | None = None) -> None:
        job = job_of[task]
        outcomes[job] = Outcome(job, error=error) if error else read_outcome(job, RunDir(task.run))
        on_outcome(outcomes[job])

    with locked(out, "frontier"):
        todo = missing(tasks.values())
        for task in tasks.values():
            if task not in todo:
                record(task)
        with closing(engine.run(todo)) as results:
            for task, error in results:
                record(task, error)
        in_order = [outcomes[job] for job in tasks]
        save_outcomes(out, in_order)
    return in_order


def _refuse_unused(flags: Mapping[str, str], jobs: Sequence[Job]) -> None:
    """Raise if none of the methods accepts a flag."""
    accepted = {*settings(), *(key for job in jobs for key in method_fields(job.method))}
    for key in flags.keys() - accepted:
        raise SpikewireError(f"{flag(key)}: none of the methods takes it")


def _refuse_other_settings(folder: Path, config: Config) -> None:
    """Raise if the run in the directory has other settings: its result would not be comparable."""
    run = RunDir(folder)
    if run.started and (differing := config.differences(asdict(run.config()))):
        fields = ", ".join(differing)
        raise SpikewireError(
            f"{folder}: was made with other settings: {fields}; give another --out, or delete it"
        )
