"""One training in a process of its own, which outlives no one."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from threading import Event

from spikewire.files import io_errors
from spikewire.frontier.engines import Task
from spikewire.runs.lock import locked
from spikewire.runs.rundir import RunDir

PATIENCE = 20.0  # seconds in which a training whose parent was killed should have saved
TICK = 0.1  # seconds between looks at a training


class Killed(Exception):
    """A signal has ended the process; the same task again goes on from its checkpoint."""


def train(task: Task, stopped: Event, environment: Mapping[str, str] | None = None) -> str | None:
    """Take the task to its end, its output in its log; return why it failed, raise if `Killed`.

    Once `stopped`, or when this very thread is interrupted, the training saves and ends.
    """
    if task.run.is_dir():
        with locked(task.run, "training", PATIENCE):
            pass  # one whose parent was killed has saved by now
    if RunDir(task.run).finished:
        return None
    with io_errors(task.log), task.log.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "spikewire.cli.worker", str(os.getpid()), *task.words()],
            stdout=log,
            stderr=log,
            process_group=0,  # Ctrl-C reaches only the parent
            env={**os.environ, **(environment or {})},
        )
    try:
        while process.poll() is None and not stopped.wait(TICK):
            pass
    finally:
        process.terminate()
        code = process.wait()
    why = reason(code, task.log.read_bytes()[begin:].decode(errors="replace"))
    if code < 0 or code > 128:
        raise Killed(why)
    return why if code else None


def reason(code: int, said: str) -> str:
    """Return in a line why a process has failed: its last word, unless it was killed."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = said.strip().splitlines() or [f"exit code {code}"]
    return lines[-1].removeprefix("spikewire: ")
