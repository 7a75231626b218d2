"""One training in a process of its own, which ends when its parent ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from threading import Event
from typing import BinaryIO

from spikewire.files import io_errors, open_append
from spikewire.frontier.engines import Task
from spikewire.runs.lock import locked
from spikewire.runs.rundir import RunDir

LOCK_TIMEOUT = 20.0  # seconds for a training whose parent was killed to save and stop
POLL_INTERVAL = 0.1  # seconds between checks of a training

Start = Callable[[list[str], BinaryIO], int]  # arguments of spikewire, log -> exit code


class Killed(Exception):
    """A signal has ended the training; run again, the task resumes from its checkpoint."""


def train(task: Task, start: Start) -> str | None:
    """Run a task to its end and append its output to its log.

    Args:
        task: The training.
        start: Runs a command to its end, with its output in a file, and returns its exit code;
            negative if a signal has ended it.

    Returns:
        Why the training failed, or None.

    Raises:
        Killed: If a signal has ended the training.
        SpikewireError: If the log cannot be written, or another training holds the run directory.
    """
    if task.run.is_dir():
        with locked(task.run, "training", LOCK_TIMEOUT):
            pass  # a training whose parent was killed has saved by now
    if RunDir(task.run).finished:
        return None
    with io_errors(task.log), open_append(task.log) as log:
        begin = log.tell()
        os.utime(task.log)  # says that the training has started
        code = start(task.command(), log)
    reason = failure_reason(code, task.log.read_bytes()[begin:].decode(errors="replace"))
    if code < 0 or code > 128:
        raise Killed(reason)
    return reason if code else None


def run_process(
    words: list[str],
    log: BinaryIO,
    stopped: Event,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command in a new process.

    Args:
        words: The arguments of `spikewire`.
        log: The file for its output.
        stopped: Once set, the training saves a checkpoint and stops; so it does when this thread
            is interrupted.
        environment: Environment variables to add.

    Returns:
        Its exit code; negative if a signal has ended it.
    """
    process = start_worker(words, log, environment)
    try:
        while process.poll() is None and not stopped.wait(POLL_INTERVAL):
            pass
    finally:
        process.terminate()
        code = process.wait()
    return code


def start_worker(
    words: list[str],
    log: BinaryIO,
    environment: Mapping[str, str] | None = None,
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start `spikewire.cli.worker`, whose output goes to the log and which ends with us."""
    return subprocess.Popen(
        [sys.executable, "-m", "spikewire.cli.worker", str(os.getpid()), *words],
        stdout=log,
        stderr=log,
        process_group=None if sys.platform == "win32" else 0,  # Ctrl-C interrupts only us
        env={**os.environ, **(environment or {})},
        pass_fds=pass_fds,
    )


def failure_reason(code: int, output: str) -> str:
    """Return in one line why a process has failed.

    Args:
        code: Its exit code; negative if a signal has ended it.
        output: What it has printed.

    Returns:
        The signal, the last line of the output, or the exit code if there is no output.
    """
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = output.strip().splitlines() or [f"exit code {code}"]
    return lines[-1].removeprefix("spikewire: ")
