"""Engine that runs trainings on a Ray cluster.

The machines of the cluster share the file system and have spikewire installed.
"""

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from spikewire.errors import SpikewireError, check
from spikewire.frontier.engines import Results, Task
from spikewire.frontier.engines.process import Killed, run_process, train

RETRIES = 3  # of a training whose process, worker or machine has died
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Ray:
    """Run trainings on a Ray cluster. A training that is killed is retried from its checkpoint.

    Args:
        address: ``HOST:PORT`` of the cluster; None for the one on this machine, or a new one that
            ends with the frontier.
        cores: CPU cores declared per training.
        gpus: GPUs declared per training: a fraction of one or a whole number. With 0 the training
            sees no GPU.

    Raises:
        SpikewireError: If a number is invalid or Ray is not installed.
    """

    address: str | None = None
    cores: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        check(self.cores >= 1, "cores", self.cores, "1 or more")
        valid = 0 <= self.gpus < 1 or (self.gpus > 0 and self.gpus % 1 == 0)
        check(valid, "gpus", self.gpus, "a fraction of one GPU or a whole number")
        import_ray()

    @property
    def threads(self) -> int:
        """CPU threads per training: its cores."""
        return self.cores

    def run(self, tasks: Sequence[Task]) -> Results:
        """Run the tasks; see `Engine.run`."""
        if not tasks:
            return
        with _connected(self.address) as ray:
            self._check_resources(ray)
            remote = ray.remote(_run_task).options(
                num_cpus=self.cores,
                num_gpus=self.gpus,
                max_retries=RETRIES,
                retry_exceptions=[Killed],
            )
            folder, environment = Path.cwd(), self._environment()
            pending = {remote.remote(task, folder, environment): task for task in tasks}
            try:
                while pending:
                    (ended, *_), _ = ray.wait(list(pending))
                    yield pending.pop(ended), _failure(ray, ended)
            finally:
                _cancel(ray, list(pending))

    def _environment(self) -> dict[str, str]:
        """Return the environment variables of a training."""
        ours = {key: value for key, value in os.environ.items() if key.startswith("SPIKEWIRE_")}
        return ours if self.gpus else {**ours, "CUDA_VISIBLE_DEVICES": ""}

    def _check_resources(self, ray: Any) -> None:
        """Raise if no machine of the cluster is large enough: Ray would wait for one forever."""
        for node in ray.nodes():
            has = node["Resources"]
            if node["Alive"] and has.get("CPU", 0) >= self.cores and has.get("GPU", 0) >= self.gpus:
                return
        raise SpikewireError(
            f"no machine of the cluster has {self.cores} cores and {self.gpus:g} GPUs"
        )


def import_ray() -> Any:
    """Import Ray, without its messages on the terminal and its usage statistics.

    Returns:
        The module.

    Raises:
        SpikewireError: If Ray is not installed.
    """
    for key, value in QUIET.items():  # read once, when ray is imported
        os.environ.setdefault(key, value)
    try:
        import ray
    except ImportError:
        raise SpikewireError(
            "--engine ray: not installed; run `pip install 'spikewire[ray]'`"
        ) from None
    return ray


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Yield the module, connected to the cluster."""
    ray = import_ray()
    if address:
        _check_reachable(address)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError) as error:
        raise SpikewireError(f"--engine ray: no cluster: {_one_line(error)}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at the address: Ray would try for many minutes."""
    host, _, port = address.rpartition(":")
    check(bool(host) and port.isdecimal(), "--address", address, "HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise SpikewireError(f"--address: no answer from {address}: {error}") from None


def _run_task(task: Task, folder: Path, environment: Mapping[str, str]) -> str | None:
    """Run the task in a Ray worker as if it had been started in `folder`."""
    os.chdir(folder)
    try:
        return train(task, partial(run_process, stopped=Event(), environment=environment))
    except SpikewireError as error:
        return str(error)


def _cancel(ray: Any, pending: Sequence[Any]) -> None:
    """Interrupt tasks and wait until each of them has saved."""
    for task in pending:
        ray.cancel(task)
    if pending:
        ray.wait(pending, num_returns=len(pending))


def _failure(ray: Any, ended: Any) -> str | None:
    """Return why a task has failed, or None."""
    try:
        return ray.get(ended)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, Killed):
            return f"{cause}, and so were {RETRIES} retries"
        return _one_line(f"{type(cause).__name__}: {cause}")
    except ray.exceptions.RayError as error:
        return f"its Ray worker died ({type(error).__name__}), and so did {RETRIES} retries"


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
