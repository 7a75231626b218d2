"""One process at work in a directory: a lock that the system takes back when its holder dies.

The file says who holds it. One that a killed process has left holds nothing and is taken over.
"""

import fcntl
import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from spikewire.errors import SpikewireError
from spikewire.files import io_errors
from spikewire.runs.rundir import LOCK


@contextmanager
def locked(folder: Path, work: str, patience: float = 0.0) -> Iterator[None]:
    """Hold `folder` against another such `work`.

    Waits up to `patience` seconds for the one that holds it now.
    """
    path, until = folder / LOCK, time.monotonic() + patience
    while (lock := _take(path)) is None:
        if time.monotonic() > until:
            raise SpikewireError(f"{folder}: another {work} is at work there{_holder(path)}")
        time.sleep(0.1)
    try:
        yield
    finally:
        with suppress(OSError):  # gone or read-only: then it is someone else's worry
            path.unlink()  # while it is still ours
        os.close(lock)


def _take(path: Path) -> int | None:
    """Return the descriptor of the file, locked and signed; None while someone else holds it."""
    with io_errors(path.parent):  # a link could lead the signature anywhere
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:
        alone = "see to it that nothing else is at work there"
        warnings.warn(f"{path}: cannot be locked ({error.strerror}); {alone}", stacklevel=2)
    if not _named(lock, path):
        os.close(lock)  # its last holder has just removed it
        return _take(path)
    with suppress(OSError):  # a full disk: held all the same
        os.ftruncate(lock, 0)
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        os.pwrite(lock, f"pid {os.getpid()} on {platform.node()}, since {since}\n".encode(), 0)
    return lock


def _named(lock: int, path: Path) -> bool:
    """Tell whether the open file still is the one of that name."""
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """Return what the holder has written, in brackets."""
    try:
        said = path.read_bytes()[:200].decode(errors="replace").strip()
    except OSError:
        said = ""
    return f" ({said})" if said else ""
