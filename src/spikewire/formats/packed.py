"""The packed file: one safetensors file with the structure as JSON and the non-zero weights.

Reading executes nothing, and every size is checked before it is used. A checksum detects damage.
"""

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from spikewire.errors import SpikewireError, check, check_word
from spikewire.files import atomic_write, io_errors
from spikewire.formats.gaps import decode_bits, decode_gaps, encode_bits, encode_gaps
from spikewire.formats.header import (
    complete_layer,
    complete_network,
    make_header,
    read_field,
    read_neuron,
    read_numbers,
    read_pool,
    read_sources,
)
from spikewire.formats.network import MAX_NEURONS, Network, Stage
from spikewire.formats.stage import Shape
from spikewire.zoo import resolve

FORMAT = "spikewire packed 2"
VALUES = ("fp32", "fp16", "int8")
ARRAYS = ("gaps", "bits", "values", "scale", "bias")  # of one stage; see docs/export.md
MAX_LAYERS = 1024
Arrays = dict[str, NDArray[Any]]


def write(network: Network, path: str | Path, values: str = "fp32") -> int:
    """Write a network to a packed file.

    The file appears under its name only when it is complete; an older one is replaced.

    Args:
        network: The network to write.
        path: Path of the file.
        values: Type of the weights: ``"fp32"`` (exact), ``"fp16"``, or ``"int8"`` with one scale
            per output.

    Returns:
        The size of the file in bytes.

    Raises:
        SpikewireError: If `values` is unknown, a weight overflows fp16, or the file cannot be
            written.

    Example:
        >>> packed.write(trace_model(model), "net.packed.safetensors", "fp16")
    """
    header, arrays = _pack_network(network, values)
    text = json.dumps(header, separators=(",", ":"))
    metadata = {"format": FORMAT, "network": text, "crc32": checksum(text, arrays)}
    content, path = save(arrays, metadata=metadata), Path(path)
    with io_errors(path), atomic_write(path) as file:
        file.write(content)
    return len(content)


def read(path: str | Path) -> Network:
    """Read a packed file; nothing in the file is executed.

    Args:
        path: Path of a file written by `write` or by ``spikewire export``, or ``zoo:NAME``.

    Returns:
        The network.

    Raises:
        SpikewireError: If the file is missing, damaged, of another format or inconsistent.

    Example:
        >>> packed.read("net.packed.safetensors").connectivity
        0.05
    """
    path = resolve(path)
    if Path(path).exists() and not Path(path).is_file():
        kind = "folder" if Path(path).is_dir() else "device or pipe"
        raise SpikewireError(
            f"{path}: is a {kind}; pass the packed file that `spikewire export` writes"
        )
    try:
        with safe_open(path, "numpy") as file:
            header = file.metadata() or {}
            _check_format(header.get("format"))
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        text = header.get("network", "")
        if header.get("crc32") != checksum(text, arrays):
            raise ValueError("wrong checksum" if "crc32" in header else "no checksum")
        return _unpack_network(json.loads(text), arrays)
    except SpikewireError as error:
        raise SpikewireError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise SpikewireError(f"{path}: does not exist") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError,
            OverflowError, AttributeError) as error:  # fmt: skip
        reason = " ".join((str(error) or type(error).__name__).split())[:80]
        nir = "; spikewire.from_nir reads NIR files" if is_hdf5(path) else ""
        raise SpikewireError(f"{path}: is not a complete packed file ({reason}){nir}") from None


def is_hdf5(path: str | Path) -> bool:
    """Return whether a file begins as HDF5 does, which NIR files are."""
    try:
        with Path(path).open("rb") as file:
            return file.read(4) == b"\x89HDF"
    except OSError:
        return False


