"""NIR graphs and files as the record of a network; the writer is `spikewire.formats.nir`."""

import importlib
import math
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch

from spikewire.errors import SpikewireError, check
from spikewire.formats.builder import Builder
from spikewire.formats.network import Network, Neuron, Pool, Source
from spikewire.formats.nir_file import read_graph
from spikewire.formats.pooling import Pooling
from spikewire.formats.stage import IMAGE, Shape
from spikewire.formats.values import (
    Current,
    Spikes,
    Value,
    add,
    expect_known,
    feed,
    feed_back,
    to_pair,
)

DT = 1e-4  # length of a time step in SpikingJelly and Norse


def import_nir() -> Any:
    """Return the `nir` package, which is optional."""
    try:
        return importlib.import_module("nir")
    except ImportError:
        raise SpikewireError("nir: is not installed; run `pip install 'spikewire[nir]'`") from None


def from_nir(source: Any, *, time_steps: int = 8, dt: float = DT) -> Network:
    """Return the network of a NIR graph or file.

    The graph may have Conv2d, Affine, Linear, LIF, CubaLIF, IF, AvgPool2d, SumPool2d and Flatten
    nodes, with the same constants for all neurons of a node. The only loops are those of recurrent
    neurons, LIF, CubaLIF or IF -> Affine or Linear -> the same neurons, which receive their own
    spikes one time step later.

    Args:
        source: A `nir.NIRGraph`, or the path of a NIR file.
        time_steps: Time steps per image; NIR does not store them.
        dt: Length of a time step in seconds that the file was written for.

    Returns:
        The network; its classes are numbered from 0.

    Raises:
        SpikewireError: If the `nir` package is missing, the file is damaged, or the graph has nodes
            that are not supported.

    Example:
        >>> network = nir.from_nir("net.nir", time_steps=8)
    """
    nir = import_nir()
    number = isinstance(dt, int | float) and not isinstance(dt, bool)
    check(number and math.isfinite(dt) and dt > 0, "dt", dt, "a finite number above 0")
    graph = source if isinstance(source, nir.NIRGraph) else read_graph(nir, source)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            shape, output, builder = _follow_graph(nir, graph, dt)
            stages, _ = builder.finish(output)
            outputs = Network.count_outputs(stages, shape)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError,
            ValueError) as error:  # fmt: skip
        reason = " ".join((str(error) or type(error).__name__).split())[:80]
        raise SpikewireError(f"graph: a node has an unexpected value ({reason})") from None
    return Network(
        stages=tuple(stages),
        input_shape=shape,
        time_steps=time_steps,
        classes=tuple(map(str, range(outputs))),
    )


def _follow_graph(nir: Any, graph: Any, dt: float) -> tuple[Shape, Spikes | Current, Builder]:
    """Return the shape of the input, the output, and the neurons in between."""
    builder, shape, output = Builder(), (), None
    values: dict[str, Value] = {}
    loops = _find_loops(nir, graph)
    for name, sources in _sort_nodes(graph, set(loops.values())):
        node = graph.nodes[name]
        if isinstance(node, nir.Input):
            check(not shape, "graph", "two inputs", "with one input")
            shape = tuple(int(n) for n in np.ravel(next(iter(node.input_type.values()))))
            values[name] = Spikes((Source(IMAGE),))
            continue
        if not sources:
            raise SpikewireError(f"{name}: a node without an input is not supported")
        value = reduce(partial(add, name), [values[source] for source in sources])
        if name in loops:
            feedback = feed_back(
                loops[name], *_read_synapses(loops[name], graph.nodes[loops[name]])
            )
            values[name] = _fire(nir, builder, name, node, value, dt, feedback)
        else:
            values[name] = _follow_node(nir, builder, name, node, value, dt)
        output = values[name] if isinstance(node, nir.Output) else output
    if output is None or not shape:
        raise SpikewireError("graph: an input and an output are missing")
    return shape, expect_known("output", output), builder


