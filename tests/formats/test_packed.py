import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imsave
from networks import conv_net
from refusal import refused
from safetensors.numpy import load_file, save_file

from spikewire import data as datasets
from spikewire.cli import main
from spikewire.config import resolve
from spikewire.deploy import export
from spikewire.formats import packed
from spikewire.formats.gaps import from_bits, from_gaps, to_bits, to_gaps
from spikewire.formats.network import describe
from spikewire.runtime import Runtime, load
from spikewire.runtime.inputs import read_images
from spikewire.train.evaluate import score
from spikewire.train.loop import fit


@given(st.sets(st.integers(0, 5000)), st.integers(5001, 6000))
def test_positions_come_back(positions, total):
    index = np.array(sorted(positions), np.int64)
    assert np.array_equal(from_gaps(to_gaps(index)), index)
    assert np.array_equal(from_bits(to_bits(index, total), total), index)


def test_gaps_by_hand():
    assert to_gaps(np.array([0, 3, 259, 1000])).tolist() == [0, 2, 255, 0, 255, 255, 230]


def test_fp32_round_trip_is_exact(tmp_path):
    network = describe(conv_net(), classes=("a", "b", "c"), about={"licence": "CC0"})
    packed.write(network, tmp_path / "x", "fp32")
    back = packed.read(tmp_path / "x")
    for one, other in zip(network.stages, back.stages, strict=True):
        assert np.array_equal(one.index, other.index)
        assert one.values.tobytes() == other.values.tobytes()
        assert one.bias.tobytes() == other.bias.tobytes()
        assert (one.neuron, one.pool, one.padding) == (other.neuron, other.pool, other.padding)
    for field in ("classes", "vote", "input_shape", "time_steps", "about", "geometry"):
        assert getattr(network, field) == getattr(back, field)


@pytest.mark.parametrize("values", packed.VALUES)
def test_a_loaded_file_is_what_quantised_said(values, tmp_path):
    model = conv_net()
    network = describe(model)
    packed.write(network, tmp_path / "x", values)
    images = torch.randn(3, *model.input_shape)
    wanted = Runtime(packed.quantised(network, values)).trace(images)
    got = load(tmp_path / "x").trace(images)
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)


def test_int8_is_within_half_a_step():
    network = describe(conv_net())
    for stage, back in zip(network.stages, packed.quantised(network, "int8").stages, strict=True):
        dense, rounded = stage.dense(), back.dense()
        largest = np.abs(dense).reshape(len(dense), -1).max(1)
        error = np.abs(dense - rounded).reshape(len(dense), -1).max(1)
        assert (error <= largest / 127 * 0.5001).all()


def test_fewer_synapses_make_a_smaller_file(tmp_path):
    sizes = [
        packed.write(
            describe(conv_net(12, 12, channels=(2, 48, 48), connectivity=c)), tmp_path / "x"
        )
        for c in (1.0, 0.2, 0.05)
    ]
    assert sizes[0] > 2 * sizes[1] > 4 * sizes[2]


# ---------------------------------------------------------------------- refusals


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x"
    packed.write(describe(conv_net()), path)
    return path


def header(path):
    size = struct.unpack("<Q", path.read_bytes()[:8])[0]
    metadata = json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]
    return metadata, json.loads(metadata["network"])


def rewrite(path, change):
    metadata, network = header(path)
    arrays = load_file(path)
    change(metadata, network, arrays)
    metadata["network"] = json.dumps(network)
    save_file(arrays, path, metadata=metadata)


def layer(key, value):
    def change(metadata, network, arrays):
        network["layers"][0][key] = value

    return change


def array(key, value):
    def change(metadata, network, arrays):
        arrays[key] = value(arrays[key])

    return change


