"""A command in a process that ends with its parent: ``python -m spikewire.cli.worker PID ...``.

When the parent is killed, SIGTERM lets a training save and stop. This needs Linux; elsewhere the
training continues.
"""

import ctypes
import os
import signal
import sys

from spikewire.cli import main

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent ends; exit now if it has already ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    end_with_parent(int(sys.argv.pop(1)))
    sys.exit(main())