def _list_neurons(nir: Any) -> tuple[type, ...]:
    return nir.LIF, nir.CubaLIF, nir.IF


def _find_loops(nir: Any, graph: Any) -> dict[str, str]:
    """Return the synapses from neurons to themselves, by the name of the neurons."""
    found: dict[str, str] = {}
    for name, node in graph.nodes.items():
        if not isinstance(node, nir.Affine | nir.Linear):
            continue
        before = {source for source, target in graph.edges if target == name}
        after = {target for source, target in graph.edges if source == name}
        (neurons,) = before if len(before) == 1 else ("",)
        if before == after and isinstance(graph.nodes.get(neurons), _list_neurons(nir)):
            check(neurons not in found, neurons, "two loops", "neurons with one loop")
            found[neurons] = name
    return found


def _sort_nodes(graph: Any, left_out: set[str]) -> list[tuple[str, list[str]]]:
    """Return the nodes, each with its sources, in an order in which all sources come first."""
    sources: dict[str, list[str]] = {name: [] for name in graph.nodes if name not in left_out}
    for source, target in graph.edges:
        known = source in graph.nodes and target in graph.nodes
        check(known, "graph", f"an edge {source} -> {target}", "between nodes")
        if source not in left_out and target not in left_out:
            sources[target].append(source)
    done: dict[str, list[str]] = {}
    while len(done) < len(sources):
        ready = [n for n, s in sources.items() if n not in done and all(x in done for x in s)]
        check(bool(ready), "graph", "a loop", "without loops, except neurons -> Affine -> neurons")
        done |= {name: sorted(sources[name], key=list(done).index) for name in ready}
    return list(done.items())


def _follow_node(
    nir: Any, builder: Builder, name: str, node: Any, value: Value, dt: float
) -> Value:
    """Return the output of a node."""
    fired = isinstance(value, Spikes) and value.sources[0].stage != IMAGE
    pooling = _read_pool(nir, name, node, fired)
    if pooling is not None:
        return builder.pool(name, value, pooling)
    if isinstance(node, nir.Conv2d | nir.Affine | nir.Linear):
        geometry = _read_geometry(name, node) if isinstance(node, nir.Conv2d) else {}
        weight, bias = _read_synapses(name, node)
        return feed(name, weight, bias, value, geometry)
    if isinstance(node, _list_neurons(nir)):
        return _fire(nir, builder, name, node, value, dt)
    if isinstance(node, nir.Flatten | nir.Output):
        return value
    raise SpikewireError(f"{name}: {type(node).__name__} is not supported")


def _fire(
    nir: Any,
    builder: Builder,
    name: str,
    node: Any,
    value: Value,
    dt: float,
    feedback: Current | None = None,
) -> Spikes:
    """Return the spikes of neurons; their gain becomes part of the weights."""
    neuron, gain, shape = _read_neuron(nir, name, node, dt)
    if isinstance(value, Current):
        value = value.scale_by(gain, 0.0, name)
    elif isinstance(value, Spikes):
        value = replace(value, scale=value.scale * gain)
    feedback = feedback and feedback.scale_by(gain, 0.0, name)
    return Spikes((Source(builder.fire(name, value, neuron, shape, feedback)),))


