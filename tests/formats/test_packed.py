import json
import struct

import numpy as np
import pytest
import torch
from networks import conv_net
from refusal import refused
from safetensors.numpy import load_file, save_file

from spikewire.formats import Neuron, Pool, packed
from spikewire.formats.trace import trace_model
from spikewire.nn.models import build
from spikewire.runtime import Runtime, load


def test_fp32_round_trip_is_exact(tmp_path):
    network = trace_model(conv_net(), classes=("a", "b", "c"), about={"dataset": "mnist"})
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
def test_a_loaded_file_equals_the_quantised_network(values, tmp_path):
    model = conv_net()
    network = trace_model(model)
    packed.write(network, tmp_path / "x", values)
    images = torch.randn(3, *model.input_shape)
    wanted = Runtime(packed.quantise(network, values)).record_spikes(images)
    got = load(tmp_path / "x").record_spikes(images)
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)


def test_int8_is_within_half_a_step():
    network = trace_model(conv_net())
    for stage, back in zip(network.stages, packed.quantise(network, "int8").stages, strict=True):
        dense, rounded = stage.to_dense(), back.to_dense()
        largest = np.abs(dense).reshape(len(dense), -1).max(1)
        error = np.abs(dense - rounded).reshape(len(dense), -1).max(1)
        assert (error <= largest / 127 * 0.5001).all()


def test_fewer_synapses_make_a_smaller_file(tmp_path):
    models = (
        conv_net(12, 12, channels=(2, 48, 48), connectivity=connectivity)
        for connectivity in (1.0, 0.2, 0.05)
    )
    sizes = [packed.write(trace_model(model), tmp_path / "x") for model in models]
    assert sizes[0] > 2 * sizes[1] > 4 * sizes[2]


# ---------------------------------------------------------------------- refusals


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x"
    packed.write(trace_model(conv_net()), path)
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
    metadata["crc32"] = packed.checksum(metadata["network"], arrays)
    save_file(arrays, path, metadata=metadata)


def layer(key, value):
    def change(metadata, network, arrays):
        network["layers"][0][key] = value

    return change


def array(key, value):
    def change(metadata, network, arrays):
        arrays[key] = value(arrays[key])

    return change


USUAL = ("stride", "padding", "dilation", "groups", "inputs", "adds", "current_pool", "neuron")
USUAL += ("pool",)


def test_fields_of_usual_value_are_left_out_and_read_where_they_are_given(file):
    before = packed.read(file)
    first = header(file)[1]["layers"][0]
    assert not {"dilation", "groups", "inputs", "adds", "current_pool"} & first.keys()
    assert not {"rest", "reset", "strict", "current_decay"} & first["neuron"].keys()

    def give(metadata, network, arrays):
        network |= {"vote": before.vote, "membrane": False}
        for number, record in enumerate(network["layers"]):
            stage = before.stages[number]
            record |= {"stride": [1, 1], "dilation": [1, 1], "groups": 1, "adds": []}
            record |= {"inputs": [[source.stage, source.pooled] for source in stage.inputs]}
            record |= {"current_pool": None, "neuron": stage.neuron and stage.neuron._asdict()}
            record |= {"pool": stage.pool and stage.pool._asdict()}

    rewrite(file, give)
    assert "inputs" in header(file)[1]["layers"][0]
    after = packed.read(file)
    for a, b in zip(before.stages, after.stages, strict=True):
        for key in USUAL:
            assert getattr(a, key) == getattr(b, key), key


