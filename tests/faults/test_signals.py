"""Ctrl-C from the first millisecond on, and SIGHUP: not swallowed, and no traceback."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from trainer import network

from spikewire.train.signals import deferred_signals

WORDS = ["--epochs=100000", "--batch-size=256", "--time-steps=2", "--threads=1", "--init=firing"]
START = "started"  # printed by the child once the interpreter itself is ready
CHILD = f"import sys; from spikewire.__main__ import run; print('{START}', flush=True); "
CHILD += "sys.exit(run())"


def start(folder, *words):
    """Start a training and wait until the interpreter itself is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, "train", "--out", "run", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == f"{START}\n"
    return process


@pytest.fixture(scope="module")
def seconds(tmp_path_factory):
    """How long it takes until the first epoch is done, on this machine now."""
    folder, begin = tmp_path_factory.mktemp("timed"), time.monotonic()
    with start(folder, *WORDS) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 1/"):
                break
        taken = time.monotonic() - begin
        process.kill()
    return taken


@pytest.mark.parametrize("count", [2, pytest.param(300, marks=pytest.mark.slow)])
def test_ctrl_c_at_any_moment_from_the_start(tmp_path, faults, seconds, count):
    rng = random.Random(count)
    for case in range(count):
        folder = tmp_path / str(case)
        folder.mkdir()
        with start(folder, *WORDS) as process:
            time.sleep(rng.uniform(0, seconds))
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=300)
        assert process.returncode in (130, -signal.SIGINT), (case, process.returncode, err)
        assert err == "" or err.startswith("spikewire: stopped; "), (case, err)
        assert err.count("\n") <= 1, (case, err)
        assert "resume with" not in err or (folder / "run/checkpoint.pt").is_file()
    faults("SIGINT from the start", count, count)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_resume(tmp_path, faults, number):
    with start(tmp_path, *WORDS) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 1/"):
                break
        process.send_signal(number)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert err == "spikewire: stopped; resume with spikewire train --resume run\n"
    assert (tmp_path / "run/checkpoint.pt").is_file()
    faults(f"{number.name} while training", 1, 1)


@pytest.mark.slow
def test_nohup_keeps_a_training_alive(tmp_path, faults):
    command = [sys.executable, "-c", CHILD, "train", "--out", "run", "--epochs=4", *WORDS[1:]]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch 1/"):
                os.kill(process.pid, signal.SIGHUP)
    assert process.returncode == 0
    assert network(tmp_path / "run")
    faults("SIGHUP while training", 1, 1)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_recorded_until_the_step_ends(number):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    with deferred_signals() as received:
        os.kill(os.getpid(), number)
        assert received.first == number
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with deferred_signals() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            assert received.first is None
    finally:
        signal.signal(signal.SIGHUP, before)
