"""Trainings on a Ray cluster; its machines share the file system and have spikewire installed."""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from spikewire.errors import SpikewireError, check
from spikewire.frontier.engines import Endings, Task
from spikewire.frontier.engines.process import Killed, train

RETRIES = 3  # of a training whose process, worker or machine has died
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Ray:
    """`cores` and `gpus` (a share of one is fine) are declared for each training.

    Without `address` it is the cluster that runs on this machine, or a new one for the while.
    """

    address: str | None = None
    cores: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        check(self.cores >= 1, "cores", self.cores, "1 or more")
        fits = 0 <= self.gpus < 1 or (self.gpus > 0 and self.gpus % 1 == 0)
        check(fits, "gpus", self.gpus, "a share of one GPU or a whole number")
        load()

    @property
    def threads(self) -> int:
        """The cores of a training."""
        return self.cores

    def work(self, tasks: Sequence[Task]) -> Endings:
        """Yield each task when it has ended; closed early, let those at work save."""
        if not tasks:
            return
        with connected(self.address) as ray:
            self.refuse_too_much(ray)
            remote = ray.remote(do).options(
                num_cpus=self.cores,
                num_gpus=self.gpus,
                max_retries=RETRIES,
                retry_exceptions=[Killed],
            )
            here, environment = Path.cwd(), self.environment()
            at_work = {remote.remote(task, here, environment): task for task in tasks}
            try:
                while at_work:
                    (ended, *_), _ = ray.wait(list(at_work))
                    yield at_work.pop(ended), failure(ray, ended)
            finally:
                stop(ray, list(at_work))

    def environment(self) -> dict[str, str]:
        """Return what a training sees as it would here; of GPUs only those declared."""
        ours = {key: value for key, value in os.environ.items() if key.startswith("SPIKEWIRE_")}
        return ours if self.gpus else {**ours, "CUDA_VISIBLE_DEVICES": ""}

    def refuse_too_much(self, ray: Any) -> None:
        """Raise if no machine of the cluster is large enough: Ray would wait for one for ever."""
        for node in ray.nodes():
            has = node["Resources"]
            if node["Alive"] and has.get("CPU", 0) >= self.cores and has.get("GPU", 0) >= self.gpus:
                return
        raise SpikewireError(
            f"no machine of the cluster has {self.cores} cores and {self.gpus:g} GPUs"
        )


def load() -> Any:
    """Return the module, which says nothing to the terminal and sends nothing to its makers."""
    for key, value in QUIET.items():  # it looks once, at its import
        os.environ.setdefault(key, value)
    try:
        import ray
    except ImportError:
        raise SpikewireError(
            "--engine ray: not installed; run `pip install 'spikewire[ray]'`"
        ) from None
    return ray


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yield the module, connected to the cluster."""
    ray = load()
    if address:
        refuse_silence(address)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError) as error:
        raise SpikewireError(f"--engine ray: no cluster: {in_one_line(error)}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def refuse_silence(address: str) -> None:
    """Raise if nothing listens there: Ray would try for many minutes."""
    host, _, port = address.rpartition(":")
    check(bool(host) and port.isdecimal(), "--address", address, "HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise SpikewireError(f"--address: no answer from {address}: {error}") from None


def do(task: Task, folder: Path, environment: Mapping[str, str]) -> str | None:
    """Do the task in a Ray worker as if it had been started in `folder`."""
    os.chdir(folder)
    try:
        return train(task, Event(), environment)
    except SpikewireError as error:
        return str(error)


def stop(ray: Any, at_work: Sequence[Any]) -> None:
    """Interrupt tasks and wait until each of them has saved."""
    for task in at_work:
        ray.cancel(task)
    if at_work:
        ray.wait(at_work, num_returns=len(at_work))


def failure(ray: Any, ended: Any) -> str | None:
    """Return why a task has failed: what it says, or what became of its processes."""
    try:
        return ray.get(ended)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, Killed):
            return f"{cause}, and so were {RETRIES} retries"
        return in_one_line(f"{type(cause).__name__}: {cause}")
    except ray.exceptions.RayError as error:
        return f"its Ray worker died ({type(error).__name__}), and so did {RETRIES} retries"


def in_one_line(text: object) -> str:
    """Return what Ray says in a line."""
    return " ".join(str(text).split())