HOSTILE = {
    "format 'spikewire packed 2' is unknown": lambda m, n, a: m.update(format="spikewire packed 2"),
    "time_steps": lambda m, n, a: n.update(time_steps=10**12),
    "time_steps: True": lambda m, n, a: n.update(time_steps=True),
    "input_shape": lambda m, n, a: n.update(input_shape=[2, 2**20, 2**20]),
    "classes": lambda m, n, a: n.update(classes=["one"]),
    "vote": lambda m, n, a: n.update(vote=0.5),
    "std": lambda m, n, a: n.update(std=[0.0, 1.0], mean=[0.0, 1.0]),
    "is not a whole packed file": lambda m, n, a: n.pop("layers"),
    "shape": layer("shape", [2**40, 2**40]),
    "shape ": layer("shape", [5, 2, 3, -3]),
    "for (3, 9, 21)": lambda m, n, a: n.update(input_shape=[3, 9, 21]),
    "padding": layer("padding", 10**9),
    "pool": layer("pool", {"kind": "max", "size": 10**9}),
    "max or sum": layer("pool", {"kind": "median", "size": 2}),
    "tau": layer("neuron", {"tau": 0.0, "threshold": 1.0, "rest": 0.0}),
    "threshold": layer("neuron", {"tau": 2.0, "threshold": float("nan"), "rest": 0.0}),
    "after neurons": layer("neuron", None),
    "one a position": array("0.values", lambda a: a[:-1]),
    "flat": array("0.bias", lambda a: a.reshape(1, -1)),
    "finite": array("0.bias", lambda a: a * np.float32(np.inf)),
    "float32, float16 or int8": array("0.values", lambda a: a.astype(np.float64)),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_headers_are_refused_in_one_line(message, file):
    rewrite(file, HOSTILE[message])
    refused(lambda: packed.read(file), message.strip())


def test_positions_beyond_the_shape_are_refused(file):
    def change(metadata, network, arrays):
        count = len(arrays["1.values"])
        arrays.pop("1.bits", None)
        arrays["1.gaps"] = np.full(count, 254, np.uint8)

    rewrite(file, change)
    refused(lambda: packed.read(file), "positions")


def test_truncated_and_foreign_files(file, tmp_path):
    content = file.read_bytes()
    for length in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        refused(lambda: packed.read(file), str(file))
    file.write_bytes(b"\xff" * 64)
    refused(lambda: packed.read(file), "whole packed file")
    refused(lambda: packed.read(tmp_path / "absent"), "is not there")
    save_file({"x": np.zeros(1)}, tmp_path / "foreign")
    refused(lambda: load(tmp_path / "foreign"), "is not a packed file")
    refused(lambda: load(tmp_path), "is a folder")
    refused(
        lambda: packed.write(describe(conv_net()), tmp_path / "y", "fp8"), "values: unknown 'fp8'"
    )


# ---------------------------------------------------------------------- a run, from the shell


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run on the embedded digits."""
    path = tmp_path_factory.mktemp("runs") / "x"
    flags = {"epochs": "4", "time_steps": "4", "threads": "1", "alpha": "0.02"}
    fit(resolve("digits", flags=flags), path)
    return path


def shell(capsys, *words):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_export_then_predict_gives_the_run_its_accuracy(finished, tmp_path, capsys):
    file = tmp_path / "x.safetensors"
    code, out, _ = shell(capsys, "export", finished, "--values", "fp32", "--out", file)
    assert code == 0
    assert "accuracy change" in out
    about = packed.read(file).about
    assert about["dataset"] == "digits"
    assert about["accuracy"] == about["accuracy_before"]
    code, out, _ = shell(capsys, "predict", file, "--input", "digits")
    assert code == 0
    assert f"{score(finished).accuracy:.2%}" in out


def test_predict_as_json_gives_one_record_an_image(finished, tmp_path, capsys):
    file, data = tmp_path / "x.safetensors", datasets.load("digits")
    export(finished, out=file, check_images=0)
    words = ("predict", file, "--input", "digits", "--json", "--exact", "--early-exit", "1")
    _, out, _ = shell(capsys, *words, "--batch-size", "100", "--threads", "1")
    records = [json.loads(line) for line in out.splitlines()]
    model = load(file, exact=True)
    classes, steps = model.decide(model.normalise(data.test_images), 1.0)
    assert [int(r["class"]) for r in records] == classes.tolist()
    assert [r["time_steps"] for r in records] == steps.tolist()
    assert [int(r["label"]) for r in records] == data.test_labels.tolist()
    assert [r["image"] for r in records] == list(range(len(classes)))


def test_an_array_without_images_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((0, 2, 9, 21), np.uint8))
    runtime = Runtime(describe(conv_net()))
    refused(lambda: read_images(str(tmp_path / "x.npy"), runtime), "at least one image")


def test_predict_reads_arrays_and_pictures(finished, tmp_path, capsys):
    file, pixels = tmp_path / "x.safetensors", datasets.load("digits").test_images[:3]
    export(finished, out=file, check_images=0)
    model = load(file)
    wanted = [model.network.classes[i] for i in model.predict(model.normalise(pixels)).tolist()]
    np.save(tmp_path / "a.npy", pixels.numpy())
    imsave(tmp_path / "a.png", pixels[0, 0].numpy(), cmap="gray", vmin=0, vmax=255)
    _, out, _ = shell(capsys, "predict", file, "--input", tmp_path / "a.npy")
    assert out.split()[1::2] == wanted
    _, out, _ = shell(capsys, "predict", file, "--input", tmp_path / "a.png")
    assert out.split() == ["0", wanted[0]]


@pytest.mark.parametrize("words", [
    ["export", "RUN", "--format", "onnx"],
    ["export", "RUN", "--check", "many"],
    ["export", "nowhere"],
    ["predict", "nowhere", "--input", "digits"],
    ["predict", "FILE", "--input", "nothing"],
    ["predict", "FILE", "--input", "absent.npy"],
    ["predict", "FILE", "--input", "digits", "--early-exit", "soon"],
    ["predict", "FILE", "--input", "digits", "--threads", "0"],
    ["predict", "FILE", "--input", "digits", "--batch-size", "0"],
    ["predict", "FILE", "--input", "digits", "--kernels", "mmx"],
])  # fmt: skip
def test_mistakes_at_the_shell_are_one_line(words, finished, tmp_path, capsys):
    file = tmp_path / "x.safetensors"
    export(finished, out=file, check_images=0)
    names = {"RUN": finished, "FILE": file}
    code, _, err = shell(capsys, *(names.get(word, word) for word in words))
    assert code == 2
    assert err.count("\n") == 1
