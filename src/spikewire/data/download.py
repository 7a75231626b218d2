"""Fetch published archives: resume, mirrors, checksums; nothing unchecked gets its final name."""

import gzip
import hashlib
import os
import ssl
import tarfile
import zlib
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from spikewire.data.source import Archive, File, Source, read
from spikewire.errors import SpikewireError, check

Progress = Callable[[str, int, int], None]

_BLOCK = 1 << 18
_TIMEOUT = 30.0
_TRIES = 8


class _Refused(Exception):
    """What a mirror sent is not what was published."""


# Not OSError as a whole: a full disk is no reason to try the next mirror.
_FAILURES = (_Refused, URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError)


def download(
    name: str,
    source: Source,
    root: Path,
    *,
    mirrors: tuple[str, ...] | None = None,
    progress: Progress | None = None,
) -> None:
    """Bring every file of data set `name` that is missing or damaged under `root`."""
    for mirror in mirrors or ():
        check(mirror.startswith(("http://", "https://")), "mirrors", mirror, "an http(s) address")
    try:
        for archive in source.archives:
            if not _complete(name, archive, root):
                folder = (root / archive.files[0].path).parent
                folder.mkdir(parents=True, exist_ok=True)
                part = _fetch(name, archive, folder, mirrors or archive.mirrors, progress)
                _extract(name, archive, part, root)
                part.unlink()
    except OSError as error:
        where = error.filename or root
        raise SpikewireError(f"{name}: cannot write {where}: {error.strerror or error}") from None


def _complete(name: str, archive: Archive, root: Path) -> bool:
    try:
        for file in archive.files:
            read(file, root, name)
    except SpikewireError:
        return False
    return True


def _fetch(
    name: str,
    archive: Archive,
    folder: Path,
    mirrors: tuple[str, ...],
    progress: Progress | None,
) -> Path:
    """Return the whole, checked archive; a later mirror goes on where an earlier one broke off."""
    part = folder / f"{archive.name}.part"
    problems = []
    for mirror in mirrors:
        try:
            _persist(mirror + archive.name, part, archive, progress)
        except _FAILURES as error:
            problems.append(f"{urlsplit(mirror).netloc}: {_reason(error)}")
        else:
            return part
    raise SpikewireError(
        f"{name}: cannot download {archive.name} ({'; '.join(problems)}); try again, "
        f"put the unpacked files into {folder} by hand, or set SPIKEWIRE_DATA or --data-dir"
    )


def _persist(url: str, part: Path, archive: Archive, progress: Progress | None) -> None:
    """Stay with one mirror while its tries change anything."""
    for left in reversed(range(_TRIES)):
        before = _size(part)
        try:
            if before > archive.size:
                part.unlink()
            if before != archive.size:
                _receive(url, part, archive, progress)
            _verify(part, archive)
            break
        except _FAILURES:
            if not left or _size(part) == before:
                raise


def _receive(url: str, part: Path, archive: Archive, progress: Progress | None) -> None:
    """Append what `part` lacks, or start over where the server ignores the range."""
    have = _size(part)
    headers = {"User-Agent": "spikewire"} | ({"Range": f"bytes={have}-"} if have else {})
    with urlopen(Request(url, headers=headers), timeout=_TIMEOUT) as response:
        resumed = response.status == 206
        have = have if resumed else 0
        with part.open("ab" if resumed else "wb") as file:
            while block := response.read(_BLOCK):
                have += len(block)
                if have > archive.size:
                    break
                file.write(block)
                if progress:
                    progress(archive.name, have, archive.size)
    if have < archive.size:
        raise _Refused(f"broke off at {have} of {archive.size} bytes")
    if have > archive.size:
        part.unlink()
        raise _Refused(f"sent more than {archive.size} bytes")


def _verify(part: Path, archive: Archive) -> None:
    with part.open("rb") as stream:
        found = hashlib.file_digest(stream, "md5").hexdigest()
    if found != archive.md5:
        part.unlink()
        raise _Refused(f"sent md5 {found}, expected {archive.md5}")


def _extract(name: str, archive: Archive, part: Path, root: Path) -> None:
    """Write each expected file under a temporary name, checked, then rename it."""
    unpack = _members if archive.name.endswith(".tar.gz") else _single
    missing = {file.path for file in archive.files}
    try:
        for file, content in unpack(archive, part):
            if flaw := file.flaw(content):
                raise _Refused(f"{file.path} in it {flaw}")
            _write(root / file.path, content)
            missing.discard(file.path)
        if missing:
            raise _Refused(f"it lacks {', '.join(sorted(missing))}")
    except (_Refused, EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        part.unlink()
        raise SpikewireError(f"{name}: {archive.name} is not as published: {error}") from None


def _single(archive: Archive, part: Path) -> Iterator[tuple[File, bytes]]:
    file = archive.files[0]
    with gzip.open(part) as stream:
        yield file, stream.read(file.size + 1)


def _members(archive: Archive, part: Path) -> Iterator[tuple[File, bytes]]:
    """Yield regular members whose name is exactly an expected path; read on to a bound only."""
    wanted = {file.path: file for file in archive.files}
    bound = 2 * sum(file.size for file in archive.files) + (1 << 20)
    with tarfile.open(part, "r|gz") as tar:
        for member in tar:
            if member.offset_data + member.size > bound:
                raise _Refused(f"it unpacks to more than {bound} bytes")
            file = wanted.get(member.name)
            if file and member.isreg() and (stream := tar.extractfile(member)):
                yield file, stream.read(file.size + 1)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    if isinstance(error, HTTPError):
        error.close()
        return f"HTTP {error.code} {error.reason}"
    reason = error.reason if isinstance(error, URLError) else error
    return " ".join(str(reason).split()) or type(error).__name__
