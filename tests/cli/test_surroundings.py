"""Odd surroundings of a command: environment variables, closed streams, names, deep folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spikewire.cli import main

TINY = ["--epochs=1", "--batch-size=256", "--time-steps=2", "--threads=1"]


def run(folder, *words, options=(), **environment):
    """Run the command in a process; return exit code, output and errors."""
    done = subprocess.run(
        [sys.executable, *options, "-m", "spikewire", *words],
        cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def refused(capsys, *words) -> str:
    """Return the line with which a command is refused."""
    assert main(list(words)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("rank", "ranks", "named"),
    [("x", "2", "RANK"), ("0", "x", "WORLD_SIZE"), ("-1", "2", "RANK"), ("3", "2", "RANK"),
     ("0", "9" * 5000, "WORLD_SIZE"), ("", "2", "RANK"), ("1.5", "2", "RANK"), ("0", "0", "RANK")],
)  # fmt: skip
def test_a_wrong_rank_is_one_line(tmp_path, monkeypatch, capsys, rank, ranks, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    assert refused(capsys, "train", *TINY).startswith(f"spikewire: {named}: ")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_wrong_matplotlib_backend_does_not_matter(tmp_path):
    assert main(["train", "--out", str(tmp_path / "run"), *TINY]) == 0
    code, out, err = run(tmp_path, "report", "run", MPLBACKEND="nonsense")
    assert (code, err) == (0, "")
    assert (tmp_path / "report.html").is_file()


def test_a_closed_output_does_not_matter(tmp_path):
    command = f"{sys.executable} -m spikewire --help >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_closed_streams_do_not_matter_in_training(tmp_path):
    command = f"{sys.executable} -m spikewire train --out run {' '.join(TINY)} >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=tmp_path).returncode == 0
    assert (tmp_path / "run/model.safetensors").is_file()


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        *(pytest.param(words, marks=pytest.mark.slow) for words in (["methods"], ["train", "-h"])),
    ],
)
def test_docstrings_may_be_removed(tmp_path, words):
    code, out, err = run(tmp_path, *words, options=["-OO"])
    assert (code, err) == (0, "")
    assert out


def test_resuming_a_finished_run_has_its_own_exit_code(tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path / "run"), *TINY]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "run")]) == 3
    err = capsys.readouterr().err
    run = tmp_path / "run"
    assert err.startswith(f"spikewire: {run}: has already finished; there is nothing to resume; ")
    assert err.endswith(f"start a new run with --start {run}\n")


@pytest.mark.parametrize("flag", ["--dataset", "--out", "--seed", "--model", "--preset"])
def test_a_value_of_two_dashes_is_refused(tmp_path, monkeypatch, capsys, flag):
    monkeypatch.chdir(tmp_path)
    assert f"{flag}: '--' is not allowed" in refused(capsys, "train", f"{flag}=--")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--threads"],
        ["train", "--epochs"],
        ["frontier", "--jobs"],
        ["frontier", "--seeds"],
    ],
)
def test_a_number_of_5000_digits_is_refused(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, *words, "9" * 5000)
    assert line.startswith(f"spikewire: {words[-1]}: ")
    assert len(line) < 400


def test_square_brackets_in_a_path_are_no_markup(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "[bold red]x[/]"
    Path("[bold red]x[").mkdir()
    assert main(["train", "--out", name, *TINY]) == 0
    assert f"run directory: {name}\n" in capsys.readouterr().out
    assert main(["export", name, "--check=0"]) == 0
    assert f"{name}/model.packed.safetensors" in capsys.readouterr().out


@pytest.mark.parametrize("depth", [1100, pytest.param(1900, marks=pytest.mark.slow)])
def test_an_output_that_is_very_deep(tmp_path, monkeypatch, capsys, depth):
    monkeypatch.chdir(tmp_path)
    deep = "/".join("a" * depth)
    assert main(["train", "--out", deep, *TINY]) == 0
    assert "run directory: a/a" in capsys.readouterr().out
    os.chdir(tmp_path)
    subprocess.run(["rm", "-rf", "a"], check=True)  # shutil.rmtree would not reach the end


def test_an_output_deeper_than_the_system_allows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, "train", "--out", "/".join("a" * 5000), *TINY)
    assert "cannot be written: File name too long" in line
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_runs_of_a_frontier_whose_folder_begins_with_a_dash(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["frontier", "--methods=budget", "--connectivity=0.2", "--seeds=1", *TINY]
    assert main([*words, "--out=-y"]) == 0
    assert (tmp_path / "-y/digits-budget-0.2-seed0/model.safetensors").is_file()


@pytest.mark.slow
def test_eight_trainings_without_a_name_get_one_each(tmp_path):
    command = [sys.executable, "-m", "spikewire", "train", *TINY]
    running = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(8)]
    assert [process.wait() for process in running] == [0] * 8
    assert sorted(os.listdir(tmp_path / "runs")) == [f"digits-gradr-{n}" for n in range(1, 9)]
