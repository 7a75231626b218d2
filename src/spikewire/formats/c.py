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
from spikewire.formats.c_layer import (
    C_TYPES,
    Layer,
    declare,
    neuron_fields,
    smallest_type,
    write_record,
)
from spikewire.formats.c_layout import Places, find_places
from spikewire.formats.network import Network, Source, Stage

VALUES = ("int8", "fp32")
MAX_SPIKES = 255  # of one input in a time step: stored in 8 bits
MAX_REACH = 255  # of a kernel: so is a position in it
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
    index = smallest_type(max(stage.shape[0] for stage in network.stages))
    layers = [Layer(stage, geometry, values, index) for stage, geometry in pairs]
    places = find_places(network)
    memory = _count_memory(network, layers, places)
    text = _fill_template(network, layers, places, memory, example)
    with atomic_write(Path(path)) as file:
        file.write(text.encode())
    return memory


def require_expressible(network: Network) -> None:
    """Refuse a network that the C file has no code for, by the name of the layer."""
    added: set[int] = set()
    for stage, sources in zip(network.stages, network.sources, strict=True):
        _check_stage(stage)
        most = sum(_most_spikes(network, source) for source in sources)
        check(most <= MAX_SPIKES, f"{stage.name}: spikes per input", most, f"at most {MAX_SPIKES}")
        for number in stage.adds:
            once = number not in added
            check(once, f"{stage.name}: adds", network.stages[number].name, "added once in C")
            added.add(number)


def _most_spikes(network: Network, source: Source) -> int:
    """Return the highest number of spikes of one input in a time step."""
    pool = network.stages[source.stage].pool if source.pooled else None
    return pool.size**2 if pool is not None and pool.kind == "sum" else 1


def _check_stage(stage: Stage) -> None:
    """Refuse what the C file has no code for."""
    kernel = stage.shape[2:] or (1, 1)
    reach = max(d * (n - 1) for d, n in zip(stage.dilation, kernel, strict=True))
    check(reach <= MAX_REACH, f"{stage.name}: kernel", reach + 1, f"at most {MAX_REACH + 1} in C")


def _count_memory(network: Network, layers: list[Layer], places: Places) -> Memory:
    flash = sum(array.nbytes for layer in layers for array in layer.arrays.values())
    floats = layers[0].currents + network.neuron_count + max(layer.currents for layer in layers)
    floats += max(layer.pooled for layer in layers) + layers[-1].neurons * network.membrane
    floats += len(network.classes) + 1  # and the number of time steps
    return Memory(flash, 4 * (floats + places.synaptic) + places.spikes)


def _fill_template(
    network: Network,
    layers: list[Layer],
    places: Places,
    memory: Memory,
    example: Example | None,
) -> str:
    int8 = layers[0].arrays["weight"].dtype == np.int8
    index = layers[0].arrays["output"].dtype
    weight = "l->scale[l->output[j]] * (float)l->weight[j]" if int8 else "l->weight[j]"
    bias = "l->bias[i / (l->rows * l->columns)]"
    scale = bias.replace("bias", "scale")
    last = f"LAYERS[{len(layers) - 1}]"
    current = f"membrane[{last}.state + i]"
    output = f"(float)spikes[{last}.fired + i]" if network.stages[-1].neuron else current
    records = [write_record(layer, k, places.records[k]) for k, layer in enumerate(layers)]
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
        "spikes": places.spikes,
        "synaptic": places.synaptic,
        "most_currents": max(layer.currents for layer in layers),
        "most_pooled": max(layer.pooled for layer in layers),
        "pools_currents": int(any(layer.pooled for layer in layers)),
        "weight_type": "int8_t" if int8 else "float",
        "sum_type": "int32_t" if int8 else "float",
        "index_type": C_TYPES[str(index)],
        "deliver_real": f"first_current[at] += value * ({weight})",
        "bias": bias,
        "initial_sum": "0" if int8 else bias,
        "leak": _common_field(network, "leak"),
        "reset": _common_field(network, "reset"),
        "currents": "NULL" if int8 else "sums",
        "keep": f"\n        if (l == &{last})\n            potential[i] = m;" * network.membrane,
        "potential": f"\nstatic float potential[{count}];" * network.membrane,
        "output": "potential[i]" if network.membrane else output,
        "current": f"currents ? currents[i] : {from_sum}" if int8 else "currents[i]",
        "arrays": "\n".join(_write_arrays(layers)),
        "sources": declare("SOURCES", np.array(places.sources, np.int32)),
        "added": declare("ADDED", np.array(places.added, np.int32)),
        "records": ",\n".join(records),
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


def _write_arrays(layers: list[Layer]) -> Iterable[str]:
    for number, layer in enumerate(layers):
        for name, array in layer.arrays.items():
            yield declare(f"{name.upper()}_{number}", array)


def _common_field(network: Network, name: str) -> str:
    """Return the leak or reset that all neurons have: the compiler then drops other code."""
    found = {neuron_fields(stage.neuron)[name] for stage in network.stages if stage.neuron}
    return found.pop() if len(found) == 1 else f"l->{name}"


def _write_normalisation(network: Network) -> str:
    channels = network.input_shape[0]
    pairs = (("MEAN", network.mean or (0.0,) * channels), ("STD", network.std or (1.0,) * channels))
    return "\n".join(
        declare(name, np.array([255 * number for number in numbers], np.float32))
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
        f"\n#ifdef SPIKEWIRE_TEST\n{declare('TEST_INPUTS', flat)}\n\nint main(void)\n{{\n"
        f"    {call}\n    return found == {label} ? 0 : 1;\n}}\n#endif"
    )
