"""Planted links: a run directory from someone else cannot make a command write anywhere else."""

import os
import shutil
from pathlib import Path

import pytest
from test_damage import run_command
from trainer import config

from spikewire.config import resolve
from spikewire.train.loop import fit

TINY = ["--epochs=1", "--batch-size=256", "--time-steps=2", "--threads=1"]
FRONTIER = ["frontier", "--methods=budget", "--connectivity=0.2", "--seeds=1", "--out=out", *TINY]
JOB = "digits-budget-0.2-seed0"
EXPORTS = {
    "packed": "run/model.packed.safetensors", "nir": "run/model.nir", "coo": "run/connections"
}  # fmt: skip
FIGURES = ("training.svg", "training.png", "training-dark.svg", "layers-dark.png", "theta.svg")
WRITTEN = (
    "config.toml", "env.json", "metrics.jsonl", "traces.npz", "snapshots.npz", "checkpoint.pt",
    "checkpoint.prev.pt",
)  # fmt: skip


def cases():
    """Yield (command, run it needs, path of the link, what the link names)."""
    for kind, path in EXPORTS.items():
        for target in ("mine", "folder", "folder/new"):
            yield ["export", "run", f"--format={kind}", "--check=0"], "finished", path, target
    for form in ("html", "md"):
        for target in ("mine", "folder/new"):
            yield ["report", "run", f"--format={form}"], "finished", f"report.{form}", target
    for name in FIGURES:
        yield ["figures", "run", "--out=out"], "finished", f"out/{name}", "mine"
    yield ["figures", "run", "--out=out"], "finished", "out", "folder"
    for name in WRITTEN:
        yield ["train", "--resume", "run"], "stopped", f"run/{name}", f"copies/{name}"
    for name in ("model.safetensors", ".lock"):
        yield ["train", "--resume", "run"], "stopped", f"run/{name}", "folder/new"
    yield ["train", "--resume", "run", "--tensorboard"], "stopped", "run/tensorboard", "folder"
    for name in (".lock", "checkpoint.pt", "env.json", "metrics.jsonl", "config.toml"):
        yield ["train", "--out=out", *TINY], "", f"out/{name}", "mine"
    for path, target in (("logs", "folder"), (JOB, "folder"), ("frontier.json", "mine")):
        yield FRONTIER, "", f"out/{path}", target
    yield FRONTIER, "", f"out/logs/{JOB}.txt", "mine"
    yield FRONTIER, "", "out/.lock", "mine"


CASES = list(cases())


def plant(path: Path, target: Path) -> None:
    """Put a link where a command will write; what was there is what it names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        target.parent.mkdir(exist_ok=True)
        shutil.copy(path, target)
        path.unlink()
    path.symlink_to(target)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "chosen", [CASES[::6], pytest.param(CASES, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_nothing_is_written_through_a_planted_link(
    intact,
    tmp_path,
    monkeypatch,
    capsys,
    faults,
    chosen,
):
    for number, (words, run, path, target) in enumerate(chosen):
        folder, outside = tmp_path / str(number), tmp_path / f"outside{number}"
        folder.mkdir()
        (outside / "folder").mkdir(parents=True)
        (outside / "mine").write_text("precious")
        monkeypatch.chdir(folder)
        if run:
            shutil.copytree(intact / run, "run")
        plant(Path(path), outside / target)
        before = contents(outside)
        code = run_command(words, capsys, (words, path))
        assert contents(outside) == before, (words, path)
        assert code in (1, 2), (words, path)
        assert os.path.islink(path), "the link was replaced"
    assert len(CASES) >= 30
    faults("planted link", len(chosen), len(chosen))


def test_the_temporary_name_cannot_be_guessed(tmp_path, monkeypatch, faults):
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("precious")
    names = ("config.toml", "env.json", "metrics.jsonl", "checkpoint.pt", "model.safetensors")
    Path("run").mkdir()
    for name in names:  # the names that an earlier version used
        Path(f"run/.{name}.{os.getpid()}").symlink_to("../mine")
    with pytest.raises(Exception, match="not empty"):
        fit(config(epochs=1), "run")
    for link in Path("run").iterdir():
        link.unlink()
    fit(resolve("digits", flags={"epochs": "1", "threads": "1"}), "run")
    assert Path("mine").read_text() == "precious"
    faults("planted link", 1, 1)


def test_a_directory_of_runs_may_be_a_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("disk").mkdir()
    Path("runs").symlink_to("disk")
    fit(config(epochs=1), "runs/a")
    assert Path("disk/a/model.safetensors").is_file()
