"""One C99 file for microcontrollers: constants, static memory, and a `predict` function.

The file needs no library beyond `memcpy` and `memset`, allocates nothing, and computes only where
spikes arrive. With fp32 weights it adds in the same order as `spikewire.runtime`, so the spikes are
the same. With int8 weights (one scale per output, as in packed files) a layer adds integers::

    current = bias + scale * sum(weights of the inputs that fired)

Images are classified by one call, data over time by one call per time step.
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
from spikewire.formats.network import Geometry, Network, Pool, Stage
from spikewire.formats.neuron import has_exact_inverse
from spikewire.formats.packed import round_int8

VALUES = ("int8", "fp32")
MAX_POOL = 15  # the number of spikes of a window is stored in 8 bits
MAX_REACH = 255  # as is a position in the kernel
C_TYPES = {"uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t"}
C_TYPES |= {"int8": "int8_t", "float32": "float"}
Example = tuple[NDArray[Any], int]  # an input and its class


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
    example: Example | None = None,
) -> Memory:
    """Write a network as one self-contained C99 file.

    Args:
        network: The network to write.
        path: Path of the file.
        values: Type of the weights: ``"int8"``, with one scale per output, or ``"fp32"``.
        example: One input and its class, stored as a test vector that ``-DSPIKEWIRE_TEST`` turns
            into a program: pixels (uint8), inputs as in training (float), or a sample over time
            ``[time, *input_shape]``; None for no test vector.

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
    for number in network.shortcuts:
        stage = network.stages[number]
        plain = number in network.recurrent and stage.adds == (number - 1,)
        check(plain, stage.name, "a shortcut", "a layer that only the one before it leads to in C")
    for stage in network.stages:
        _check_stage(stage)


def _check_stage(stage: Stage) -> None:
    """Refuse what the C file has no code for."""
    kernel = stage.shape[2:] or (1, 1)
    reach = max(d * (n - 1) for d, n in zip(stage.dilation, kernel, strict=True))
    check(reach <= MAX_REACH, f"{stage.name}: kernel", reach + 1, f"at most {MAX_REACH + 1} in C")
    pool = stage.pool
    if pool is not None and pool.kind == "sum":
        check(pool.size <= MAX_POOL, f"{stage.name}: pool", pool.size, f"at most {MAX_POOL} in C")
    if stage.neuron is not None:
        plain = not stage.neuron.current_decay and stage.neuron.reset != "delayed hard"
        check(plain, stage.name, "a synaptic current", "neurons without it in C")


class _Layer:
    """The arrays of one stage: synapses sorted by input channel, then by kernel position."""

    def __init__(self, stage: Stage, geometry: Geometry, values: str, index: type) -> None:
        self.stage, self.geometry = stage, geometry
        self.recurrent = bool(stage.adds)  # no other layer adds currents in C
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
        return prod(self.geometry.neurons)

    @property
    def currents(self) -> int:
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


def _smallest(count: int) -> type:
    return np.uint8 if count <= 2**8 else np.uint16 if count <= 2**16 else np.uint32


def _count_memory(network: Network, layers: list[_Layer]) -> Memory:
    flash = sum(array.nbytes for layer in layers for array in layer.arrays.values())
    size = _array_sizes(layers)
    floats = layers[0].currents + network.neuron_count + size["most_currents"] + size["most_pooled"]
    floats += layers[-1].neurons * network.membrane + len(network.classes) + 1  # and the time step
    return Memory(
        flash, 4 * floats + size["most_neurons"] + size["most_inputs"] + size["recurrent"]
    )


def _array_sizes(layers: list[_Layer]) -> dict[str, int]:
    """Return the sizes of the arrays that all layers share."""
    return {
        "most_currents": max(layer.currents for layer in layers),
        "most_pooled": max(layer.pooled for layer in layers),
        "most_neurons": max(layer.neurons for layer in layers),
        "most_inputs": max(prod(layer.geometry.outputs) for layer in layers),
        "recurrent": sum(layer.neurons for layer in layers if layer.recurrent),
    }


