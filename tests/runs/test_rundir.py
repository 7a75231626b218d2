"""The run directory: creation, refusals, metrics, checkpoints, the trained network."""

import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from spikewire.config import Config
from spikewire.errors import SpikewireError
from spikewire.files import atomic_write
from spikewire.runs import RunDir, claim_run

CPU = torch.device("cpu")


@pytest.fixture
def config():
    return Config(epochs=3, options={"alpha": 0.25})


@pytest.fixture
def run(tmp_path, config):
    return RunDir.create(tmp_path / "run", config, CPU)


def names(run):
    return sorted(path.name for path in run.path.iterdir())


def refused(action, *parts):
    with pytest.raises(SpikewireError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


def test_create_records_the_settings_and_the_environment(run, config):
    assert names(run) == ["config.toml", "env.json", "metrics.jsonl"]
    assert run.config() == config
    assert run.config({"threads": "2"}).threads == 2
    env = json.loads((run.path / "env.json").read_text())
    assert env["torch"] == torch.__version__
    assert env["seed"] == 0
    assert env["device"] == "cpu"
    assert env["threads"] == torch.get_num_threads()
    assert {"python", "numpy", "spikewire", "commit", "command"} <= env.keys()


def test_a_directory_that_is_not_empty_is_refused_and_not_changed(tmp_path, config):
    (tmp_path / "notes.txt").write_text("mine")
    refused(lambda: RunDir.create(tmp_path, config, CPU), str(tmp_path), "not empty")
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_an_empty_directory_is_accepted(tmp_path, config):
    assert RunDir.create(tmp_path, config, CPU).config() == config


START = {"position": {"epoch": 0, "batch": 0}}
TEMPORARY = ".config.toml.0123456789abcdef"


def test_the_files_of_a_killed_start_are_overwritten(tmp_path, config):
    RunDir.create(tmp_path, config, CPU, START)
    (tmp_path / "config.toml").unlink()
    (tmp_path / TEMPORARY).write_text("incomplete")
    run = RunDir.create(tmp_path, config, CPU, START | {"again": 1})
    assert run.load_checkpoint(config) == START | {"again": 1}
    assert names(run) == ["checkpoint.pt", "config.toml", "env.json", "metrics.jsonl"]


@pytest.mark.parametrize(
    "name",
    ["checkpoint.pt", "env.json", "metrics.jsonl", ".config.toml.swp", ".checkpoint.pt.best",
     ".checkpoint.pt.4242", ".env.json.0123456789abcde", ".notes.0123456789abcdef", ".lock"],
)  # fmt: skip
def test_a_file_of_another_program_is_neither_vacant_nor_removed(tmp_path, config, name):
    (tmp_path / name).write_text("precious")
    (tmp_path / TEMPORARY).write_text("")
    refused(lambda: RunDir.create(tmp_path, config, CPU, START), "not empty")
    assert (tmp_path / name).read_text() == "precious"
    assert (tmp_path / TEMPORARY).exists()


@pytest.mark.parametrize("position", [{"epoch": 1, "batch": 0}, {"epoch": 0, "batch": 2}, None, {}])
def test_a_checkpoint_after_the_first_step_is_not_overwritten(tmp_path, config, position):
    RunDir.create(tmp_path, config, CPU, {"position": position})
    (tmp_path / "config.toml").unlink()
    before = (tmp_path / "checkpoint.pt").read_bytes()
    refused(lambda: RunDir.create(tmp_path, config, CPU, START), "not empty")
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_a_folder_or_link_with_the_name_of_a_start_is_not_vacant(tmp_path, config):
    (tmp_path / "mine").write_text("precious")
    for number, make in enumerate((Path.mkdir, lambda path: path.symlink_to(tmp_path / "mine"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / TEMPORARY)
        refused(lambda folder=folder: RunDir.create(folder, config, CPU, START), "not empty")
        assert (folder / TEMPORARY).exists()


def test_only_names_that_a_run_could_have_made_are_removed(run):
    kept = [".config.toml.swp", ".checkpoint.pt.best", ".traces.npz.old", ".mine.0123456789abcdef"]
    for name in (*kept, TEMPORARY, ".model.safetensors.fedcba9876543210"):
        (run.path / name).write_text("")
    run.remove_temporary_files()
    assert [name for name in names(run) if name.startswith(".")] == sorted(kept)


@pytest.mark.parametrize("file", ["metrics.jsonl", "model.safetensors", "traces.npz"])
def test_a_run_without_its_config_is_refused_and_not_changed(tmp_path, config, file):
    (tmp_path / "checkpoint.pt").write_text("precious")
    (tmp_path / file).write_text("precious")
    refused(lambda: RunDir.create(tmp_path, config, CPU), "not empty")
    assert set(os.listdir(tmp_path)) == {"checkpoint.pt", file}


def test_a_path_that_cannot_be_written_is_refused(tmp_path, config):
    (tmp_path / "file").write_text("")
    refused(lambda: RunDir.create(tmp_path / "file", config, CPU), "is a file")
    refused(
        lambda: RunDir.create(tmp_path / "file" / "run", config, CPU),
        "file: is a file, not a folder",
    )
    refused(lambda: RunDir.create("/proc/none/run", config, CPU), "/proc/none/run")
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_without_write_permission_is_refused(config):
    nobody = 65534
    with tempfile.TemporaryDirectory() as closed:
        os.chmod(closed, 0o555)
        before = os.geteuid()
        if before == 0:  # root may write anywhere
            os.seteuid(nobody)
        try:
            create = lambda: RunDir.create(f"{closed}/run", config, CPU)  # noqa: E731
            refused(create, f"{closed}/run", "cannot be written: Permission denied")
        finally:
            os.seteuid(before)
        assert os.listdir(closed) == []


def test_a_directory_without_a_run_is_refused(tmp_path):
    refused(lambda: RunDir.open(tmp_path), str(tmp_path), "not a run directory")


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_one(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail():
        with atomic_write(path) as file:
            file.write(b"incomplete")
            raise ValueError

    pytest.raises(ValueError, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_incomplete_line_is_ignored_and_truncate_removes_later_epochs(run):
    for epoch in (1, 2, 3):
        run.append({"epoch": epoch, "loss": float("nan"), "stats": {"x": float("inf"), "y": 1.0}})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "lo')
    assert [row["epoch"] for row in run.history()] == [1, 2, 3]
    assert run.history()[0] == {"epoch": 1, "loss": None, "stats": {"x": None, "y": 1.0}}
    run.truncate(2)
    assert [row["epoch"] for row in run.history()] == [1, 2]
    assert len((run.path / "metrics.jsonl").read_text().splitlines()) == 2
    run.append({"epoch": 3})
    assert [row["epoch"] for row in run.history()] == [1, 2, 3]


def test_a_damaged_line_is_reported_by_its_number(run):
    (run.path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    refused(run.history, "metrics.jsonl", "line 2")


def test_the_newest_checkpoint_is_loaded_and_the_previous_one_is_kept(run, config):
    refused(lambda: run.load_checkpoint(config), "no checkpoint.pt")
    for step in (1, 2):
        run.save_checkpoint(config, {"step": step, "x": torch.full((3,), float(step))})
    assert run.load_checkpoint(config)["step"] == 2
    (run.path / "checkpoint.pt").unlink()
    state = run.load_checkpoint(config)
    assert state["step"] == 1
    assert state["x"].equal(torch.ones(3))


def test_a_checkpoint_of_another_config_is_refused(run, config):
    run.save_checkpoint(config, {})
    other = Config(epochs=4, options={"alpha": 0.25})
    refused(lambda: run.load_checkpoint(other), "checkpoint.pt", "another config", "epochs")


def test_any_damage_to_the_tensors_is_detected(run, config):
    run.save_checkpoint(config, {"x": torch.arange(4096.0)})
    path = run.path / "checkpoint.pt"
    content = path.read_bytes()
    start = content.index(torch.arange(4096.0).numpy().tobytes())
    for i in (start, start + 8000, start + 16383):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        refused(
            lambda: run.load_checkpoint(config), "checkpoint.pt", "damaged", "checkpoint.prev.pt"
        )


@pytest.mark.parametrize("keep", [0, 1, 100, 3000, -1])
def test_a_truncated_checkpoint_is_refused(run, config, keep):
    run.save_checkpoint(config, {"x": torch.arange(1000.0)})
    path = run.path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:keep])
    refused(lambda: run.load_checkpoint(config), "checkpoint.pt", "damaged")


class CreatesFile:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_checkpoint_cannot_execute_anything(run, config, tmp_path):
    torch.save(CreatesFile(tmp_path / "executed"), run.path / "checkpoint.pt")
    refused(lambda: run.load_checkpoint(config), "checkpoint.pt")
    assert not (tmp_path / "executed").exists()


def test_another_file_format_is_refused(run, config):
    torch.save({"format": "other"}, run.path / "checkpoint.pt")
    refused(lambda: run.load_checkpoint(config), "is not a 'spikewire checkpoint 1' file")


def test_the_network_is_loaded_with_its_masks(run):
    weights = {"fc.weight": torch.randn(3, 4), "conv.weight": torch.randn(2, 3, 3, 3)}
    weights["conv.weight"] = weights["conv.weight"].to(memory_format=torch.channels_last)
    masks = {name: weight > 0 for name, weight in weights.items()}
    run.save_model(weights, masks)
    assert run.finished
    loaded, loaded_masks = run.load_model()
    assert all(loaded[name].equal(weight) for name, weight in weights.items())
    assert all(loaded_masks[name].equal(mask) for name, mask in masks.items())
    assert loaded_masks["fc.weight"].dtype == torch.bool


def test_a_missing_or_damaged_network_is_refused(run):
    refused(run.load_model, "model.safetensors", "--resume")
    run.save_model({"w": torch.ones(3)}, {})
    path = run.path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    refused(run.load_model, "model.safetensors", "damaged")


def test_the_next_run_has_the_next_number(tmp_path):
    assert claim_run(tmp_path / "runs", "digits-gradr").name == "digits-gradr-1"
    for name in ("digits-gradr-2", "digits-gradr-10", "digits-gradr-x", "digits-gradr"):
        (tmp_path / "runs" / name).mkdir()
    assert claim_run(tmp_path / "runs", "digits-gradr").name == "digits-gradr-11"


def test_runs_that_start_together_get_directories_of_their_own(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        claimed = set(pool.map(lambda _: claim_run(tmp_path, "digits"), range(64)))
    assert sorted(path.name for path in claimed) == sorted(f"digits-{n}" for n in range(1, 65))
