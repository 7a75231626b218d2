"""Trainings in processes that end with their parent.

``python -m spikewire.cli.worker PID train ...`` runs one command. ``PID --serve=FD`` imports torch,
then runs each command that comes through the socket in a forked process, one after another. When
the parent is killed, SIGTERM lets a training save and stop. This needs Linux; elsewhere the
training continues.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module

from spikewire.cli import HEAVY, main

PR_SET_PDEATHSIG = 1
LONGEST = 1 << 18  # bytes of a command
# the first optimizer step imports torch._dynamo, which takes as long as torch itself
IMPORTS = (*HEAVY["train"], "spikewire.methods", "torch._dynamo", "numpy.random")


def end_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent ends; exit now if it has already ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if sys.platform != "win32" and os.getppid() != parent:  # there a venv's python is in between
        sys.exit(128 + signal.SIGTERM)


class Server:
    """Runs the commands that come through a socket, each in a forked process.

    The answers to a command are its process id and, at its end, its exit code. SIGTERM is passed on
    to the training, and ends the server after it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pid = os.getpid()
        self.child = 0
        self.stopping = False

    def serve(self) -> int:
        """Run commands until the other side closes the socket; return the exit code."""
        for name in IMPORTS:
            import_module(name)
        gc.freeze()  # so that no training walks through, and so copies, the memory of the imports
        signal.signal(signal.SIGTERM, self.stop)
        while True:
            message, logs, *_ = socket.recv_fds(self.connection, LONGEST, 1)
            if not message:
                os._exit(0)  # there is nothing to save, and leaving in order takes a while
            if self.fork():
                for log in logs:
                    os.close(log)
                self.wait()
            else:
                return self.train(json.loads(message), *logs)

    def stop(self, number: int, frame: object) -> None:
        """Handle SIGTERM: pass it on to the training; leave if there is none."""
        self.stopping = True
        if not self.child:
            os._exit(128 + number)
        os.kill(self.child, number)

    def fork(self) -> int:
        """Return 0 in the new process and its id in this one, where SIGTERM finds it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.child = os.fork()
        if not self.child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return self.child

    def train(self, words: list[str], log: int) -> int:
        """Run a command in the process just forked, as if it had been started alone."""
        end_with_parent(self.pid)
        self.connection.close()
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        import numpy

        numpy.random.seed()  # as in a new process: torch has a fixed seed, random a new one
        sys.argv[1:] = words
        return main(words)

    def wait(self) -> None:
        """Report the process id, wait for the process and report its exit code."""
        self.answer(self.child)
        os.waitid(os.P_PID, self.child, os.WEXITED | os.WNOWAIT)  # its id stays taken
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        _, status = os.waitpid(self.child, 0)
        self.child = 0
        self.answer(os.waitstatus_to_exitcode(status))
        if self.stopping:
            os._exit(128 + signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def answer(self, number: int) -> None:
        """Send a number, as long as someone listens."""
        with suppress(OSError):
            self.connection.send(str(number).encode())


if __name__ == "__main__":
    end_with_parent(int(sys.argv.pop(1)))
    word, _, number = sys.argv[1].partition("=")
    if word == "--serve":
        sys.exit(Server(socket.socket(fileno=int(number))).serve())
    sys.exit(main())