NEURON = Neuron(2.0, 1.0, 0.0)._asdict()
POOL = Pool("max", 2)._asdict()
HOSTILE = {
    "format 'spikewire packed 9' is unknown": lambda m, n, a: m.update(format="spikewire packed 9"),
    "time_steps": lambda m, n, a: n.update(time_steps=10**12),
    "time_steps: 32768": lambda m, n, a: n.update(time_steps=32768),
    "time_steps: True": lambda m, n, a: n.update(time_steps=True),
    "input_shape": lambda m, n, a: n.update(input_shape=[2, 2**20, 2**20]),
    "classes": lambda m, n, a: n.update(classes=["one"]),
    "vote": lambda m, n, a: n.update(vote=0.5),
    "std": lambda m, n, a: n.update(std=[0.0, 1.0], mean=[0.0, 1.0]),
    "is not a complete packed file": lambda m, n, a: n.pop("layers"),
    "shape": layer("shape", [2**40, 2**40]),
    "shape ": layer("shape", [5, 2, 3, -3]),
    "for (3, 9, 21)": lambda m, n, a: n.update(input_shape=[3, 9, 21]),
    "padding": layer("padding", [10**9, 0]),
    "stride": layer("stride", [0, 1]),
    "dilation": layer("dilation", [1, 2**40]),
    "groups": layer("groups", 2),
    "an earlier stage": layer("inputs", [[1, False]]),
    "adds": layer("adds", [0]),
    "whether it is pooled": layer("inputs", [[-1]]),
    "pool": layer("pool", {**POOL, "size": 10**9}),
    "max or sum": layer("pool", {**POOL, "kind": "median"}),
    "pool: padding": layer("pool", {**POOL, "padding": 2}),
    "tau": layer("neuron", {**NEURON, "tau": 0.0}),
    "threshold": layer("neuron", {**NEURON, "threshold": float("nan")}),
    "reset: unknown": layer("neuron", {**NEURON, "reset": "none"}),
    "update: unknown": layer("neuron", {**NEURON, "update": "none"}),
    "current_decay: 1.0": layer("neuron", {**NEURON, "current_decay": 1.0}),
    "current_decay: nan": layer("neuron", {**NEURON, "current_decay": float("nan")}),
    "current_decay: -1e+300": layer("neuron", {**NEURON, "current_decay": -1e300}),
    "current_decay: '0.5'": layer("neuron", {**NEURON, "current_decay": "0.5"}),
    "current_decay: None": layer("neuron", {**NEURON, "current_decay": None}),
    "float32": layer("neuron", {**NEURON, "threshold": 1e300}),
    "float32 ": layer("neuron", {**NEURON, "tau": 1e39}),
    "a stage with neurons": layer("neuron", None),
    "one per position": array("0.values", lambda a: a[:-1]),
    "one-dimensional": array("0.bias", lambda a: a.reshape(1, -1)),
    "finite": array("0.bias", lambda a: a * np.float32(np.inf)),
    "float32, float16 or int8": array("0.values", lambda a: a.astype(np.float64)),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_headers_are_refused_in_one_line(message, file):
    rewrite(file, HOSTILE[message])
    refused(lambda: packed.read(file), message.strip())


def test_neurons_without_a_synaptic_current_may_say_so_or_not(file):
    images, wanted = torch.randn(3, *packed.read(file).input_shape), load(file)

    def change(metadata, network, arrays):
        for own in network["layers"]:
            if own["neuron"]:
                assert "current_decay" not in own["neuron"], "24 bytes per layer"
                own["neuron"]["current_decay"] = 0.0

    rewrite(file, change)
    assert torch.equal(load(file)(images), wanted(images))


def test_positions_beyond_the_shape_are_refused(file):
    def change(metadata, network, arrays):
        count = len(arrays["1.values"])
        arrays.pop("1.bits", None)
        arrays["1.gaps"] = np.full(count, 254, np.uint8)

    rewrite(file, change)
    refused(lambda: packed.read(file), "positions")


def test_truncated_missing_and_other_files_are_refused(file, tmp_path):
    content = file.read_bytes()
    for length in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        refused(lambda: packed.read(file), str(file))
    file.write_bytes(b"\xff" * 64)
    refused(lambda: packed.read(file), "complete packed file")
    refused(lambda: packed.read(tmp_path / "absent"), "does not exist")
    save_file({"x": np.zeros(1)}, tmp_path / "other")
    refused(lambda: load(tmp_path / "other"), "is not a packed file")
    refused(lambda: load(tmp_path), "is a folder")


def test_a_changed_number_or_weight_is_detected(file):
    whole = file.read_bytes()
    for old, new in ((b"time_steps", b"time_stepz"), (whole[-3:], b"abc")):
        assert old in whole
        file.write_bytes(whole.replace(old, new))
        refused(lambda: packed.read(file), "wrong checksum")
    arrays, metadata = load_file(file), header(file)[0]
    save_file(arrays, file, metadata={key: metadata[key] for key in ("format", "network")})
    refused(lambda: packed.read(file), "no checksum")


def test_unknown_types_of_values_are_refused(tmp_path):
    network = trace_model(conv_net())
    for write in (packed.quantise, lambda *given: packed.write(given[0], tmp_path / "y", given[1])):
        refused(lambda write=write: write(network, "fp8"), "values: unknown 'fp8'")
    assert not (tmp_path / "y").exists()


# ---------------------------------------------------------------------- recurrent networks


def recurrent_layer(key, value):
    def change(metadata, network, arrays):
        network["layers"][1][key] = value

    return change


HOSTILE_RECURRENT = {
    "an earlier stage": recurrent_layer("inputs", [[2, False]]),
    "the only one": recurrent_layer("inputs", [[1, False], [1, False]]),
    "the only one ": recurrent_layer("inputs", [[1, True]]),
    "a stage with neurons": recurrent_layer("neuron", None),
    "shape": recurrent_layer("shape", [2**40, 2**40]),
    "for (9,)": recurrent_layer("shape", [9, 9, 1, 1]),
    "adds": recurrent_layer("adds", [0, 1]),
    "adds ": recurrent_layer("adds", [0, 2**70]),
    "windows": recurrent_layer("pool", POOL),
    "windows ": recurrent_layer("current_pool", POOL),
    "one per position": array("1.values", lambda a: a[:-1]),
}


@pytest.mark.parametrize("message", HOSTILE_RECURRENT)
def test_hostile_headers_of_recurrent_networks_are_refused_in_one_line(message, tmp_path):
    sizes = {"input_shape": (4,), "classes": 3, "hidden": 9, "temporal": True}
    model = build("recurrent", time_steps=5, **sizes)
    packed.write(trace_model(model, torch.rand(5, 2, 4)), tmp_path / "x")
    assert packed.read(tmp_path / "x").recurrent == (1,)
    rewrite(tmp_path / "x", HOSTILE_RECURRENT[message])
    refused(lambda: packed.read(tmp_path / "x"), message.strip())