def checksum(network: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the CRC-32 that a packed file stores as ``crc32``.

    Args:
        network: The JSON text of the field ``network``.
        arrays: All arrays of the file by name.

    Returns:
        Eight hexadecimal digits, of the text, then of name, type, shape and bytes of each array in
        the order of names.
    """
    total = zlib.crc32(network.encode())
    for name, array in sorted(arrays.items()):
        total = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), total)
        total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
    return f"{total:08x}"


def quantise(network: Network, values: str) -> Network:
    """Return the network as `read` will return it after `write` with the same `values`.

    Args:
        network: The network to round.
        values: Type of the weights: ``"fp32"``, ``"fp16"`` or ``"int8"``.

    Returns:
        A network with rounded weights.

    Raises:
        SpikewireError: If `values` is unknown or a weight overflows fp16.
    """
    header, arrays = _pack_network(network, values)
    return _unpack_network(json.loads(json.dumps(header)), arrays)


# ---------------------------------------------------------------------- writing


def _pack_network(network: Network, values: str) -> tuple[dict[str, Any], Arrays]:
    """Return the JSON record and the arrays of a packed file."""
    check_word("values", values, VALUES)
    arrays = {
        f"{number}.{key}": array
        for number, stage in enumerate(network.stages)
        for key, array in _pack_stage(stage, values).items()
    }
    return make_header(network, values), arrays


def _pack_stage(stage: Stage, values: str) -> Arrays:
    """Return the weights, their positions in the smaller of the two encodings, and the bias."""
    gaps = encode_gaps(stage.index)
    if len(gaps) <= (stage.size + 7) // 8:
        arrays: Arrays = {"gaps": gaps}
    else:
        arrays = {"bits": encode_bits(stage.index, stage.size)}
    if stage.bias.any():
        arrays["bias"] = stage.bias
    return arrays | _pack_values(stage, values)


def _pack_values(stage: Stage, values: str) -> Arrays:
    """Round the weights; int8 has one scale per output: ``w = scale * value``."""
    if values == "int8":
        return round_int8(stage)
    rounded = stage.values.astype(np.float16 if values == "fp16" else np.float32)
    finite = bool(np.isfinite(rounded).all())
    check(finite, f"{stage.name}: values", values, "fp32, because a weight overflows")
    return {"values": rounded}


def round_int8(stage: Stage) -> Arrays:
    """Return the weights as int8 `values`, and the `scale` of each output."""
    output = stage.index // math.prod(stage.shape[1:])
    scale = np.zeros(stage.shape[0], np.float32)
    np.maximum.at(scale, output, np.abs(stage.values) / np.float32(127))
    steps = stage.values / np.maximum(scale, np.finfo(np.float32).tiny)[output]
    return {"values": np.clip(np.rint(steps), -127, 127).astype(np.int8), "scale": scale}


# ---------------------------------------------------------------------- reading


def _check_format(found: str | None) -> None:
    if found is None:
        raise SpikewireError("is not a packed file; `spikewire export` writes one")
    if found != FORMAT:
        raise SpikewireError(f"format {found!r} is unknown; this version reads {FORMAT!r}")


def _unpack_network(header: Mapping[str, Any], arrays: Arrays) -> Network:
    header = complete_network(header)
    layers = read_field(header, "layers", list)
    check(len(layers) <= MAX_LAYERS, "layers", len(layers), f"at most {MAX_LAYERS}")
    return Network(
        stages=tuple(_unpack_stage(layers, number, arrays) for number in range(len(layers))),
        input_shape=read_numbers(header, "input_shape", int),
        time_steps=read_field(header, "time_steps", int),
        classes=tuple(map(str, read_field(header, "classes", list))),
        vote=read_field(header, "vote", int),
        membrane=read_field(header, "membrane", bool),
        mean=read_numbers(header, "mean", float),
        std=read_numbers(header, "std", float),
        about=read_field(header, "about", dict),
    )


def _unpack_stage(layers: Sequence[Mapping[str, Any]], number: int, arrays: Arrays) -> Stage:
    layer = complete_layer(layers, number)
    name, shape = read_field(layer, "name", str), read_numbers(layer, "shape", int)
    total = math.prod(shape)
    check(min(shape, default=0) > 0 and total < 2**62, f"{name}: shape", shape, "positive")
    own = {key: arrays[f"{number}.{key}"] for key in ARRAYS if f"{number}.{key}" in arrays}
    index = _unpack_index(name, own, total)
    return Stage(
        name=name,
        shape=shape,
        index=index,
        values=_unpack_values(name, shape, index, own),
        bias=_unpack_bias(name, shape, own),
        stride=read_numbers(layer, "stride", int),
        padding=read_numbers(layer, "padding", int),
        dilation=read_numbers(layer, "dilation", int),
        groups=read_field(layer, "groups", int),
        inputs=read_sources(layer),
        adds=read_numbers(layer, "adds", int),
        current_pool=read_pool(layer["current_pool"]),
        neuron=read_neuron(layer["neuron"]),
        pool=read_pool(layer["pool"]),
    )


def _unpack_index(name: str, own: Arrays, total: int) -> NDArray[np.int64]:
    if "gaps" in own:
        index = decode_gaps(_check_array(own["gaps"], np.uint8))
    else:
        index = decode_bits(_check_array(own.get("bits"), np.uint8), total)
    last = int(index[-1]) if len(index) else -1
    check(last < total, f"{name}: positions", last, f"below {total}")
    return index


def _unpack_values(
    name: str, shape: Shape, index: NDArray[np.int64], own: Arrays
) -> NDArray[np.float32]:
    values = own.get("values")
    if values is None or values.ndim != 1:
        raise SpikewireError(f"{name}: values are missing or not one-dimensional")
    expected = f"{len(index)}, one per position"
    check(len(values) == len(index), f"{name}: values", len(values), expected)
    if values.dtype == np.int8:
        scale = _check_array(own.get("scale"), np.float32)
        expected = f"{shape[0]}, one per output"
        check(len(scale) == shape[0], f"{name}: scale", len(scale), expected)
        with np.errstate(over="ignore", invalid="ignore"):  # infinity and nan are refused later
            return values * scale[index // math.prod(shape[1:])]
    known = values.dtype in (np.float16, np.float32)
    check(known, f"{name}: values", str(values.dtype), "float32, float16 or int8")
    return values.astype(np.float32)


def _unpack_bias(name: str, shape: Shape, own: Arrays) -> NDArray[np.float32]:
    if "bias" in own:
        return _check_array(own["bias"], np.float32)
    check(shape[0] <= MAX_NEURONS, f"{name}: outputs", shape[0], f"at most {MAX_NEURONS}")
    return np.zeros(shape[0], np.float32)


def _check_array(array: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
    if array is None or array.ndim != 1 or array.dtype != dtype:
        found = "nothing" if array is None else f"{array.ndim}-dimensional {array.dtype}"
        expected = f"one-dimensional {np.dtype(dtype)}"
        raise SpikewireError(f"array: {found} is not allowed; it must be {expected}")
    return array
