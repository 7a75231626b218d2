"""One safetensors file that holds a network: structure as JSON, weights without their zeros.

Reading executes nothing, and believes nothing: each size is checked before it is used.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from spikewire.errors import SpikewireError, check, check_word, unknown
from spikewire.files import atomic_write
from spikewire.formats.gaps import from_bits, from_gaps, to_bits, to_gaps
from spikewire.formats.network import LIMIT, Network, Neuron, Pool, Stage
from spikewire.nn.neurons import RESETS

FORMAT = "spikewire packed 1"
VALUES = ("fp32", "fp16", "int8")
Arrays = dict[str, NDArray[Any]]


def write(network: Network, path: str | Path, values: str = "fp32") -> int:
    """Write `network`; return the size of the file in bytes."""
    if values not in VALUES:
        raise unknown("values", values, VALUES)
    arrays: Arrays = {}
    for number, stage in enumerate(network.stages):
        arrays |= {f"{number}.{key}": array for key, array in _pack(stage, values).items()}
    header = {"format": FORMAT, "network": json.dumps(_header(network, values))}
    content = save(arrays, metadata=header)
    try:
        with atomic_write(Path(path)) as file:
            file.write(content)
    except OSError as error:
        raise SpikewireError(f"{path}: cannot be written: {error.strerror or error}") from None
    return len(content)


def read(path: str | Path) -> Network:
    """Return the network in a packed file, or say in one line why not."""
    if Path(path).is_dir():
        raise SpikewireError(
            f"{path}: is a folder; give the packed file that `spikewire export` writes"
        )
    try:
        with safe_open(path, "numpy") as file:
            header = file.metadata() or {}
            found = header.get("format")
            if found is None:
                raise SpikewireError("is not a packed file; `spikewire export` writes one")
            if found != FORMAT:
                raise SpikewireError(f"format {found!r} is unknown; this version reads {FORMAT!r}")
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return _network(json.loads(header.get("network", "")), arrays)
    except SpikewireError as error:
        raise SpikewireError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise SpikewireError(f"{path}: is not there") from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError,
            OverflowError, AttributeError) as error:  # fmt: skip
        reason = " ".join((str(error) or type(error).__name__).split())[:80]
        raise SpikewireError(f"{path}: is not a whole packed file ({reason})") from None


def quantised(network: Network, values: str) -> Network:
    """Return the network as it will be once written with these values and read back."""
    if values not in VALUES:
        raise unknown("values", values, VALUES)
    arrays = {
        f"{number}.{key}": array
        for number, stage in enumerate(network.stages)
        for key, array in _pack(stage, values).items()
    }
    return _network(json.loads(json.dumps(_header(network, values))), arrays)


# ---------------------------------------------------------------------- writing


def _header(network: Network, values: str) -> dict[str, Any]:
    return {
        "layers": [_layer(stage) for stage in network.stages],
        "input_shape": network.input_shape,
        "time_steps": network.time_steps,
        "classes": network.classes,
        "vote": network.vote,
        "mean": network.mean,
        "std": network.std,
        "values": values,
        "about": dict(network.about),
    }


def _layer(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "shape": stage.shape,
        "padding": stage.padding,
        "neuron": stage.neuron and stage.neuron._asdict(),
        "pool": stage.pool and stage.pool._asdict(),
    }


def _pack(stage: Stage, values: str) -> Arrays:
    """Return values, positions in the smaller of the two codes, and what goes with them."""
    total = math.prod(stage.shape)
    gaps = to_gaps(stage.index)
    small = len(gaps) <= (total + 7) // 8
    arrays: Arrays = {"gaps": gaps} if small else {"bits": to_bits(stage.index, total)}
    if stage.bias.any():
        arrays["bias"] = stage.bias
    return arrays | _pack_values(stage, values)


def _pack_values(stage: Stage, values: str) -> Arrays:
    """Round the values; int8 has one scale an output: ``w = scale * value``."""
    if values != "int8":
        rounded = stage.values.astype(np.float16 if values == "fp16" else np.float32)
        check(
            bool(np.isfinite(rounded).all()), f"{stage.name}: values", values, "fp32, or overflow"
        )
        return {"values": rounded}
    output = stage.index // math.prod(stage.shape[1:])
    scale = np.zeros(stage.shape[0], np.float32)
    np.maximum.at(scale, output, np.abs(stage.values) / np.float32(127))
    steps = stage.values / np.maximum(scale, np.finfo(np.float32).tiny)[output]
    return {"values": np.clip(np.rint(steps), -127, 127).astype(np.int8), "scale": scale}


# ---------------------------------------------------------------------- reading


def _network(header: Mapping[str, Any], arrays: Arrays) -> Network:
    layers = _typed(header, "layers", list)
    check(len(layers) <= 1024, "layers", len(layers), "at most 1024")
    return Network(
        stages=tuple(_stage(layer, number, arrays) for number, layer in enumerate(layers)),
        input_shape=_numbers(header, "input_shape", int),
        time_steps=_typed(header, "time_steps", int),
        classes=tuple(map(str, _typed(header, "classes", list))),
        vote=_typed(header, "vote", int),
        mean=_numbers(header, "mean", float),
        std=_numbers(header, "std", float),
        about=_typed(header, "about", dict),
    )


def _stage(layer: Mapping[str, Any], number: int, arrays: Arrays) -> Stage:
    name, shape = _typed(layer, "name", str), _numbers(layer, "shape", int)
    total = math.prod(shape)
    check(min(shape, default=0) > 0 and total < 2**62, f"{name}: shape", shape, "positive")
    mine = {
        key: arrays.get(f"{number}.{key}") for key in ("gaps", "bits", "values", "scale", "bias")
    }
    gaps = mine["gaps"]
    index = (
        from_bits(_array(mine["bits"], np.uint8), total)
        if gaps is None
        else from_gaps(_array(gaps, np.uint8))
    )
    inside = not len(index) or index[-1] < total
    check(bool(inside), f"{name}: positions", int(index[-1]) if len(index) else 0, f"below {total}")
    bias = mine["bias"]
    if bias is None:
        check(shape[0] <= LIMIT, f"{name}: outputs", shape[0], "fewer")
        bias = np.zeros(shape[0], np.float32)
    neuron, pool = layer["neuron"], layer["pool"]
    return Stage(
        name=name,
        shape=shape,
        index=index,
        values=_values(name, shape, index, mine["values"], mine["scale"]),
        bias=_array(bias, np.float32),
        padding=_typed(layer, "padding", int),
        neuron=None if neuron is None else _neuron(neuron),
        pool=None if pool is None else Pool(_typed(pool, "kind", str), _typed(pool, "size", int)),
    )


def _values(name: str, shape: tuple[int, ...], index: Any, values: Any, scale: Any) -> Any:
    check(isinstance(values, np.ndarray) and values.ndim == 1, f"{name}: values", None, "there")
    check(
        len(values) == len(index), f"{name}: values", len(values), f"{len(index)}, one a position"
    )
    if values.dtype == np.int8:
        scale = _array(scale, np.float32)
        check(len(scale) == shape[0], f"{name}: scale", len(scale), f"{shape[0]}, one an output")
        return values * scale[index // math.prod(shape[1:])]
    known = values.dtype in (np.float16, np.float32)
    check(known, f"{name}: values", str(values.dtype), "float32, float16 or int8")
    return values.astype(np.float32)


def _neuron(record: Mapping[str, Any]) -> Neuron:
    tau = record["tau"]
    threshold, rest = (_typed(record, key, float) for key in ("threshold", "rest"))
    reset = _typed({"reset": "hard", **record}, "reset", str)  # older files do not name it
    check_word("reset", reset, RESETS)
    return Neuron(None if tau is None else _typed(record, "tau", float), threshold, rest, reset)


def _array(array: Any, dtype: Any) -> NDArray[Any]:
    ok = isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype == dtype
    check(ok, "array", getattr(array, "dtype", None), f"there, flat and {np.dtype(dtype)}")
    return array


def _typed(record: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return a field of the header; a whole number will do for a float, a bool for neither."""
    value = record[key]
    if kind is float and type(value) is int:
        value = float(value)
    check(type(value) is kind, key, value if len(repr(value)) < 40 else "it", f"a {kind.__name__}")
    return value


def _numbers(record: Mapping[str, Any], key: str, kind: type) -> tuple[Any, ...]:
    values = _typed(record, key, list)
    return tuple(_typed({key: value}, key, kind) for value in values)
