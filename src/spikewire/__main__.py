"""The command `spikewire`, also as ``python -m spikewire``.

Some of the heavy imports swallow a KeyboardInterrupt, and others fail in the middle of one. So
until they are done Ctrl-C ends the process at once; there is nothing to save yet.
"""

import _signal as signal  # pyright: ignore[reportMissingImports]  # it imports nothing itself
import os
import sys


def leave(number: int, frame: object) -> None:
    """Handle Ctrl-C by leaving, whatever is going on."""
    os.write(2, b"spikewire: stopped; nothing was saved yet\n")
    os._exit(128 + number)


def run() -> int:
    """Run the command of `sys.argv`; return the exit code."""
    ignored = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if not ignored:
        signal.signal(signal.SIGINT, leave)
    from spikewire.cli import main

    def ready() -> None:
        if not ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    return main(ready=ready)


if __name__ == "__main__":
    sys.exit(run())
