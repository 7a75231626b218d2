"""Trainings on this machine, so many at a time."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from threading import Event

from spikewire.errors import SpikewireError, check
from spikewire.frontier.engines import Endings, Task
from spikewire.frontier.engines.process import Killed, train


@dataclass(frozen=True)
class Local:
    """`jobs` at a time; they share the cores. One that is killed is recorded as failed."""

    jobs: int = 1

    def __post_init__(self) -> None:
        check(self.jobs >= 1, "jobs", self.jobs, "1 or more")

    @property
    def threads(self) -> int:
        """The cores divided among the jobs."""
        return max(1, (os.cpu_count() or 1) // self.jobs)

    def work(self, tasks: Sequence[Task]) -> Endings:
        """Yield each task when it has ended; closed early, let those at work save."""
        stopped = Event()

        def do(task: Task) -> str | None:
            try:
                return "stopped" if stopped.is_set() else train(task, stopped)
            except (Killed, SpikewireError) as error:
                return str(error)

        with ThreadPoolExecutor(self.jobs) as pool:
            ending = {pool.submit(do, task): task for task in tasks}
            try:
                for future in as_completed(ending):
                    yield ending[future], future.result()
            finally:
                stopped.set()
