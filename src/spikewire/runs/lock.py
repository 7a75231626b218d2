"""A lock on a directory: one process at a time trains, or runs a frontier, in it.

The operating system releases the lock when its holder dies. The lock file names the holder.
"""

import errno
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from spikewire.errors import SpikewireError
from spikewire.files import NOFOLLOW, io_errors
from spikewire.runs.names import LOCK

POLL_INTERVAL = 0.1  # seconds between two attempts
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def locked(folder: Path, work: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock of a directory while the block runs.

    The lock is the file ``.lock``, which names its holder: process, host and start time. A lock
    file left by a killed process is not locked any more and is taken over. A symbolic link in its
    place is not followed. Where the file system has no locks, a warning is issued and the block
    runs without one.

    Args:
        folder: The directory; it must exist.
        work: What the holder does, for the message: ``"training"``, ``"frontier"``.
        patience: Seconds to wait for another holder to finish.

    Raises:
        SpikewireError: If another process still holds the lock, or if the lock file cannot be
            written.

    Example:
        >>> with locked(Path("runs/a"), "training"):
        ...     train()
    """
    path = folder / LOCK
    lock = FileLock(path)
    if not _acquire(lock, path, patience):
        raise SpikewireError(f"{folder}: another {work} is running there{_holder(path)}")
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    _write(path, f"pid {os.getpid()} on {platform.node()}, since {since}\n")
    try:
        yield
    finally:
        _write(path, "")  # the file stays: another process may be waiting for it
        lock.release()


def holder(folder: Path) -> str | None:
    """Return who holds the lock of a directory, in brackets; None if nobody does.

    Nothing is changed there, not even the lock file.
    """
    path = folder / LOCK
    try:
        import fcntl  # not on Windows

        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(path)
    except OSError:  # no locks in the file system
        return None
    finally:
        os.close(descriptor)
    return None


def _acquire(lock: BaseFileLock, path: Path, patience: float) -> bool:
    """Return whether the lock was acquired; without locks in the file system warn, return True."""
    with io_errors(path.parent):
        try:
            lock.acquire(timeout=patience, poll_interval=POLL_INTERVAL)
        except Timeout:
            return False
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            reason = f"{path}: cannot be locked ({error.strerror})"
            warnings.warn(f"{reason}; make sure that nothing else writes there", stacklevel=4)
    return True


def _write(path: Path, holder: str) -> None:
    """Write into the lock file who holds it; where that is not possible, it is held anyway."""
    flags = os.O_WRONLY | os.O_TRUNC | NOFOLLOW
    with suppress(OSError):  # a full disk, or a directory that is gone
        descriptor = os.open(path, flags)
        try:
            os.write(descriptor, holder.encode())
        finally:
            os.close(descriptor)


def _holder(path: Path) -> str:
    """Return who holds the lock, in brackets; nothing if the file cannot be read."""
    try:
        holder = path.read_bytes()[:200].decode(errors="replace").strip()
    except OSError:
        holder = ""
    return f" ({holder})" if holder else ""
