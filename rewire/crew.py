"""Trainings in processes of their own that outlive no one: all or none hold the directory."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rewire.errors import RewireError
from rewire.rundir import one_line

LOCK = ".lock"
PATIENCE = 20.0  # seconds in which the workers of a killed frontier should have saved


class Crew:
    """The processes at work. Ctrl-C reaches only the parent, which lets each of them save."""

    def __init__(self, lock: int) -> None:
        self.lock, self.stopped = lock, False
        self.at_work: set[subprocess.Popen[bytes]] = set()
        self._gate = threading.Lock()

    def work(self, words: Sequence[str], log: Path) -> str | None:
        """Run one command of ours to its end, its output in `log`; return why it failed."""
        command = [sys.executable, "-m", "rewire.cli.worker", str(os.getpid()), *words]
        with log.open("ab") as file:
            begin = file.tell()
            with self._gate:
                if self.stopped:
                    return "stopped"
                process = subprocess.Popen(
                    command, stdout=file, stderr=file, process_group=0, pass_fds=(self.lock,)
                )
                self.at_work.add(process)
            code = process.wait()
            self.at_work.discard(process)
        return reason(code, log.read_bytes()[begin:].decode(errors="replace")) if code else None

    def stop(self) -> None:
        """Let all of them save and end; start no other."""
        with self._gate:
            self.stopped = True
            for process in self.at_work:
                process.terminate()


def reason(code: int, said: str) -> str:
    """Return in a line why a process has failed: its last word, unless it was killed."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = said.strip().splitlines() or [f"exit code {code}"]
    return lines[-1].removeprefix("rewire: ")


@contextmanager
def held(folder: Path, patience: float = PATIENCE) -> Iterator[int]:
    """Hold a directory against other crews; who inherits the descriptor holds it too.

    So the workers of a parent that was killed keep it until they have saved; that is waited for.
    """
    with one_line(folder):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        until = time.monotonic() + patience
        while not _taken(lock):
            if time.monotonic() > until:
                raise RewireError(f"{folder}: another frontier is at work there; wait for its end")
            time.sleep(0.1)
        yield lock
    finally:
        os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
