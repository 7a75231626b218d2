"""One training at a time in a run directory."""

import errno
import fcntl
import os
import platform
from concurrent.futures import ThreadPoolExecutor

import pytest
from refusal import refused
from trainer import code, command, config, network, start

from spikewire.runs.lock import locked
from spikewire.runs.vacancy import is_vacant
from spikewire.train.loop import Epoch, fit

TINY = ["--epochs=4", "--batch-size=256", "--time-steps=2", "--threads=1", "--init=firing"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The network of a run without a competitor."""
    folder = tmp_path_factory.mktemp("whole")
    assert code(command, folder / "output", 0, ["train", "--out", str(folder / "run"), *TINY]) == 0
    return network(folder / "run")


def test_a_second_training_is_refused_and_the_holder_is_named(tmp_path, faults):
    run, tried = tmp_path / "run", []

    def second(event):
        if isinstance(event, Epoch) and not tried:
            who = (
                f"another training is running there (pid {os.getpid()} on {platform.node()}, since"
            )
            tried.append(refused(lambda: fit(config(), run, resume=True), run, who))
            tried.append(refused(lambda: fit(config(), run), run, who))

    fit(config(), run, progress=second)
    assert len(tried) == 2
    refused(lambda: fit(config(), run, resume=True), "has already finished")
    assert not list(run.glob(".*.*"))
    faults("second training in a run directory", 2, 2)


def test_of_several_started_at_the_same_time_one_trains(tmp_path, whole, faults):
    words = ["train", "--out", str(tmp_path / "run"), *TINY]
    processes = [start(command, tmp_path / f"output{n}", 0, words) for n in range(6)]
    for process in processes:
        process.join(600)
    assert sorted(process.exitcode for process in processes) == [0, 2, 2, 2, 2, 2]
    assert network(tmp_path / "run") == whole
    for number, process in enumerate(processes):
        last = (tmp_path / f"output{number}").read_text().splitlines()[-1]
        refusal = "is running there" in last or "is not empty" in last
        assert refusal or process.exitcode == 0, last
    faults("second training in a run directory", 5, 5)


@pytest.mark.parametrize("left", ["", "pid 1 on elsewhere, since long ago\n"])
def test_a_lock_left_by_a_killed_process_is_taken_over(tmp_path, faults, left):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").write_text(left)
    fit(config(), run)
    assert (run / ".lock").read_text() == "", "nobody holds it any more"
    faults("stale lock", 1, 1)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path, faults):
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(tmp_path / "mine")
    refused(lambda: fit(config(), tmp_path / "run"), tmp_path / "run", "not empty")
    assert (tmp_path / "mine").read_text() == "precious"
    faults("hostile run directory", 1, 1)


def test_a_file_system_without_locks_gets_a_warning(tmp_path, monkeypatch, faults):
    def no_lock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    with pytest.warns(UserWarning, match="cannot be locked .No locks available."):
        fit(config(), tmp_path / "run")
    faults("file system without locks", 1, 1)


def test_the_lock_is_exclusive(tmp_path):
    count = tmp_path / "count"
    count.write_text("0")

    def add(_):
        with locked(tmp_path, "count", patience=60):
            count.write_text(str(int(count.read_text()) + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(200)))
    assert count.read_text() == "200"


def test_a_directory_that_changes_while_it_is_read_is_not_vacant(tmp_path, monkeypatch):
    (tmp_path / "env.json").write_text("{}")

    def listed(folder):
        entries = list(os.scandir(folder))
        (tmp_path / "env.json").unlink(missing_ok=True)  # as another start does
        return (folder / entry.name for entry in entries)

    monkeypatch.setattr(type(tmp_path), "iterdir", listed)
    assert not is_vacant(tmp_path)
    assert is_vacant(tmp_path)
