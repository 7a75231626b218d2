"""One command in a process that ends with its parent: ``python -m spikewire.cli.worker PID ...``.

When the parent is killed, SIGTERM lets a training save and stop (Linux; elsewhere it goes on).
"""

import ctypes
import os
import signal
import sys

from spikewire.cli import main

PR_SET_PDEATHSIG = 1


def follow(parent: int) -> None:
    """Ask for SIGTERM at the parent's end; end now if it came before we could ask."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    follow(int(sys.argv.pop(1)))
    sys.exit(main())
