"""The live table of a frontier: what runs, how far it is, and how long it will take."""

import json
import os
import re
import sys
from contextlib import suppress
from io import StringIO

import pytest
from rich.console import Console

from spikewire.cli.live import duration, live_table, progress_table
from spikewire.config import resolve
from spikewire.frontier import Outcome, Watch, plan, prepare
from spikewire.runs.history import last_rows
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import Epoch, fit

FLAGS = {"epochs": "4", "time_steps": "2", "batch_size": "128", "test_every": "2"}


@pytest.fixture
def frontier(tmp_path):
    """Six tasks; the second one has logs of an earlier frontier, which was stopped."""
    jobs = plan(["digits"], ["deepr"], [0.3, 0.2, 0.1], 2)
    (tmp_path / "logs").mkdir()
    (tmp_path / f"logs/{jobs[1].name}.txt").write_text("stopped")
    return prepare(jobs, tmp_path, flags=FLAGS)


def stop_after(epochs, task, job):
    """Train a task until some epochs are finished, as if an engine had just started it."""
    task.log.write_text("training")
    with pytest.raises(KeyboardInterrupt):
        fit(
            resolve(flags=job.settings(FLAGS)),
            task.run,
            progress=lambda event: isinstance(event, Epoch) and event.row["epoch"] == epochs,
        )


def shown(watch, height=25):
    console = Console(file=StringIO(), width=80, height=height, force_terminal=False)
    console.print(progress_table(watch, console))
    return [line.split() for line in console.file.getvalue().splitlines()]


def test_the_table_has_the_running_runs_and_counts_the_others(frontier):
    watch = Watch(frontier)
    first, second, third, fourth, *_ = frontier
    assert watch.running() == []
    assert shown(watch)[-1] == ["0", "done,", "0", "running,", "6", "waiting,", "0", "failed"]
    stop_after(3, frontier[first], first)
    frontier[third].log.write_text("")
    watch.record(Outcome(fourth, error="out of memory"))
    epochs = RunDir(frontier[first].run).history()
    far, new = watch.running()
    assert (far.epoch, far.epochs, new.name, new.epochs) == (3, 4, third.name, None)
    assert far.accuracy == epochs[1]["accuracy"], "the third epoch is not tested"
    assert far.connectivity == epochs[2]["connectivity"]
    mean = sum(row["seconds"] for row in epochs) / 3
    assert far.seconds_left == pytest.approx(mean)
    # one epoch of the first, then four epochs of each of the other four, two at the same time
    assert watch.seconds_left([far, new]) == pytest.approx((1 + 4 * 4) * mean / 2)
    watch.record(Outcome(second, 0.9, 0.2, seconds=8 * mean))
    # waiting ones take (8 + 4) / 2 epochs now, and there are three besides the first
    assert watch.seconds_left([far, new]) == pytest.approx((1 + 3 * 6) * mean / 2)
    lines = shown(watch)
    accuracy, connectivity = (f"{100 * x:.2f}%" for x in (far.accuracy, far.connectivity))
    assert [first.name, "3/4", accuracy, connectivity, duration(mean)] in lines
    assert [third.name, "starting"] in lines
    text = f"1 done, 2 running, 2 waiting, 1 failed; about {duration(19 * mean / 2)} left"
    assert lines[-1] == text.split()


def test_the_table_is_not_higher_than_the_terminal(frontier):
    watch = Watch(frontier)
    for task in frontier.values():
        task.log.write_text("training")
        os.utime(task.log)
    for height, rows in ((25, 6), (12, 6), (11, 5), (8, 2), (7, 1), (3, 1)):
        lines = shown(watch, height)
        assert len(lines) <= max(height - 1, 6)
        assert sum(line[-1:] == ["starting"] for line in lines) == (6 if rows == 6 else rows - 1)
        assert (["and", str(7 - rows), "more"] in lines) == (rows < 6)
        assert "6 running" in " ".join(lines[-1])


def test_rows_are_read_from_the_end_of_a_file_that_is_being_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert last_rows(path) == []
    lines = [json.dumps({"epoch": i, "text": "x" * 100}) for i in range(1, 2001)]
    path.write_text("\n".join(lines) + '\n{"epoch": 20')
    found = [row["epoch"] for row in last_rows(path, size=1000)]
    assert found == list(range(2001 - len(found), 2001))
    assert 5 < len(found) < 10


def test_a_terminal_shows_the_table_below_the_lines_and_a_pipe_only_lines(
    frontier, capfd, monkeypatch
):
    job = next(iter(frontier))
    outcome = Outcome(job, 0.9, 0.3, seconds=2.0)
    line = f"{job.name}  accuracy 90.00%  connectivity 30.00%  2.0 s"
    with live_table(frontier) as show:
        show(outcome)
    assert capfd.readouterr().out == line + "\n"
    ours, theirs = pytest.importorskip("pty").openpty()
    monkeypatch.setattr(sys, "stdout", os.fdopen(theirs, "w"))
    with live_table(frontier) as show:
        show(outcome)
    sys.stdout.close()
    monkeypatch.undo()
    seen = b""
    with suppress(OSError):  # the end of a terminal
        while more := os.read(ours, 1 << 16):
            seen += more
    os.close(ours)
    seen = seen.decode()
    assert line in seen
    assert "1 done, 0 running, 5 waiting, 0 failed" in seen
    assert "\x1b[?25h" in seen, "the cursor is not shown again"


@pytest.mark.slow
def test_ctrl_c_on_a_terminal_ends_the_table_and_saves(tmp_path):
    pid, terminal = pytest.importorskip("pty").fork()
    if not pid:
        words = ["frontier", "--methods=dense", "--seeds=3", "--epochs=10000", f"--out={tmp_path}"]
        os.execv(sys.executable, [sys.executable, "-m", "spikewire", *words])
    seen, interrupted = "", False
    with suppress(OSError):  # the end of a terminal
        while more := os.read(terminal, 1 << 16):
            seen += more.decode(errors="replace")
            ready = re.search(r"digits-dense-seed0 +[1-9][0-9]*/10000", seen)
            if ready and not interrupted:
                os.write(terminal, b"\x03")
                interrupted = True
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert "0 done, 1 running, 2 waiting, 0 failed" in seen
    shown = seen.rpartition("\x1b[?25h")  # the cursor is visible again
    said = f"stopped; 0 of 3 runs are finished in {tmp_path}; resume with the same command"
    assert said in " ".join(shown[2].split())
    assert "stopped; resume with" in (tmp_path / "logs/digits-dense-seed0.txt").read_text()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3599, "59:59"), (3600, "1:00:00")]
)
def test_a_time_is_short(seconds, text):
    assert duration(seconds) == text
