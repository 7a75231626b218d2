"""A disk that is full, for every writer: one line, the old file stays, the next try succeeds."""

import errno
import os
import resource
import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from refusal import refused
from trainer import config

from spikewire import files, report
from spikewire.deploy import export_run
from spikewire.frontier.jobs import Job
from spikewire.frontier.outcomes import Outcome, save_outcomes
from spikewire.runs.rundir import RunDir

CPU = torch.device("cpu")
SIZES = 20  # at which the disk is full, from the first to the last byte of a file


@contextmanager
def full_after(size: int):
    """Let the kernel refuse to write beyond a size, in the middle of a write if need be."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def run_writers():
    """Yield the largest file that is written, and a function that writes it."""
    run = RunDir("run")
    state, (weights, masks) = {"position": {"epoch": 1}}, run.load_model()
    yield "new/checkpoint.pt", lambda: RunDir.create("new", config(), CPU, {**state, **weights})
    yield "run/checkpoint.pt", lambda: run.save_checkpoint(config(), {**state, **weights})
    yield "run/traces.npz", lambda: run.save_traces({"x": weights["fc1.weight"].numpy()})
    yield "run/model.safetensors", lambda: run.save_model(weights, masks)
    yield "run/metrics.jsonl", lambda: run.append({"epoch": 5, "note": "x" * 5000})
    yield "run/metrics.jsonl", lambda: run.truncate(100)


def other_writers():
    outcomes = [Outcome(Job("digits", "budget", 0.1, n), 0.5, 0.1, 1.0) for n in range(9)]
    for kind, name in (("packed", "packed"), ("nir", "nir"), ("coo", "lists/0-fc1.npz")):
        out = f"out/{name.partition('/')[0]}"
        yield f"out/{name}", partial(export_run, "run", format=kind, out=out, check_images=0)
    yield "out/report.md", lambda: report.write(["run"], "out/report.md", format="md")
    yield "out/frontier.json", lambda: save_outcomes(Path("out"), outcomes)


def slow_writers():
    plots = report.plot_all(report.find(["run"]))[:1]
    yield "out/report.html", lambda: report.write(["run"], "out/report.html")
    yield f"out/{plots[0].key}-dark.png", lambda: report.save_figures(plots, "out")


def contents() -> dict[str, bytes]:
    """Return all files below the folder, without the lines of a file that is being appended to."""
    found = {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    found["run/metrics.jsonl"] = b"".join(str(row).encode() for row in RunDir("run").history())
    return found


def unchanged(before, after, complete) -> bool:
    """Return whether each file is the old one, or one of several that is complete."""
    return before.keys() <= after.keys() and all(
        value in (before.get(name), complete.get(name)) for name, value in after.items()
    )


def attempt(file: str, write, sizes: int) -> None:
    """Write to a full disk `sizes` times, each time in a copy of the same folder."""
    here = Path.cwd()
    shutil.copytree(".", "../before")
    before = contents()
    write()
    size, complete = Path(file).stat().st_size, contents()
    for number in range(sizes):
        os.chdir("..")
        shutil.rmtree(here)
        shutil.copytree("before", here)
        os.chdir(here)
        with full_after(size * number // sizes):
            refused(write, "cannot be written: File too large")
        assert unchanged(before, contents(), complete), (file, number)
    write()  # the next try succeeds
    assert contents().keys() == complete.keys()


@pytest.mark.parametrize(
    ("writers", "sizes"),
    [
        pytest.param(run_writers, 2, id="run"),
        pytest.param(other_writers, 2, id="others"),
        *(pytest.param(writers, SIZES, marks=pytest.mark.slow)
          for writers in (run_writers, other_writers, slow_writers)),
    ],
)  # fmt: skip
def test_a_full_disk_for_each_writer(
    intact,
    tmp_path,
    monkeypatch,
    faults,
    writers,
    sizes,
):
    def folder(number: int) -> None:
        Path(tmp_path / str(number) / "here/out").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / str(number) / "here")
        shutil.copytree(intact / "finished", "run")

    folder(0)
    for number in range(len(list(writers()))):
        folder(number + 1)
        attempt(*list(writers())[number], sizes)
        faults("disk full, per writer", sizes, sizes)


def test_an_error_at_the_last_moment_keeps_the_old_file(tmp_path, monkeypatch, faults):
    def no_space(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(files.os, "fsync", no_space)

    def write():
        with files.io_errors(tmp_path), files.atomic_write(tmp_path / "file") as file:
            file.write(b"new")

    refused(write, "cannot be written: No space left on device")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"
    faults("disk full, per writer", 1, 1)


def test_a_half_written_folder_of_connection_lists_does_not_stay(intact, tmp_path, faults):
    run = intact / "finished"
    with full_after(3000):
        refused(
            lambda: export_run(run, format="coo", out=tmp_path / "lists", check_images=0), "lists"
        )
    assert os.listdir(tmp_path) == []
    export_run(run, format="coo", out=tmp_path / "lists", check_images=0)
    faults("disk full, per writer", 1, 1)
