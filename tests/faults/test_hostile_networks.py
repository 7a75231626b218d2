"""Network files in which one field has an unexpected value: packed files and NIR."""

import io
import json
import random
from itertools import product

import h5py
import nir
import numpy as np
import pytest
import torch
from networks import conv_net
from refusal import refused
from safetensors.numpy import load, save

from spikewire.errors import SpikewireError
from spikewire.formats import packed
from spikewire.formats.nir import from_nir, to_nir
from spikewire.formats.trace import trace_model
from spikewire.runtime import Runtime

NUMBERS = [0, 1, -1, 2, 7, 255, 2**15, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.5, 1e300]
NUMBERS += [float("nan"), float("inf"), None, True, "x", "", "\x1b[2J", [], [1], {}, {"a": 1}]


def read_and_run(read) -> bool:
    """Read a network; it must run, or be refused in one line. Return whether it was read."""
    try:
        network = read()
        if np.prod(network.input_shape) < 2**14 and network.time_steps <= 64:
            assert Runtime(network)(torch.zeros(1, *network.input_shape)).isfinite().all()
    except SpikewireError as error:
        refusal = str(error)
        assert len(refusal.splitlines()) == 1
        return False
    return True


# ---------------------------------------------------------------------- packed files


def wrong_arrays(array: np.ndarray) -> list[np.ndarray]:
    """Return arrays that differ in one property."""
    empty = array[:0]
    changed = [
        array[:-1],
        np.append(array, array[:1]),
        empty,
        array[None],
        np.zeros((), array.dtype),
    ]
    changed += [array.astype(kind) for kind in ("f8", "f4", "f2", "i8", "u1", "i1", "?", "u2")]
    changed += [np.full_like(array, value) for value in (0, 1, 127)]
    if array.dtype.kind == "f":
        changed += [np.full_like(array, value) for value in (np.nan, np.inf, -np.inf, 6e4)]
    return changed


def leaves(record, path=()):
    """Yield the path to each value of a nested record, and to each list and mapping."""
    if path:
        yield path
    if isinstance(record, dict | list):
        items = record.items() if isinstance(record, dict) else enumerate(record)
        for key, value in items:
            yield from leaves(value, (*path, key))


def replaced(record, path, value):
    """Return a copy of a nested record with another value at a path."""
    copy = json.loads(json.dumps(record))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return copy


def pack(tmp_path, values) -> tuple[str, dict[str, np.ndarray]]:
    """Return the JSON text and the arrays of a packed file."""
    packed.write(trace_model(conv_net(), mean=(0.1, 0.2), std=(1.0, 2.0)), tmp_path / "x", values)
    content = (tmp_path / "x").read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size])["__metadata__"]["network"], load(content)


def rewritten(path, text, arrays) -> None:
    """Write a packed file with a valid checksum."""
    metadata = {"format": packed.FORMAT, "network": text, "crc32": packed.checksum(text, arrays)}
    path.write_bytes(save(dict(arrays), metadata=metadata))


def packed_cases(tmp_path):
    """Yield text and arrays: each field of the record and each array with unexpected values."""
    for values in packed.VALUES:
        text, arrays = pack(tmp_path, values)
        record = json.loads(text)
        for path, value in product(leaves(record), NUMBERS):
            yield json.dumps(replaced(record, path, value)), arrays
        for name, array in arrays.items():
            yield text, {key: own for key, own in arrays.items() if key != name}
            for wrong in wrong_arrays(array):
                yield text, arrays | {name: wrong}


def hostile_packed(tmp_path, count, faults):
    cases = random.Random(0).sample(list(packed_cases(tmp_path)), count)
    read = 0
    for text, arrays in cases:
        rewritten(tmp_path / "y", text, arrays)
        read += read_and_run(lambda: packed.read(tmp_path / "y"))
    assert 0 < read < count
    faults("packed file with an unexpected value", count, count)


def test_unexpected_values_in_a_packed_file(tmp_path, faults):
    hostile_packed(tmp_path, 60, faults)


@pytest.mark.slow
def test_many_unexpected_values_in_a_packed_file(tmp_path, faults):
    hostile_packed(tmp_path, 1000, faults)


