"""Where data files lie, what each one must be, and how it is read: checked, or not at all."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spikewire.data.dataset import Dataset
from spikewire.errors import SpikewireError


@dataclass(frozen=True)
class File:
    """One file as published; `path` is relative to the data directory."""

    path: str
    size: int
    md5: str

    def flaw(self, content: bytes | bytearray) -> str | None:
        """Return how `content` differs from the published file, or None."""
        if len(content) != self.size:
            return f"has {len(content)} bytes, expected {self.size}"
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        return None if found == self.md5 else f"has md5 {found}, expected {self.md5}"


@dataclass(frozen=True)
class Archive:
    """One download: `mirror + name` is its address; `files` is what is taken out of it."""

    name: str
    size: int
    md5: str
    mirrors: tuple[str, ...]
    files: tuple[File, ...]


@dataclass(frozen=True)
class Source:
    """A data set: one line about it, its reader, and where its files come from."""

    summary: str
    read: Callable[[Path], Dataset]
    archives: tuple[Archive, ...] = ()

    @property
    def files(self) -> tuple[File, ...]:
        """Every file the reader needs in the data directory."""
        return tuple(file for archive in self.archives for file in archive.files)


def data_dir(given: str | Path | None = None) -> Path:
    """Return the data directory: `given`, else SPIKEWIRE_DATA, else ``~/.cache/spikewire``."""
    chosen = given or os.environ.get("SPIKEWIRE_DATA") or "~/.cache/spikewire"
    return Path(os.path.expanduser(chosen))  # unlike Path's, lets an unknown ~name be


def read(file: File, root: Path, name: str) -> bytearray:
    """Return the content of one file of data set `name`, if it is the published one."""
    path = root / file.path
    try:
        content = _content(path, file.size)
    except FileNotFoundError:
        raise SpikewireError(
            f"{name}: {path} is not there; run `spikewire data get {name}`, "
            "or set SPIKEWIRE_DATA or --data-dir to the directory that has it"
        ) from None
    except OSError as error:
        raise SpikewireError(f"{name}: {path} cannot be read: {error.strerror}") from None
    if flaw := file.flaw(content):
        raise SpikewireError(
            f"{name}: {path} {flaw}; it is damaged: delete it or run `spikewire data get {name}`"
        )
    return content


def _content(path: Path, size: int) -> bytearray:
    """Read at most one byte more than `size`, into memory a tensor may own."""
    content = bytearray(size + 1)
    view, filled = memoryview(content), 0
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(view[filled:]):
            filled += count
    view.release()
    del content[filled:]
    return content
