"""A process that imports torch once and runs many trainings, each in a process forked from it.

A forked process starts from the state just after the imports: seeds, threads, dtypes and all other
global state are those of a new process, and its memory is freed when it ends. So a training cannot
affect the next one, and gives the bits it would give in a process of its own.
"""

import json
import socket
import sys
from subprocess import Popen
from threading import Event
from typing import BinaryIO

from spikewire.frontier.engines.process import POLL_INTERVAL, start_worker

FORKS = sys.platform == "linux"  # on macOS system libraries do not survive a fork; Windows has none


class Worker:
    """Runs trainings one after another; its process starts with the first one.

    A worker that has died is replaced when the next training starts.

    Args:
        stopped: Once set, the training saves a checkpoint and stops, and so does the worker.

    Example:
        >>> worker = Worker(Event())
        >>> with open("log.txt", "ab") as log:
        ...     worker.run(["train", "--out", "runs/a"], log)
        0
        >>> worker.close()
    """

    def __init__(self, stopped: Event) -> None:
        self.stopped = stopped
        self._alive: tuple[Popen[bytes], socket.socket] | None = None

    def run(self, words: list[str], log: BinaryIO) -> int:
        """Run a command to its end.

        Args:
            words: The arguments of `spikewire`.
            log: The file for its output.

        Returns:
            Its exit code; negative if a signal has ended it, or the worker.
        """
        new = self._alive is None
        process, connection = self._alive = self._alive or _start(log)
        if _send(connection, words, log) and self._receive(process, connection):
            if code := self._receive(process, connection):
                return int(code)
        elif not new:  # the worker had died since its last training
            self.close()
            return self.run(words, log)
        return self.close()

    def close(self) -> int:
        """End the process, which is idle or dead; return its exit code."""
        if self._alive is None:
            return 0
        (process, connection), self._alive = self._alive, None
        connection.close()
        return process.wait()

    def _receive(self, process: Popen[bytes], connection: socket.socket) -> bytes:
        """Wait for a message: a process id, then an exit code; empty if the worker has died."""
        terminated = False
        while True:
            if self.stopped.is_set() and not terminated:
                process.terminate()
                terminated = True
            try:
                return connection.recv(64)
            except TimeoutError:
                pass
            except ConnectionResetError:
                return b""


def _start(log: BinaryIO) -> tuple[Popen[bytes], socket.socket]:
    """Return a new process and the connection to it; what its imports print goes to the log."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(POLL_INTERVAL)
    with theirs:
        number = theirs.fileno()
        return start_worker([f"--serve={number}"], log, pass_fds=(number,)), ours


def _send(connection: socket.socket, words: list[str], log: BinaryIO) -> bool:
    """Send a command and the file for its output; return whether the worker is alive."""
    try:
        socket.send_fds(connection, [json.dumps(words).encode()], [log.fileno()])
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True