def _read_synapses(name: str, node: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return weight and bias of a node."""
    weight, bias = _read_numbers(f"{name}: weight", node.weight), getattr(node, "bias", None)
    bias = None if bias is None else _read_numbers(f"{name}: bias", bias)
    fits = bias is None or (weight.ndim > 0 and bias.shape == weight.shape[:1])
    found = None if bias is None else tuple(bias.shape)
    check(fits, f"{name}: bias", found, "one number per output")
    return weight, bias


def _read_numbers(field: str, value: Any) -> torch.Tensor:
    """Return real numbers as float64."""
    array = np.asarray(value)
    check(array.dtype.kind in "fiu", field, str(array.dtype), "real numbers")
    return torch.from_numpy(array.astype(np.float64))


def _read_geometry(name: str, node: Any) -> dict[str, Any]:
    check(not isinstance(node.padding, str), f"{name}: padding", node.padding, "a number")
    pairs = {"stride": node.stride, "padding": node.padding, "dilation": node.dilation}
    numbers = {key: to_pair(np.broadcast_to(value, 2).tolist()) for key, value in pairs.items()}
    return {**numbers, "groups": int(node.groups)}


def _read_neuron(nir: Any, name: str, node: Any, dt: float) -> tuple[Neuron, float, Shape]:
    """Return the constants, the gain of the current, and the shape."""
    rest = _read_constant(name, "v_reset", node.v_reset)
    threshold = _read_constant(name, "v_threshold", node.v_threshold)
    resistance, shape = _read_constant(name, "r", node.r), tuple(np.shape(node.v_threshold))
    if isinstance(node, nir.IF):
        return Neuron(None, threshold, rest), float(np.float32(resistance * dt)), shape
    leak = _read_constant(name, "v_leak", node.v_leak)
    check(leak == rest, f"{name}: v_leak", leak, f"v_reset ({rest})")
    cuba = isinstance(node, nir.CubaLIF)
    field = "tau_mem" if cuba else "tau"
    tau = float(np.float32(_read_constant(name, field, getattr(node, field)) / dt))
    neuron = Neuron(tau, threshold, rest)
    if not cuba:
        return neuron, resistance, shape
    lost = dt / _read_constant(name, "tau_syn", node.tau_syn)  # fraction of the current per step
    gain = resistance * _read_constant(name, "w_in", node.w_in) * lost
    return neuron._replace(current_decay=1 - lost), float(np.float32(gain)), shape


def _read_constant(name: str, field: str, value: Any) -> float:
    values = np.unique(np.zeros(1) if value is None else value)
    check(values.dtype.kind in "fiu", f"{name}: {field}", str(values.dtype), "real numbers")
    check(len(values) == 1, f"{name}: {field}", f"{len(values)} values", "the same for all neurons")
    return float(values[0])


def _read_pool(nir: Any, name: str, node: Any, fired: bool) -> Pooling | None:
    """Return a pooling node, or a convolution of spikes that pools; None for any other node."""
    if isinstance(node, nir.Conv2d):
        return _read_pooling_conv(node) if fired else None
    if not isinstance(node, nir.AvgPool2d | nir.SumPool2d):
        return None
    sides = [np.ravel(part) for part in (node.kernel_size, node.stride, node.padding)]
    square = all(len(set(side.tolist())) == 1 for side in sides)
    check(square, f"{name}: pooling", [side.tolist() for side in sides], "square")
    size, stride, padding = (int(side[0]) for side in sides)
    return _make_pooling(size, stride, padding, isinstance(node, nir.AvgPool2d))


def _make_pooling(size: int, stride: int, padding: int, average: bool) -> Pooling:
    pool = Pool("sum", size, 0 if stride == size else stride, padding)
    return Pooling(None if size == stride == 1 else pool, average)


def _read_pooling_conv(node: Any) -> Pooling | None:
    """Return a convolution that sums the windows of each channel as pooling; None for others."""
    outputs, inputs, *kernel = node.weight.shape
    sides = [*kernel], np.ravel(node.stride).tolist(), np.ravel(node.padding).tolist()
    plain = node.groups == 1 and not np.any(node.bias) and np.all(np.ravel(node.dilation) == 1)
    square = not isinstance(node.padding, str) and all(len(set(side)) == 1 for side in sides)
    if outputs != inputs or kernel[0] == 1 or not plain or not square:
        return None
    if sides[2][0] > kernel[0] // 2:
        return None
    diagonal = np.eye(outputs, dtype=node.weight.dtype)[:, :, None, None]
    same = np.array_equal(node.weight, np.broadcast_to(diagonal, node.weight.shape))
    size, stride, padding = (int(side[0]) for side in sides)
    return _make_pooling(size, stride, padding, False) if same else None
