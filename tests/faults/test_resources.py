"""A disk that is full, read-only or gone, and no memory left: one line, and nothing is lost."""

import os
import shutil
from pathlib import Path

import pytest
from refusal import refused
from trainer import EPOCHS, STEPS, code, command, config, network

from spikewire.train.loop import Step, fit

NOBODY = 65534


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The network of a run without a fault."""
    folder = tmp_path_factory.mktemp("whole")
    fit(config(), folder / "run")
    return network(folder / "run")


def at(step, action):
    """Return a progress callback that calls `action` once, after that step."""

    def progress(event):
        if isinstance(event, Step) and event.step == step:
            return action()
        return False

    return progress


def interrupt():
    return True


def stopped(run, step):
    """Make a run that was stopped after a step; return the content of its checkpoint."""
    with pytest.raises(KeyboardInterrupt):
        fit(config(trace_every=100), run, progress=at(step, interrupt))
    return (run / "checkpoint.pt").read_bytes()


def resume(run, whole):
    """Resume to the end, compare the network; return the number of steps taken."""
    events = []
    fit(config(), run, resume=True, progress=events.append)
    assert network(run) == whole
    return sum(isinstance(event, Step) for event in events)


@pytest.mark.parametrize(
    ("step", "limit", "flags"),
    [
        pytest.param(6, 100_000, [], id="checkpoint"),
        pytest.param(6, -1, [], id="last byte of a checkpoint"),
        pytest.param(6, 1_500, [], id="metrics"),
        pytest.param(6, 2_500, ["--trace-every=1"], id="traces"),
        pytest.param(16, 50_000, [], id="network"),
        pytest.param(6, 1_100, ["--tensorboard"], id="tensorboard"),
    ],
)
def test_a_full_disk_while_training(tmp_path, whole, faults, step, limit, flags):
    run, output = tmp_path / "run", tmp_path / "output"
    saved = stopped(run, step)
    limit = limit if limit > 0 else len(saved) + limit
    assert code(command, output, limit, ["train", "--resume", str(run), *flags]) == 2
    lines = output.read_text().splitlines()
    assert lines[-1] == f"spikewire: {run}: cannot be written: File too large"
    messages = [line for line in lines if line.startswith("spikewire: ")]
    assert len([line for line in messages if not line.startswith("spikewire: warning: ")]) == 1
    assert (run / "checkpoint.pt").read_bytes() == saved
    assert not list(run.glob(".*.*"))
    assert resume(run, whole) == EPOCHS * STEPS - step
    faults("disk full in training", 1, 1, -step % STEPS)  # the rest of the epoch


@pytest.mark.parametrize("words", [["report", "run", "-o", "out"], ["export", "run", "--out=out"]])
def test_a_full_disk_while_a_file_is_written(tmp_path, whole, faults, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    fit(config(), "run")
    Path("out").write_text("previous")
    assert code(command, tmp_path / "output", 5_000, words) == 2
    assert Path("output").read_text() == "spikewire: out: cannot be written: File too large\n"
    assert Path("out").read_text() == "previous"
    assert not list(tmp_path.glob(".*.*"))
    faults("disk full in report and export", 1, 1)


def test_a_directory_that_is_moved_and_moved_back(tmp_path, whole, faults):
    run, away = tmp_path / "run", tmp_path / "away"
    refused(
        lambda: fit(config(tensorboard=True), run, progress=at(6, lambda: run.rename(away))),
        f"{run}: cannot be written: No such file or directory",
    )
    if run.exists():  # TensorBoard makes its directory again
        shutil.rmtree(run)
    away.rename(run)
    assert resume(run, whole) == 3 * STEPS
    faults("run directory gone", 1, 1, STEPS)


def test_a_directory_that_becomes_read_only(tmp_path, whole, faults):
    run, me = tmp_path / "run", os.geteuid()

    def close():
        run.chmod(0o555)
        if me == 0:  # root may write anywhere
            os.seteuid(NOBODY)

    try:
        refused(
            lambda: fit(config(), run, progress=at(6, close)),
            f"{run}: cannot be written: Permission denied",
        )
    finally:
        os.seteuid(me)
        run.chmod(0o755)
    assert resume(run, whole) == 3 * STEPS
    faults("run directory read-only", 1, 1, STEPS)


def test_out_of_memory_is_one_line(tmp_path, faults):
    words = ["train", "--out", str(tmp_path / "run"), "--batch-size=1437", "--time-steps=10000"]
    assert code(command, tmp_path / "output", 0, [*words, "--threads=1"], 1 << 30) == 1
    last = (tmp_path / "output").read_text().splitlines()[-1]
    assert last == "spikewire: out of memory; try a smaller batch_size or fewer time_steps"
    faults("out of memory", 1, 1)
