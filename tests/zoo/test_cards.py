"""The zoo: its cards are true, and its names are accepted wherever a packed file is."""

import json
import shlex
from pathlib import Path

import pytest
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
    assert files == set(cards()) >= {"digits-5", "digits-2"}
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


@pytest.mark.parametrize("name", list(all_names()))
def test_a_network_has_the_accuracy_of_its_card(name, request):
    found = card(name)
    data = request.getfixturevalue(found.dataset)  # of conftest.py; skips if it is not there
    model = spikewire.load(f"zoo:{name}", exact=True)  # as the card was measured
    pixels, labels = data.test_images.split(100), data.test_labels
    classes = [model.predict(model.normalise(part)) for part in pixels]
    right = sum(int((a == b).sum()) for a, b in zip(classes, labels.split(100), strict=True))
    assert len(labels) == found.test_samples
    assert right / len(labels) == found.accuracy
    assert abs(found.accuracy - found.trained_accuracy) < 0.01


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