def test_no_changed_byte_of_a_packed_file_is_accepted(tmp_path, faults):
    """A space of JSON may change to another one; everything else is covered by the checksum."""
    packed.write(trace_model(conv_net()), tmp_path / "x")
    whole, rng = (tmp_path / "x").read_bytes(), random.Random(0)
    for _ in range(200):
        changed = bytearray(whole)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        (tmp_path / "y").write_bytes(changed)
        refused(lambda: packed.read(tmp_path / "y"), "y: ")
    faults("packed file with a flipped bit", 200, 200)


# ---------------------------------------------------------------------- NIR


def wild_values(old: np.ndarray) -> list[object]:
    """Return values for a dataset; None deletes it."""
    values: list[object] = [
        None, np.zeros(0), 0, 1, -1, 2, 2**62, -(2**62), 1.5, 1e300, -np.inf, np.nan, True, "x",
        b"\xff", np.zeros(1), np.zeros((1, 1)), np.zeros((2,) * 5), np.array([1 + 2j]),
        np.array([b"a", b"b"]), np.float16(1), np.uint8(200), np.arange(4.0).reshape(2, 2),
    ]  # fmt: skip
    if np.asarray(old).dtype.kind in "fiu":
        old = np.asarray(old)
        values += [np.full(old.shape, value, np.float64) for value in (np.nan, 1e39, -3.0, 1e-300)]
        values += [old[..., None], old[None], old.ravel(), old.astype(np.float16)]
    return values


def nir_cases():
    """Yield files: each dataset of several graphs with unexpected values."""
    for pool, kind, pooling in [
        ("avg", "half", "avg"),
        ("avg", "rest", "conv"),
        ("none", "if", "sum"),
    ]:
        stream = io.BytesIO()
        nir.write(stream, to_nir(trace_model(conv_net(pool=pool, kind=kind)), pooling))
        names: dict[str, object] = {}
        with h5py.File(stream, "r") as file:
            file.visititems(
                lambda name, item, names=names: (
                    names.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None
                )
            )
        for name, old in names.items():
            for value in wild_values(old):
                yield stream.getvalue(), name, value


def hostile_nir(tmp_path, count, faults):
    read, path = 0, tmp_path / "x.nir"
    for content, name, value in random.Random(0).sample(list(nir_cases()), count):
        stream = io.BytesIO(content)
        with h5py.File(stream, "r+") as file:
            del file[name]
            if value is not None:
                file[name] = value
        path.write_bytes(stream.getvalue())
        read += read_and_run(lambda: from_nir(path))
    assert 0 < read < count
    faults("NIR file with an unexpected value", count, count)


def test_unexpected_values_in_a_nir_file(tmp_path, faults):
    hostile_nir(tmp_path, 60, faults)


@pytest.mark.slow
def test_many_unexpected_values_in_a_nir_file(tmp_path, faults):
    hostile_nir(tmp_path, 1000, faults)


def graph(**fields):
    """Return a NIR graph whose fully connected layer has other fields."""
    found = to_nir(trace_model(conv_net(pool="avg")))
    node = next(node for node in found.nodes.values() if isinstance(node, nir.Affine))
    for key, value in fields.items():
        setattr(node, key, value)
    return found


@pytest.mark.parametrize(
    "bias",
    [np.zeros(()), np.zeros(1), np.zeros((3, 1)), np.zeros(99), np.array(["x"] * 3), 1j, "x"],
)
def test_a_bias_of_another_shape_or_type_is_refused(bias):
    refused(lambda: from_nir(graph(bias=bias)), "bias")


@pytest.mark.parametrize("dt", [0, -1e-4, float("nan"), float("inf"), None, "x", True])
def test_a_time_step_that_is_no_positive_number_is_refused(dt):
    refused(lambda: from_nir(graph(), dt=dt), "dt")


def test_a_small_file_with_a_huge_array_is_refused_before_it_is_read(tmp_path):
    with h5py.File(tmp_path / "x.nir", "w") as file:
        file.create_dataset("node/weight", (2**20, 2**20), "f8", chunks=(2**10, 2**10))
    assert (tmp_path / "x.nir").stat().st_size < 2**16
    refused(lambda: from_nir(tmp_path / "x.nir"), "bytes of arrays")
