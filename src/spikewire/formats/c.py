"""One C99 file for microcontrollers: constants, static memory, and a `predict` function.

The file needs no library beyond `memcpy` and `memset`, allocates nothing, and computes only where
spikes arrive. With fp32 weights it adds in the same order as `spikewire.runtime`, so the spikes are
the same. With int8 weights (one scale per output, as in packed files) a layer adds integers::

    current = bias + scale * sum(weights of the inputs that fired)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spikewire import __version__
from spikewire.errors import check, check_word
from spikewire.files import atomic_write
from spikewire.formats.network import Geometry, Network, Stage
from spikewire.formats.neuron import has_exact_inverse
from spikewire.formats.packed import round_int8

VALUES = ("int8", "fp32")
MAX_POOL = 15  # the number of spikes of a window is stored in 8 bits
C_TYPES = {"uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t"}
C_TYPES |= {"int8": "int8_t", "float32": "float"}


@dataclass(frozen=True)
class Memory:
    """What a C file needs on a device, in bytes.

    Attributes:
        flash: Constant arrays: synapses, biases and scales.
        ram: Static variables: membranes, currents and spikes.
    """

    flash: int
    ram: int


def write(
    network: Network,
    path: str | Path,
    values: str = "int8",
    example: tuple[NDArray[np.uint8], int] | None = None,
) -> Memory:
    """Write a network as one self-contained C99 file.

    Args:
        network: The network to write.
        path: Path of the file.
        values: Type of the weights: ``"int8"``, with one scale per output, or ``"fp32"``.
        example: Pixels of one input and its class, stored as a test vector that
            ``-DSPIKEWIRE_TEST`` turns into a program; None for no test vector.

    Returns:
        The memory that the network needs on a device.

    Raises:
        SpikewireError: If the C file cannot express the network or cannot be written.

    Example:
        >>> c.write(trace_model(model), "network.c")
        Memory(flash=46180, ram=11376)
    """
    check_word("values", values, VALUES)
    require_expressible(network)
    pairs = zip(network.stages, network.geometry, strict=True)
    index = _smallest(max(stage.shape[0] for stage in network.stages))
    layers = [_Layer(stage, geometry, values, index) for stage, geometry in pairs]
    memory = _count_memory(network, layers)
    text = _fill_template(network, layers, memory, example)
    with atomic_write(Path(path)) as file:
        file.write(text.encode())
    return memory


def require_expressible(network: Network) -> None:
    """Refuse a network that the C file has no code for, by the name of the layer."""
    for number in network.recurrent:
        check(False, network.stages[number].name, "recurrent", "a layer without feedback in C")
    for number in network.shortcuts:
        allowed = "a layer that only the one before it leads to in C"
        check(False, network.stages[number].name, "a shortcut", allowed)
    check(not network.membrane, "outputs", "membrane potentials", "spikes or currents in C")
    for stage in network.stages:
        _check_stage(stage)


def _check_stage(stage: Stage) -> None:
    """Refuse what the C file has no code for."""
    plain = (*stage.stride, *stage.dilation, stage.groups) == (1,) * 5
    check(plain, f"{stage.name}: stride, dilation, groups", "other than 1", "1 in C")
    square = stage.padding[0] == stage.padding[1]
    check(square, f"{stage.name}: padding", stage.padding, "the same on all sides in C")
    pool, neuron = stage.pool, stage.neuron
    plain = pool is None or (pool.step == pool.size and pool.padding == 0)
    sizes = (pool.size, pool.step, pool.padding) if pool else ()
    allowed = "without overlap or padding in C"
    check(plain, f"{stage.name}: size, stride and padding of the pooling", sizes, allowed)
    size = pool.size if pool else 0
    check(size <= MAX_POOL, f"{stage.name}: pool", size, f"at most {MAX_POOL} in C")
    after = stage.current_pool is None
    check(after, f"{stage.name}: pooling", "before the neurons", "after the neurons in C")
    if neuron is not None:
        field = f"{stage.name}: {{}} of the neurons"
        divides = neuron.update == "divide" or neuron.tau is None
        check(divides, field.format("update"), neuron.update, "'divide' in C, as of LIF and IF")
        check(not neuron.strict, field.format("firing"), "only above the threshold", "at it in C")
        at_once = neuron.reset in ("hard", "soft")
        check(at_once, field.format("reset"), neuron.reset, "'hard' or 'soft' in C")
        check(not neuron.current_decay, stage.name, "a synaptic current", "neurons without it in C")


class _Layer:
    """The arrays of one stage: synapses sorted by input channel, then by kernel position."""

    def __init__(self, stage: Stage, geometry: Geometry, values: str, index: type) -> None:
        self.stage, self.geometry = stage, geometry
        kernel = stage.shape[2:] or (1, 1)
        shape = (stage.shape[0], stage.shape[1], *kernel)
        output, channel, row, column = np.unravel_index(stage.index, shape)
        order = np.lexsort((output, column, row, channel))
        first = np.searchsorted(channel[order], np.arange(shape[1] + 1))
        self.arrays: dict[str, NDArray[Any]] = {
            "first": first.astype(np.uint32),
            "output": output[order].astype(index),
        }
        if stage.is_conv:
            self.arrays["row"] = row[order].astype(np.uint8)
            self.arrays["column"] = column[order].astype(np.uint8)
        weights = stage.values.astype(np.float32)
        if values == "int8":
            rounded = round_int8(stage)
            weights, self.arrays["scale"] = rounded["values"], rounded["scale"]
        self.arrays["weight"] = weights[order]
        self.arrays["bias"] = stage.bias.astype(np.float32)

    @property
    def neurons(self) -> int:
        return prod(self.geometry.neurons)

    @property
    def inputs(self) -> tuple[int, int, int]:
        """Channels, height and width; a fully connected layer has one channel per input."""
        if self.stage.is_conv:
            channels, height, width = self.geometry.inputs
            return channels, height, width
        return self.stage.shape[1], 1, 1


def _smallest(count: int) -> type:
    return np.uint8 if count <= 2**8 else np.uint16 if count <= 2**16 else np.uint32


def _count_memory(network: Network, layers: list[_Layer]) -> Memory:
    flash = sum(array.nbytes for layer in layers for array in layer.arrays.values())
    most, inputs = _most_neurons(layers), _most_inputs(layers)
    ram = 4 * layers[0].neurons + 4 * network.neuron_count + 5 * most + inputs
    return Memory(flash, ram)


def _most_neurons(layers: list[_Layer]) -> int:
    return max(layer.neurons for layer in layers)


def _most_inputs(layers: list[_Layer]) -> int:
    return max(prod(layer.geometry.outputs) for layer in layers)


def _fill_template(
    network: Network,
    layers: list[_Layer],
    memory: Memory,
    example: tuple[NDArray[np.uint8], int] | None,
) -> str:
    int8 = layers[0].arrays["weight"].dtype == np.int8
    index = layers[0].arrays["output"].dtype
    weight = "l->scale[l->output[j]] * (float)l->weight[j]" if int8 else "l->weight[j]"
    bias = "l->bias[i / (l->out_height * l->out_width)]"
    scale = bias.replace("bias", "scale")
    shape = network.input_shape
    substitutions = {
        "version": __version__,
        "summary": _summarise(network),
        "flash": memory.flash,
        "ram": memory.ram,
        "inputs": prod(shape),
        "map": prod(shape[1:]),
        "classes": len(network.classes),
        "last_class": len(network.classes) - 1,
        "vote": network.vote,
        "time_steps": network.time_steps,
        "layers": len(layers),
        "first_neurons": layers[0].neurons,
        "neurons": network.neuron_count,
        "most_neurons": _most_neurons(layers),
        "most_inputs": _most_inputs(layers),
        "weight_type": "int8_t" if int8 else "float",
        "sum_type": "int32_t" if int8 else "float",
        "index_type": C_TYPES[str(index)],
        "deliver_real": f"first_current[at] += value * ({weight})",
        "bias": bias,
        "initial_sum": "0" if int8 else bias,
        "current_of": f"return {bias} + {scale} * (float)sums[i];" if int8 else "return sums[i];",
        "arrays": "\n".join(_write_arrays(layers)),
        "records": ",\n".join(_write_record(layer, k) for k, layer in enumerate(layers)),
        "normalisation": _write_normalisation(network),
        "test": _write_test(network, example),
    }
    template = files("spikewire.formats").joinpath("network.c.in").read_text("utf-8")
    return Template(template).substitute(substitutions)


def _summarise(network: Network) -> str:
    sizes = [prod(network.input_shape), *(prod(shapes.neurons) for shapes in network.geometry)]
    count = sum(len(stage.index) for stage in network.stages)
    return f"Neurons: {' - '.join(map(str, sizes))}. Weights: {count} of {network.size}."


def _write_arrays(layers: list[_Layer]) -> Iterable[str]:
    for number, layer in enumerate(layers):
        for name, array in layer.arrays.items():
            yield _declare(f"{name.upper()}_{number}", array)


def _declare(name: str, array: NDArray[Any]) -> str:
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


def _write_record(layer: _Layer, number: int) -> str:
    stage = layer.stage
    channels, height, width = layer.inputs
    outputs, out_height, out_width = (*layer.geometry.neurons, 1, 1)[:3]
    names = [
        f"{name.upper()}_{number}" if name in layer.arrays else "0"
        for name in ("first", "output", "row", "column", "weight", "bias", "scale")
    ]
    geometry = (channels, height, width, outputs, out_height, out_width, stage.padding[0])
    words = [*map(str, geometry), *names, *_neuron_words(stage), *_pool_words(stage)]
    return f"    {{{', '.join(words)}}}"


def _neuron_words(stage: Stage) -> list[str]:
    neuron = stage.neuron
    if neuron is None:
        return ["NO_NEURON", "1.0f", "1.0f", "0.0f", "0.0f"]
    fall = neuron.threshold - neuron.rest if neuron.reset == "soft" else 0.0
    numbers = (neuron.tau or 1.0, neuron.threshold, neuron.rest, fall)
    return [_leak(neuron.tau), *(_float(float(np.float32(number))) for number in numbers)]


def _leak(tau: float | None) -> str:
    if tau is None:
        return "NO_LEAK"
    return "MULTIPLY" if has_exact_inverse(tau) else "DIVIDE"


def _pool_words(stage: Stage) -> list[str]:
    if stage.pool is None:
        return ["NO_POOL", "1"]
    return ["MAX_POOL" if stage.pool.kind == "max" else "SUM_POOL", str(stage.pool.size)]


def _write_normalisation(network: Network) -> str:
    channels = network.input_shape[0]
    pairs = (("MEAN", network.mean or (0.0,) * channels), ("STD", network.std or (1.0,) * channels))
    return "\n".join(
        _declare(name, np.array([255 * number for number in numbers], np.float32))
        for name, numbers in pairs
    )


def _write_test(network: Network, example: tuple[NDArray[np.uint8], int] | None) -> str:
    if example is None:
        return ""
    pixels, label = example
    flat = np.ascontiguousarray(pixels, np.uint8).reshape(-1)
    check(len(flat) == prod(network.input_shape), "example", len(flat), "one input")
    return (
        f"\n#ifdef SPIKEWIRE_TEST\n{_declare('TEST_PIXELS', flat)}\n\nint main(void)\n{{\n"
        f"    return spikewire_predict(TEST_PIXELS, 0) == {label} ? 0 : 1;\n}}\n#endif"
    )