def _fill_template(
    network: Network,
    layers: list[_Layer],
    memory: Memory,
    example: Example | None,
) -> str:
    int8 = layers[0].arrays["weight"].dtype == np.int8
    index = layers[0].arrays["output"].dtype
    weight = "l->scale[l->output[j]] * (float)l->weight[j]" if int8 else "l->weight[j]"
    bias = "l->bias[i / (l->rows * l->columns)]"
    scale = bias.replace("bias", "scale")
    last = f"LAYERS[{len(layers) - 1}]"
    outputs = (
        "potential" if network.membrane else "fired" if network.stages[-1].neuron else "before"
    )
    from_sum = f"{bias} + {scale} * (float)sums[i]" if int8 else "sums[i]"
    shape, count = network.input_shape, len(network.classes) * network.vote
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
        "first_neurons": layers[0].currents,
        "neurons": network.neuron_count,
        **_array_sizes(layers),
        "pools_currents": int(any(layer.pooled for layer in layers)),
        "weight_type": "int8_t" if int8 else "float",
        "sum_type": "int32_t" if int8 else "float",
        "index_type": C_TYPES[str(index)],
        "deliver_real": f"first_current[at] += value * ({weight})",
        "bias": bias,
        "initial_sum": "0" if int8 else bias,
        "leak": _common_word(network, 0, "l->leak"),
        "reset": _common_word(network, 1, "l->reset"),
        "currents": "NULL" if int8 else "sums",
        "keep": f"\n        if (l == &{last})\n            potential[i] = m;" * network.membrane,
        "potential": f"\nstatic float potential[{count}];" * network.membrane,
        "output": f"(float){outputs}[i]",
        "current": f"currents ? currents[i] : {from_sum}" if int8 else "currents[i]",
        "arrays": "\n".join(_write_arrays(layers)),
        "records": ",\n".join(_write_record(layer, k) for k, layer in enumerate(layers)),
        "normalisation": _write_normalisation(network),
        "test": _write_test(network, example),
    }
    template = files("spikewire.formats").joinpath("network.c.in").read_text("utf-8")
    return Template(template).substitute(substitutions)


def _summarise(network: Network) -> str:
    added = {number for stage in network.stages for number in stage.adds}
    shapes = [shapes.neurons for k, shapes in enumerate(network.geometry) if k not in added]
    sizes = [prod(shape) for shape in (network.input_shape, *shapes)]
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
    currents, (_, *fired) = ((*shape, 1, 1)[:3] for shape in layer.geometry[1:3])
    names = [
        f"{name.upper()}_{number}" if name in layer.arrays else "0"
        for name in ("first", "output", "row", "column", "weight", "bias", "scale")
    ]
    geometry = (channels, height, width, *currents, *fired)
    geometry += (*stage.stride, *stage.padding)
    words = [
        *map(str, geometry),
        *names,
        *_neuron_words(stage),
        _pool_words(stage.current_pool),
        _pool_words(stage.pool),
    ]
    words.append(str(int(layer.recurrent)))
    return f"    {{{', '.join(words)}}}"


def _neuron_words(stage: Stage) -> list[str]:
    """Return leak and reset as constants of C, then the numbers of the equation."""
    neuron = stage.neuron
    if neuron is None:
        return ["NO_NEURON", "HARD", "0.0f", "0.0f", "0.0f", "0.0f"]
    leak, factor = neuron.update if neuron.tau else "no leak", neuron.factor
    if leak.startswith("divide") and has_exact_inverse(factor):
        leak, factor = leak.replace("divide", "multiply"), 1 / factor
    words = [word.upper().replace(" ", "_") for word in (leak, neuron.reset)]
    numbers = (factor, neuron.fires_at, neuron.rest, neuron.fall)
    return [*words, *(_float(float(np.float32(number))) for number in numbers)]


def _common_word(network: Network, position: int, otherwise: str) -> str:
    """Return the leak (0) or reset (1) that all neurons have: the compiler drops other code."""
    words = {_neuron_words(stage)[position] for stage in network.stages if stage.neuron}
    return words.pop() if len(words) == 1 else otherwise


def _pool_words(pool: Pool | None) -> str:
    if pool is None:
        return "{NO_POOL, 1, 1, 0}"
    return f"{{{pool.kind.upper()}_POOL, {pool.size}, {pool.step}, {pool.padding}}}"


def _write_normalisation(network: Network) -> str:
    channels = network.input_shape[0]
    pairs = (("MEAN", network.mean or (0.0,) * channels), ("STD", network.std or (1.0,) * channels))
    return "\n".join(
        _declare(name, np.array([255 * number for number in numbers], np.float32))
        for name, numbers in pairs
    )


def _write_test(network: Network, example: Example | None) -> str:
    """Return a program that compares the class of the example with the expected one."""
    if example is None:
        return ""
    inputs, label = example
    size, pixels = prod(network.input_shape), inputs.dtype == np.uint8
    over_time = inputs.ndim > len(network.input_shape)
    flat = np.ascontiguousarray(inputs, np.uint8 if pixels else np.float32).reshape(-1)
    fits = 0 < len(flat) == size * (len(inputs) if over_time else 1)
    check(fits and not (over_time and pixels), "example", inputs.shape, "one input")
    if over_time:
        call = f"""int found = -1;
    spikewire_reset();
    for (int32_t i = 0; i < {len(flat)}; i += {size})
        found = spikewire_step(TEST_INPUTS + i, 0);"""
    else:
        call = f"const int found = spikewire_predict{'' if pixels else '_real'}(TEST_INPUTS, 0);"
    return (
        f"\n#ifdef SPIKEWIRE_TEST\n{_declare('TEST_INPUTS', flat)}\n\nint main(void)\n{{\n"
        f"    {call}\n    return found == {label} ? 0 : 1;\n}}\n#endif"
    )
