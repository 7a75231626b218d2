"""One layer of a C file: its arrays of synapses, and its record of geometry and neurons."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spikewire.formats.network import Geometry, Pool, Stage
from spikewire.formats.neuron import Neuron, has_exact_inverse
from spikewire.formats.packed import round_int8

C_TYPES = {"uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t"}
C_TYPES |= {"int8": "int8_t", "int32": "int32_t", "float32": "float"}


class Layer:
    """The arrays of one stage: synapses sorted by input channel, then by kernel position."""

    def __init__(self, stage: Stage, geometry: Geometry, values: str, index: type) -> None:
        self.stage, self.geometry = stage, geometry
        if stage.is_conv:
            output, channel, row, column = stage.locate_weights()
        else:
            output, channel = np.unravel_index(stage.index, stage.shape)
            row = column = np.zeros_like(output)
        order = np.lexsort((output, column, row, channel))
        first = np.searchsorted(channel[order], np.arange(self.inputs[0] + 1))
        self.arrays: dict[str, NDArray[Any]] = {
            "first": first.astype(np.uint32),
            "output": output[order].astype(index),
        }
        if stage.is_conv:
            rows, columns = (k * d for k, d in zip((row, column), stage.dilation, strict=True))
            self.arrays["row"] = rows[order].astype(np.uint8)
            self.arrays["column"] = columns[order].astype(np.uint8)
        weights = stage.values.astype(np.float32)
        if values == "int8":
            rounded = round_int8(stage)
            weights, self.arrays["scale"] = rounded["values"], rounded["scale"]
        self.arrays["weight"] = weights[order]
        self.arrays["bias"] = stage.bias.astype(np.float32)

    @property
    def neurons(self) -> int:
        """Number of neurons."""
        return prod(self.geometry.neurons)

    @property
    def currents(self) -> int:
        """Number of currents, before they are pooled."""
        return prod(self.geometry.currents)

    @property
    def pooled(self) -> int:
        """Number of currents after pooling; 0 without."""
        return self.neurons if self.stage.current_pool else 0

    @property
    def inputs(self) -> tuple[int, int, int]:
        """Channels, height and width; a fully connected layer has one channel per input."""
        if self.stage.is_conv:
            channels, height, width = self.geometry.inputs
            return channels, height, width
        return self.stage.shape[1], 1, 1


def smallest_type(count: int) -> type:
    """Return the smallest unsigned type for numbers below `count`."""
    return np.uint8 if count <= 2**8 else np.uint16 if count <= 2**16 else np.uint32


def declare(name: str, array: NDArray[Any]) -> str:
    """Return the definition of a constant array; C has no arrays without elements."""
    numbers = array.tolist() or [0]
    exact = array.dtype.kind == "f"
    words = [_float(number) if exact else str(number) for number in numbers]
    lines = [", ".join(words[k : k + 16]) for k in range(0, len(words), 16)]
    body = ",\n    ".join(lines)
    kind = C_TYPES[str(array.dtype)]
    return f"static const {kind} {name}[{len(numbers)}] = {{\n    {body}\n}};"


def _float(number: float) -> str:
    """Return a float32 as a C literal that reads back to the same bits."""
    text = f"{number:.9g}"
    return f"{text}f" if any(sign in text for sign in ".e") else f"{text}.0f"


def write_record(layer: Layer, number: int, places: Mapping[str, int]) -> str:
    """Return the record of a layer as an initialiser of C."""
    stage, neuron = layer.stage, layer.stage.neuron
    names = ("first", "output", "row", "column", "weight", "bias", "scale")
    fields: dict[str, object] = {
        **dict(zip(("channels", "height", "width"), layer.inputs, strict=True)),
        **dict(zip(("outputs", "rows", "columns"), (*layer.geometry.currents, 1, 1), strict=False)),
        **dict(zip(("out_height", "out_width"), (*layer.geometry.neurons, 1, 1)[1:], strict=False)),
        **dict(zip(("stride_y", "stride_x"), stage.stride, strict=True)),
        **dict(zip(("padding_y", "padding_x"), stage.padding, strict=True)),
        **{name: f"{name.upper()}_{number}" for name in names if name in layer.arrays},
        **(neuron_fields(neuron) if neuron else {"leak": "NO_NEURON"}),
        "current_pool": _pool_fields(stage.current_pool),
        "pool": _pool_fields(stage.pool),
        **places,
    }
    return "    {" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


def neuron_fields(neuron: Neuron) -> dict[str, str]:
    """Return leak and reset as constants of C, and the numbers of the equation."""
    leak, factor = _leak_of(neuron)
    numbers = {"factor": factor, "fires_at": neuron.fires_at}
    numbers |= {"rest": neuron.rest, "fall": neuron.fall}
    words = {"leak": leak, "reset": _constant(neuron.reset)}
    if neuron.synapse:
        words["synapse"], numbers["loss"] = _leak_of(neuron.synapse)
    return words | {name: _float(float(np.float32(number))) for name, number in numbers.items()}


def _leak_of(neuron: Neuron) -> tuple[str, float]:
    """Return the leak and its factor, which is multiplied by where that is as exact."""
    leak, factor = neuron.update if neuron.tau else "no leak", neuron.factor
    if leak.startswith("divide") and has_exact_inverse(factor):
        leak, factor = leak.replace("divide", "multiply"), 1 / factor
    return _constant(leak), factor


def _constant(word: str) -> str:
    return word.upper().replace(" ", "_")


def _pool_fields(pool: Pool | None) -> str:
    if pool is None:
        return "{NO_POOL, 1, 1, 0}"
    return f"{{{pool.kind.upper()}_POOL, {pool.size}, {pool.step}, {pool.padding}}}"
