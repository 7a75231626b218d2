"""Atomic writes, and errors of the operating system as one line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from spikewire.errors import SpikewireError


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` once it is complete and on disk.

    The file at `path` is the old one or the new one at every moment, also when the process is
    killed; with `previous` it may be missing for a moment. If the block raises, `path` stays as it
    was and the temporary file is removed.

    Args:
        path: The file to write; its directory must exist.
        previous: Where the old file at `path` is moved, instead of being overwritten.

    Yields:
        The temporary file, open for writing bytes.

    Example:
        >>> with atomic_write(Path("table.json")) as file:
        ...     file.write(b"{}")
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def io_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into a one-line `SpikewireError`.

    Args:
        path: The file or directory named in the message.

    Raises:
        SpikewireError: If the block raises an `OSError`: ``path: cannot be written: reason``.

    Example:
        >>> with io_errors(Path("out")), atomic_write(Path("out/table.json")) as file:
        ...     file.write(b"{}")
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpikewireError(f"{path}: cannot be written: {reason}") from None


def damaged(path: Path, error: Exception, hint: str = "") -> SpikewireError:
    """Return the error for a file whose content cannot be read.

    Args:
        path: The damaged file.
        error: What went wrong when it was read; the first line of its text is quoted.
        hint: What the user can do about it, appended to the message.

    Returns:
        The error to raise: ``path: is damaged (reason); hint``.

    Example:
        >>> raise damaged(Path("traces.npz"), ValueError("wrong checksum")) from None
        SpikewireError: traces.npz: is damaged (wrong checksum)
    """
    reason = (str(error) or type(error).__name__).splitlines()[0][:80]
    return SpikewireError(f"{path}: is damaged ({reason})" + (f"; {hint}" if hint else ""))
