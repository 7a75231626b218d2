"""The zoo: its cards are true, and its names are accepted wherever a packed file is."""

import json
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from refusal import refused

import spikewire
from spikewire.cli.train import train_parser
from spikewire.data import DATASETS
from spikewire.formats import c, packed
from spikewire.zoo import FOLDER, card, cards, network_path

EMBEDDED = {name for name, source in DATASETS.items() if not source.files}


def all_names():
    """Yield the names; a network whose data set must be downloaded is tested in the slow set."""
    for name, found in cards().items():
        slow = () if found.dataset in EMBEDDED else (pytest.mark.slow,)
        yield pytest.param(name, marks=slow)


def test_every_network_has_a_card_and_every_card_a_network():
    files = {path.name.removesuffix(".packed.safetensors") for path in FOLDER.glob("*.safetensors")}
    assert files == set(cards()) >= {"braille-10", "digits-5", "digits-2"}
    assert all(name == found.name for name, found in cards().items())


@pytest.mark.parametrize("name", cards())
def test_a_card_agrees_with_its_file(name, tmp_path):
    found, network = card(name), packed.read(f"zoo:{name}")
    assert found.bytes == network_path(name).stat().st_size
    assert found.weights == sum(len(stage.values) for stage in network.stages)
    assert found.connectivity == found.weights / network.size
    assert found.time_steps == network.time_steps
    assert (found.dataset, found.model) == (network.about["dataset"], network.about["model"])
    if found.flash is not None:
        assert c.write(network, tmp_path / "x.c") == c.Memory(found.flash, found.ram or 0)
    fractions = (found.synapses, found.synapses_reached, found.synapses_alive)
    assert all(found.connectivity <= 1 and (x is None or 0 < x <= 1) for x in fractions)
    assert found.licence == "Apache-2.0"
    assert not any(word in " ".join(found.commands) for word in ("/tmp", "/home", "/root"))
    for command in found.commands:
        program, verb, *words = shlex.split(command)
        assert (program, verb) == ("spikewire", "train")
        assert train_parser(words).read(words), "the flags are known"


def classify(model, images, temporal):
    if temporal:
        return model.predict(images.transpose(0, 1).float(), frames=True)
    return model.predict(model.normalise(images))


@pytest.mark.parametrize("name", list(all_names()))
def test_a_network_has_the_accuracy_of_its_card(name, request):
    found = card(name)
    data = request.getfixturevalue(found.dataset)  # of conftest.py; skips if it is not there
    model = spikewire.load(f"zoo:{name}", exact=True)  # as the card was measured
    images, labels = data.at(found.time_steps).test_images, data.test_labels
    classes = [classify(model, part, data.temporal) for part in images.split(100)]
    right = sum(int((a == b).sum()) for a, b in zip(classes, labels.split(100), strict=True))
    assert len(labels) == found.test_samples
    assert right / len(labels) == found.accuracy
    assert abs(found.accuracy - found.trained_accuracy) < 0.01


def test_the_recurrent_network_is_that_of_torch(braille):
    """The outputs of the packed weights in a torch model, on the test samples at every step."""
    network = packed.read("zoo:braille-10")
    sizes = {"input_shape": (12,), "classes": 7, "hidden": 128, "temporal": True}
    options = {"readout": "current", "tau": 2.0, "reset": "soft"}
    model = spikewire.build("recurrent", time_steps=32, **sizes, **options).eval()
    for stage in network.stages:
        weight = torch.from_numpy(stage.to_dense())
        model.get_parameter(f"{stage.name}.weight").data.copy_(weight)
        assert not stage.bias.any()
    frames = braille.at(32).test_images.transpose(0, 1).float()
    with torch.no_grad():
        wanted = model(frames)
    for kernels, count in ((None, len(braille.test_labels)), ("torch", 20)):  # torch is slow
        runtime = spikewire.load("zoo:braille-10", kernels=kernels, exact=True)
        found = runtime.run_frames(frames[:, :count])
        torch.testing.assert_close(found, wanted[:, :count], atol=1e-4, rtol=0)
        assert torch.equal(found.mean(0).argmax(1), wanted[:, :count].mean(0).argmax(1))


def test_data_over_time_are_accepted_by_predict_eval_and_export(call, tmp_path, braille):
    accuracy = f"{card('braille-10').accuracy:.2%}"
    for words in (["predict", "zoo:braille-10", "--input", "braille"], ["eval", "zoo:braille-10"]):
        code, out, _ = call(*words)
        assert (code, accuracy in out) == (0, True)
    samples = braille.at(32).test_images[:3].float()
    np.save(tmp_path / "x.npy", samples.numpy())
    code, out, _ = call("predict", "zoo:braille-10", "--input", tmp_path / "x.npy", "--json")
    model = spikewire.load("zoo:braille-10")
    classes = model.predict(samples.transpose(0, 1), frames=True)
    found = [json.loads(line) for line in out.splitlines()]
    assert [x["class"] for x in found] == [model.network.classes[n] for n in classes]
    assert [x["time_steps"] for x in found] == [32] * 3
    np.save(tmp_path / "x.npy", samples[:, :, :5].numpy())
    for source in ("digits", tmp_path / "x.npy"):
        code, _, err = call("predict", "zoo:braille-10", "--input", source)
        assert (code, err.count("\n")) == (2, 1)
    code, out, _ = call("export", "zoo:braille-10", "--format", "coo", "--out", tmp_path / "coo")
    assert (code, f"{accuracy}, {accuracy}" in out) == (0, True)
    code, _, err = call("export", "zoo:braille-10", "--format", "nir", "--out", tmp_path / "x")
    assert (code, err.count("\n")) == (2, 1)
    assert all(word in err for word in ("rec1", "'soft'", "--reset hard"))


