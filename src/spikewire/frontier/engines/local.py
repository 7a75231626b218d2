"""Engine that runs trainings on this machine."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Event

from spikewire.errors import SpikewireError, check
from spikewire.frontier.engines import Results, Task
from spikewire.frontier.engines.process import Killed, run_process, train
from spikewire.frontier.engines.worker import FORKS, Worker


@dataclass(frozen=True)
class Local:
    """Run trainings on this machine. A training that is killed is recorded as failed.

    Args:
        jobs: Number of trainings at the same time; they divide the cores among them.

    Raises:
        SpikewireError: If `jobs` is less than 1.
    """

    jobs: int = 1

    def __post_init__(self) -> None:
        check(self.jobs >= 1, "jobs", self.jobs, "1 or more")

    @property
    def threads(self) -> int:
        """CPU threads per training: the cores divided by the jobs."""
        return max(1, (os.cpu_count() or 1) // self.jobs)

    def run(self, tasks: Sequence[Task]) -> Results:
        """Run the tasks; see `Engine.run`."""
        stopped = Event()
        workers = [Worker(stopped) for _ in range(self.jobs)]
        idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in workers:
            idle.put(worker)

        def run_task(task: Task) -> str | None:
            worker = idle.get()
            start = worker.run if FORKS else partial(run_process, stopped=stopped)
            try:
                return "stopped" if stopped.is_set() else train(task, start)
            except (Killed, SpikewireError) as error:
                return str(error)
            finally:
                idle.put(worker)

        with ThreadPoolExecutor(self.jobs) as pool:
            futures = {pool.submit(run_task, task): task for task in tasks}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            finally:
                stopped.set()
                pool.shutdown()  # waits for the trainings
                for worker in workers:
                    worker.close()
