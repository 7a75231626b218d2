"""Files and folders that are complete or absent, and errors of the operating system as one line.

Everything that spikewire writes goes through this file. A name inside a folder may have been
planted by someone else, so a symbolic link in place of a file or folder to write is refused, and
temporary names cannot be guessed.
"""

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from spikewire.errors import SpikewireError

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # 0 on Windows
WRITE = os.O_WRONLY | os.O_CREAT | NOFOLLOW | getattr(os, "O_BINARY", 0)
RANDOM_DIGITS = 16
NAME_BYTES = 200  # of the file's own name in a temporary one; a name has at most 255


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

    Raises:
        SpikewireError: If `path` is a folder, a symbolic link, a device or another special file.

    Example:
        >>> with atomic_write(Path("table.json")) as file:
        ...     file.write(b"{}")
    """
    require_plain(path)
    if path.is_dir():
        raise SpikewireError(f"{path}: cannot be written: Is a directory; name a file in it")
    temporary = temporary_path(path)
    descriptor = os.open(temporary, WRITE | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if previous and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a temporary folder that is renamed to `path` once the block has filled it.

    If the block raises, the temporary folder is removed and nothing appears at `path`.

    Args:
        path: The folder to make; it must not exist, but its parent must.

    Yields:
        The temporary folder.

    Example:
        >>> with atomic_folder(Path("lists")) as folder, atomic_write(folder / "a.txt") as file:
        ...     file.write(b"1")
    """
    require_plain(path)
    temporary = temporary_path(path)
    temporary.mkdir()
    try:
        yield temporary
        os.rename(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def open_append(path: Path) -> BinaryIO:
    """Open a file to append bytes, and make it if necessary; a symbolic link is refused.

    Args:
        path: The file.

    Returns:
        The open file.

    Raises:
        SpikewireError: If `path` is a symbolic link, a device or another special file.

    Example:
        >>> with open_append(Path("log.txt")) as file:
        ...     file.write(b"line")
    """
    require_plain(path)
    return os.fdopen(os.open(path, WRITE | os.O_APPEND, 0o666), "ab")


def make_folder(path: Path) -> None:
    """Make a folder and its parents; an existing one is kept.

    Args:
        path: The folder; 2,000 levels are no problem, unlike for `Path.mkdir`.

    Raises:
        SpikewireError: If `path` itself is a symbolic link (its parents may be links), or if it or
            a parent is a file.
    """
    require_plain(path)
    for folder in (*reversed(path.parents), path):
        if folder.is_file():
            raise SpikewireError(f"{folder}: is a file, not a folder")
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)


def require_plain(path: Path) -> None:
    """Raise if writing to a path would write somewhere else.

    Args:
        path: The file or folder to write; it may be missing.

    Raises:
        SpikewireError: If it is a symbolic link, a device, a pipe or a socket.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(mode):
        raise SpikewireError(f"{path}: is a symbolic link; remove it, or write somewhere else")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise SpikewireError(f"{path}: cannot be written: it is not a regular file")


def temporary_path(path: Path) -> Path:
    """Return a name in the same folder that no one can guess: ``.name.0123456789abcdef``."""
    name = os.fsdecode(os.fsencode(path.name)[:NAME_BYTES])
    return path.with_name(f".{name}.{secrets.token_hex(RANDOM_DIGITS // 2)}")


def is_temporary(path: Path, *names: str) -> bool:
    """Return whether `atomic_write` could have made this as a temporary file of one of `names`."""
    pattern = rf"\.(?:{'|'.join(map(re.escape, names))})\.[0-9a-f]{{{RANDOM_DIGITS}}}"
    return bool(re.fullmatch(pattern, path.name)) and stat.S_ISREG(path.lstat().st_mode)


def _sync_folder(path: Path) -> None:
    """Write a rename in a folder to disk, where the file system can do that."""
    with suppress(OSError):  # not on Windows, not in a folder without read permission
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn what reading a file and using its content raises into a one-line `SpikewireError`.

    Args:
        path: The file named in the message.

    Raises:
        SpikewireError: If the block raises an `OSError` (``path: cannot be read: reason``), or what
            damaged or other content leads to (``path: is damaged (reason)``).

    Example:
        >>> with read_errors(Path("results.json")):
        ...     accuracy = json.loads(Path("results.json").read_text())["accuracy"]
    """
    try:
        yield
    except OSError as error:
        raise SpikewireError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, error) from None


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
    text = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    text = getattr(error, "strerror", "") or text  # of an OSError, without number and path
    reason = (text or type(error).__name__).splitlines()[0][:80]
    return SpikewireError(f"{path}: is damaged ({reason})" + (f"; {hint}" if hint else ""))