@pytest.mark.parametrize("values", ["fp32", "int8"])
def test_data_over_time_are_exported_to_c_with_a_sample_as_test_vector(
    values, call, need, tmp_path
):
    need("gcc")
    file = tmp_path / "network.c"
    words = ("--format", "c", "--values", values, "--out", file)
    code, out, _ = call("export", "zoo:braille-10", *words)
    assert (code, "of RAM" in out) == (0, True)
    program = str(tmp_path / "test")
    subprocess.run(["gcc", "-std=c99", "-DSPIKEWIRE_TEST", file, "-o", program], check=True)
    assert subprocess.run([program], check=False).returncode == 0


def test_an_unknown_name_is_refused_with_the_nearest(call):
    refused(lambda: spikewire.load("zoo:digit-5"), "zoo", "'digit-5'", "did you mean 'digits-5'")
    for name in ("zoo:", "zoo:../digits-5", "zoo:digits-5.json"):
        refused(lambda name=name: spikewire.load(name), "known: ", "digits-5")
    for words in (["zoo", "digits-50"], ["predict", "zoo:digits-50", "--input", "digits"]):
        code, out, err = call(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "did you mean 'digits-5'?" in err


def test_a_file_that_is_named_like_a_network_can_still_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("zoo:digits-2").write_bytes(network_path("digits-5").read_bytes())
    for path in ("./zoo:digits-2", Path("zoo:digits-2"), tmp_path / "zoo:digits-2"):
        assert packed.read(path).connectivity == card("digits-5").connectivity


def test_zoo_prints_a_table_records_and_a_card(call):
    code, out, err = call("zoo")
    assert (code, err) == (0, "")
    for name, found in cards().items():
        row = next(line for line in out.splitlines() if f"zoo:{name} " in line)
        assert f" {found.accuracy:.2%} " in row
    _, out, _ = call("zoo", "--json")
    assert [json.loads(line)["name"] for line in out.splitlines()] == list(cards())
    _, out, _ = call("zoo", "digits-5", "--json")
    assert json.loads(out) == json.loads((FOLDER / "digits-5.json").read_text())
    code, out, _ = call("zoo", "zoo:digits-5")
    assert code == 0
    for word in ("97.78% of 360 test samples", "947 (5.00%)", "seed 0", "Apache-2.0", "SynOps"):
        assert word in out
    assert "command 1" not in out  # a single command has no number


def test_the_table_fits_a_terminal_of_80_columns_with_whole_names(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("spikewire.cli.show.is_terminal", lambda: True)
    _, out, _ = call("zoo")
    rows = [line.split() for line in out.splitlines() if "%" in line]
    assert [row[0] for row in rows] == [f"zoo:{name}" for name in cards()]
    assert all(len(line) <= 80 for line in out.splitlines())
    monkeypatch.setenv("COLUMNS", "50")
    _, out, _ = call("zoo")
    assert all(f"zoo:{name} " in out for name in cards())
    assert "…" not in out


def test_names_are_accepted_by_eval_predict_and_export(call, tmp_path):
    for words in (["predict", "zoo:digits-5", "--input", "digits"], ["eval", "zoo:digits-5"]):
        code, out, _ = call(*words)
        assert (code, "97.78%" in out) == (0, True)
    code, _, err = call("eval", "zoo:digits-5", "--device", "cuda")
    assert (code, err.count("\n"), "--device" in err) == (2, 1, True)
    file = tmp_path / "digits.c"
    code, out, _ = call("export", "zoo:digits-5", "--format", "c", "--out", file)
    assert (code, "accuracy change" in out, "flash" in out) == (0, True, True)
    assert "spikewire_predict" in file.read_text()
    assert "SPIKEWIRE_TEST" in file.read_text()
    code, out, _ = call("export", "zoo:digits-5", "--format", "c", "--out", file, "--check", "0")
    assert (code, "flash" in out, "SPIKEWIRE_TEST" in out) == (0, True, False)
    again = tmp_path / "x.packed.safetensors"
    code, out, _ = call("export", network_path("digits-5"), "--values", "fp32", "--out", again)
    assert (code, packed.read(again).connectivity) == (0, card("digits-5").connectivity)
    code, _, err = call("export", "zoo:digits-5", "--model", "my.py:net")
    assert (code, err.count("\n")) == (2, 1)
