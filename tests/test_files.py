"""The atomic writer: complete or absent, never through a link, and never over a device."""

import json
import os
import stat
from pathlib import Path

import pytest
from refusal import refused

from spikewire.files import (
    atomic_folder,
    atomic_write,
    damaged,
    is_temporary,
    make_folder,
    open_append,
    read_errors,
    temporary_path,
)


def write(path: Path, content: bytes = b"new") -> None:
    with atomic_write(path) as file:
        file.write(content)


def test_the_old_file_is_there_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file"
    write(path, b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        (temporary,) = set(tmp_path.iterdir()) - {path}
        assert is_temporary(temporary, "file")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_the_mode_is_that_of_an_ordinary_file(tmp_path):
    (tmp_path / "ordinary").touch()
    write(tmp_path / "file")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "file")}
    assert len(modes) == 1


def test_temporary_names_cannot_be_guessed(tmp_path):
    names = {temporary_path(tmp_path / "file").name for _ in range(1000)}
    assert len(names) == 1000
    assert all(is_name_of(tmp_path, name, "file") for name in list(names)[:10])
    assert not is_name_of(tmp_path, ".file.4242", "file")
    assert not is_name_of(tmp_path, ".other.0123456789abcdef", "file")


def is_name_of(folder: Path, name: str, original: str) -> bool:
    (folder / name).touch()
    return is_temporary(folder / name, original)


def test_a_name_of_the_greatest_length_can_be_written(tmp_path):
    write(tmp_path / ("n" * 255))
    write(tmp_path / ("ü" * 127))
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("writes", [write, lambda path: open_append(path).close()])
@pytest.mark.parametrize("target", ["mine", "new", "/dev/null"])
def test_a_link_is_neither_followed_nor_replaced(tmp_path, writes, target):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "file").symlink_to(target)
    refused(lambda: writes(tmp_path / "file"), "file: is a symbolic link")
    assert sorted(os.listdir(tmp_path)) == ["file", "mine"]
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("writes", [write, lambda path: open_append(path).close()])
def test_a_pipe_or_device_is_not_replaced(tmp_path, writes):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        refused(lambda path=path: writes(path), "not a regular file")
        assert not path.is_file()


def test_a_link_planted_during_the_write_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "mine").write_text("precious")
    with atomic_write(tmp_path / "file") as file:
        file.write(b"new")
        (tmp_path / "file").symlink_to("mine")
    assert (tmp_path / "mine").read_text() == "precious"
    assert not (tmp_path / "file").is_symlink()


def test_a_folder_appears_when_it_is_complete(tmp_path):
    with atomic_folder(tmp_path / "folder") as temporary:
        write(temporary / "file")
        assert not (tmp_path / "folder").exists()
    assert (tmp_path / "folder/file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["folder"]


def test_a_folder_that_fails_leaves_nothing(tmp_path):
    def fail():
        with atomic_folder(tmp_path / "folder") as temporary:
            write(temporary / "file")
            raise ValueError

    pytest.raises(ValueError, fail)
    assert os.listdir(tmp_path) == []


def test_a_folder_may_be_below_a_link_but_not_be_one(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    make_folder(tmp_path / "link/a/b")
    assert (tmp_path / "disk/a/b").is_dir()
    refused(lambda: make_folder(tmp_path / "link"), "is a symbolic link")


def test_the_reason_of_the_operating_system_is_named_without_number_and_path(tmp_path):
    error = PermissionError(13, "Permission denied", "x")
    assert str(damaged(tmp_path / "x", error)) == f"{tmp_path}/x: is damaged (Permission denied)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "file: cannot be read: No such file or directory"),
        ("{", "file: is damaged (Expecting property name"),
        ("{}", "file: is damaged (it has no 'accuracy')"),
        ("[]", "file: is damaged (list indices"),
    ],
)
def test_a_file_that_is_missing_damaged_or_another_is_one_line(tmp_path, text, reason):
    path = tmp_path / "file"
    if text:
        path.write_text(text)

    def read():
        with read_errors(path):
            json.loads(path.read_text())["accuracy"]

    refused(read, reason)
