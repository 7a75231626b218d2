"""Files: atomic writes, and the system's refusals as one-line errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from spikewire.errors import SpikewireError


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the name `path` once it is whole and on the disk.

    What had that name before takes the name `previous`, if one is given.
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
    """Turn the system's refusal into a line for the user."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpikewireError(f"{path}: cannot be written: {reason}") from None
