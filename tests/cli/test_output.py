"""What `spikewire train` prints: changed settings, all of them, JSON records, or one line."""

import json
import tomllib

import pytest

from spikewire.config import resolve
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import fit

TINY = ["--epochs", "1", "--time-steps", "2", "--batch-size", "256"]
SMALL = {"epochs": 1, "batch_size": 256, "time_steps": 2}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def printed_settings(out):
    """Return what is printed before the first epoch: the first line, and the TOML table."""
    text = out.partition("epoch 1/")[0]
    return text.partition("\n")[0], tomllib.loads(text)


def test_only_settings_that_differ_from_the_preset_are_printed(call):
    title, found = printed_settings(call("train", *TINY)[1])
    trained = "method gradr, network digits-mlp, data digits"
    assert title == f"# preset digits: {trained}; -v shows all settings"
    assert found == SMALL
    words = ["--method", "deepr", "--connectivity", "0.3", "--lr", "0.03"]
    _, found = printed_settings(call("train", *words, *TINY)[1])
    assert found == {**SMALL, "method": "deepr", "deepr": {"connectivity": 0.3}}


def test_a_section_of_the_preset_counts_as_the_preset(call):
    assert resolve(flags={"method": "budget"}).lr != resolve().lr
    _, found = printed_settings(call("train", "--method", "budget", *TINY)[1])
    assert found == {**SMALL, "method": "budget"}


def test_settings_of_a_file_are_compared_with_the_defaults(call, tmp_path):
    (tmp_path / "x.toml").write_text("lr = 0.01\nseed = 0\n[gradr]\nalpha = 0.2\n")
    title, found = printed_settings(call("train", "--config", "x.toml", *TINY)[1])
    assert title.startswith("# no preset: method gradr,")
    assert found == {**SMALL, "lr": 0.01, "gradr": {"alpha": 0.2}}


def test_verbose_prints_all_settings(call, tmp_path):
    out = call("train", "-v", "--out", "run", *TINY)[1]
    (tmp_path / "all.toml").write_text(out.partition("epoch 1/")[0])
    assert resolve(file=tmp_path / "all.toml") == RunDir(tmp_path / "run").config()


def test_a_resumed_run_prints_what_was_changed_now(call, tmp_path):
    config = resolve(flags={**{key: str(value) for key, value in SMALL.items()}, "epochs": "2"})
    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "run", progress=lambda event: True)
    title, found = printed_settings(call("train", "--resume", "run", "--trace-every", "9")[1])
    assert title.startswith("# resumed with the settings of run: method gradr,")
    assert found == {"trace_every": 9}


@pytest.mark.parametrize(
    "words",
    [
        ["--dataset", "mnist", "--data-dir", "none"],
        ["--out", "used"],
        ["--model", "mnist-mlp"],
        ["--start", "none"],
        ["--resume", "used"],
    ],
)
def test_inputs_are_checked_before_anything_is_printed(call, tmp_path, words):
    (tmp_path / "used").mkdir()
    (tmp_path / "used/notes").write_text("mine")
    code, out, err = call("train", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--model", "mnist-mlp"], "--model"),
        (["--start", "none"], "--start"),
        (["--config", "x.toml"], "model"),
    ],
)
def test_an_error_names_the_flag_where_the_value_came_from_one(call, tmp_path, words, field):
    (tmp_path / "x.toml").write_text('model = "mnist-mlp"\n')
    assert call("train", *words)[2].startswith(f"spikewire: {field}: ")


def test_a_run_directory_named_like_a_setting_is_not_taken_for_the_flag(call, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/notes").write_text("mine")
    err = call("train", "--model", "digits-mlp", "--out", "model")[2]
    assert err.startswith("spikewire: model: exists and is not empty")


def test_json_is_one_record_per_epoch_and_one_of_the_result(call, tmp_path):
    code, out, err = call("train", "--json", "--out", "run", *TINY, "--epochs", "2")
    *epochs, last = map(json.loads, out.splitlines())
    history = RunDir(tmp_path / "run").history()
    assert (code, err) == (0, "")
    assert epochs == [{"event": "epoch", "epochs": 2, **row} for row in history]
    assert (last["event"], last["run"]) == ("result", "run")
    assert last["accuracy"] == history[-1]["accuracy"]
    assert last["connectivity"] == history[-1]["connectivity"]
    assert [layer["name"] for layer in last["layers"]] == ["fc1.weight", "fc2.weight"]


def test_quiet_prints_only_the_run_directory(call):
    assert call("train", "--quiet", *TINY) == (0, "runs/digits-gradr-1\n", "")
    code, out, _ = call("train", "--quiet", "--json", *TINY)
    assert code == 0
    assert json.loads(out)["run"] == "runs/digits-gradr-2", "the last record only"


@pytest.mark.parametrize("threshold", ["0.01", "1000"])
def test_a_network_whose_output_is_silent_is_named(call, threshold):
    words = ["--method", "dense", "--init", "default", "--threshold", threshold]
    code, _, err = call("train", *TINY, *words, "--readout", "spikes", "--lr", "1e-9")
    assert code == 0
    assert ("have not spiked on the test images" in err) == (threshold == "1000")
