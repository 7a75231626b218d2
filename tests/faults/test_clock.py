"""The system clock may jump: no result and no duration depends on it."""

import os
import time
from datetime import datetime
from itertools import cycle
from pathlib import Path

import pytest
from trainer import config, network

import spikewire
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import Step, fit

FAR = 4_000_000_000  # in the year 2096


def test_a_run_is_the_same_when_the_clock_jumps(tmp_path, monkeypatch, faults):
    def touch(run, moment):
        for path in (tmp_path / run).iterdir():
            os.utime(path, (moment, moment))

    def stop(event):
        return isinstance(event, Step) and event.step == 7

    fit(config(), tmp_path / "whole")
    jumps = cycle((0, FAR))  # TensorBoard calls it from a thread of its own, which this allows
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    for run, moment in (("future", FAR), ("past", 0)):
        with pytest.raises(KeyboardInterrupt):
            fit(config(tensorboard=True), tmp_path / run, progress=stop)
        touch(run, moment)
        fit(config(), tmp_path / run, resume=True)
        assert network(tmp_path / run) == network(tmp_path / "whole")
        assert all(row["seconds"] > 0 for row in RunDir(tmp_path / run).history())
    assert datetime.now().year < 2096
    faults("clock jumps", 2, 2)


def test_durations_are_measured_with_a_monotonic_clock():
    files = Path(spikewire.__file__).parent.rglob("*.py")
    assert [path for path in files if "time.time(" in path.read_text()] == []
