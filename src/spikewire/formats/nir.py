"""NIR, the exchange format of spiking simulators, on the `nir` package alone.

``tau dv/dt = v_leak - v + r I`` taken in Euler steps of dt is our neuron when ``tau = tau' dt``,
``r = 1`` and ``v_leak = v_reset = rest``; without leak ``r = 1 / dt``. NIR has neither maximum
pooling nor sparse weights: the first is refused, absent weights are written as zeros.

No pooling node is read by all: SpikingJelly and snnTorch know only AvgPool2d, Norse only SumPool2d.
Pooling "conv", a strided convolution that adds up each channel's window, is read by all three.
"""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spikewire.errors import SpikewireError, check, unknown
from spikewire.formats.network import Network, Neuron, Pool, Shape, Stage

DT = 1e-4  # what SpikingJelly and Norse take a step to be
PAIR = (1, 1)
POOLINGS = ("conv", "avg", "sum")


def _package() -> Any:
    try:
        return importlib.import_module("nir")
    except ImportError:
        raise SpikewireError("nir: is not installed; run `pip install 'spikewire[nir]'`") from None


# ---------------------------------------------------------------------- writing


def to_nir(network: Network, pooling: str = "conv", dt: float = DT) -> Any:
    """Return a NIR graph that gets the image at every time step."""
    nir = _package()
    if pooling not in POOLINGS:
        raise unknown("pooling", pooling, POOLINGS)
    nodes = dict(_nodes(nir, network, pooling, dt))
    names = list(nodes)
    return nir.NIRGraph(nodes=nodes, edges=list(zip(names, names[1:], strict=False)))


def write(network: Network, path: str | Path, pooling: str = "conv", dt: float = DT) -> int:
    """Write a NIR file; return its size in bytes."""
    graph = to_nir(network, pooling, dt)
    try:
        _package().write(str(path), graph)
    except OSError as error:
        raise SpikewireError(f"{path}: cannot be written: {error.strerror or error}") from None
    return Path(path).stat().st_size


def _nodes(nir: Any, network: Network, pooling: str, dt: float) -> Iterator[tuple[str, Any]]:
    shape, scale = network.input_shape, 1.0
    yield "input", nir.Input({"input": np.array(shape)})
    for stage, place in zip(network.stages, network.geometry, strict=True):
        if len(stage.shape) == 2 and len(shape) > 1:
            kind = {"input": np.array(shape)}
            yield f"{stage.name}_flatten", nir.Flatten(kind, start_dim=0, end_dim=-1)
        yield stage.name, _synapses(nir, stage, shape, scale)
        if stage.neuron:
            yield f"{stage.name}_neuron", _neuron(nir, stage.neuron, place.neurons, dt)
        scale = 1.0
        if stage.pool:
            scale = float(stage.pool.size**2) if pooling == "avg" else 1.0
            yield f"{stage.name}_pool", _pool(nir, stage, place.neurons, pooling)
        shape = place.outputs
    if network.vote > 1:
        count = len(network.classes)
        weight = np.kron(np.eye(count), np.full((1, network.vote), 1 / network.vote))
        yield "vote", nir.Affine(weight.astype(np.float32), np.zeros(count, np.float32))
        shape = (count,)
    yield "output", nir.Output({"output": np.array(shape)})


def _pool(nir: Any, stage: Stage, shape: Shape, pooling: str) -> Any:
    assert stage.pool is not None
    if stage.pool.kind == "max":
        raise SpikewireError(
            f"{stage.name}: NIR has no maximum pooling; train with average pooling instead, "
            "as in `spikewire train --preset cifar10-conv-avg`"
        )
    sides, none = np.array((stage.pool.size,) * 2), np.array((0, 0))
    if pooling == "conv":
        weight = np.zeros((shape[0], shape[0], *sides), np.float32)
        weight[np.arange(shape[0]), np.arange(shape[0])] = 1
        ends = (tuple(sides.tolist()), (0, 0), PAIR, 1, np.zeros(shape[0], np.float32))
        return nir.Conv2d(shape[1:], weight, *ends)
    return (nir.AvgPool2d if pooling == "avg" else nir.SumPool2d)(sides, sides, none)


def _synapses(nir: Any, stage: Stage, inputs: Shape, scale: float) -> Any:
    """Return weights; `scale` undoes the 1 / k² that an average before them brings by itself."""
    weight = stage.dense() * np.float32(scale)
    if len(stage.shape) == 2:
        return nir.Affine(weight, stage.bias)
    padding = (stage.padding,) * 2
    return nir.Conv2d(inputs[1:], weight, PAIR, padding, PAIR, 1, stage.bias)


def _neuron(nir: Any, neuron: Neuron, shape: Shape, dt: float) -> Any:
    def all_(value: float) -> Any:
        return np.full(shape, value)

    check(neuron.reset == "hard", "reset", neuron.reset, "hard, as NIR's; train --reset hard")
    ends = {"v_threshold": all_(neuron.threshold), "v_reset": all_(neuron.rest)}
    if neuron.tau is None:
        return nir.IF(r=all_(1 / dt), **ends)
    return nir.LIF(tau=all_(neuron.tau * dt), r=all_(1.0), v_leak=all_(neuron.rest), **ends)


# ---------------------------------------------------------------------- reading


def from_nir(source: Any, *, time_steps: int = 8, dt: float = DT) -> Network:
    """Return the network of a NIR graph or file: a chain of synapses, neurons and pools."""
    nir = _package()
    graph = source if isinstance(source, nir.NIRGraph) else _read(nir, source)
    stages: list[dict[str, Any]] = []
    shape: Shape = ()
    for name, node in _chain(nir, graph):
        if isinstance(node, nir.Input):
            shape = tuple(int(n) for n in np.ravel(next(iter(node.input_type.values()))))
        elif stages and "neuron" in stages[-1] and (pool := _read_pool(nir, name, node)):
            stages[-1]["pool"] = pool
        elif isinstance(node, nir.Conv2d | nir.Affine | nir.Linear):
            pool = stages[-1].get("pool") if stages else None
            stages.append(_read_synapses(nir, name, node, pool))
        elif isinstance(node, nir.LIF | nir.IF) and stages and "neuron" not in stages[-1]:
            _read_neuron(nir, name, node, dt, stages[-1])
        elif not isinstance(node, nir.Flatten | nir.Output):
            raise SpikewireError(f"{name}: {type(node).__name__} at this place is not understood")
    check(bool(stages), "graph", "no synapses", "a chain with synapses")
    for parts in stages:
        if "pool" in parts:
            parts["pool"] = Pool("sum", parts["pool"][0])
    outputs = range(stages[-1]["shape"][0])
    return Network(
        stages=tuple(Stage(**parts) for parts in stages),
        input_shape=shape,
        time_steps=time_steps,
        classes=tuple(map(str, outputs)),
    )


def _read(nir: Any, path: Any) -> Any:
    try:
        return nir.read(str(path))
    except Exception as error:  # a damaged file fails anywhere inside h5py or nir
        reason = " ".join((str(error) or type(error).__name__).split())[:80]
        raise SpikewireError(f"{path}: is not a NIR file ({reason})") from None


def _chain(nir: Any, graph: Any) -> Iterator[tuple[str, Any]]:
    """Walk from the input to the output, if there is one way only."""
    after: dict[str, list[str]] = {}
    for source, target in graph.edges:
        after.setdefault(source, []).append(target)
    starts = [name for name, node in graph.nodes.items() if isinstance(node, nir.Input)]
    check(len(starts) == 1, "graph", f"{len(starts)} inputs", "with one input")
    name, left = starts[0], len(graph.nodes)
    while True:
        yield name, graph.nodes[name]
        left -= 1
        ways = after.get(name, [])
        if not ways:
            break
        check(len(ways) == 1 and left > 0, name, ways, "a chain, without branches or loops")
        name = ways[0]
    check(left == 0, "graph", f"{left} nodes beside the chain", "one chain from input to output")


def _read_synapses(nir: Any, name: str, node: Any, pool: Any) -> dict[str, Any]:
    weight = np.asarray(node.weight, np.float32)
    padding = 0
    if isinstance(node, nir.Conv2d):
        sides = {*np.ravel(node.stride).tolist(), *np.ravel(node.dilation).tolist(), node.groups}
        check(sides == {1}, f"{name}: stride, dilation, groups", sides, "1")
        plain = not isinstance(node.padding, str) and len(set(np.ravel(node.padding))) == 1
        check(plain, f"{name}: padding", node.padding, "one number on all sides")
        padding = int(np.ravel(node.padding)[0])
    if pool is not None and pool[1]:
        weight = weight / np.float32(pool[0] ** 2)
    flat = weight.ravel()
    index = np.flatnonzero(flat).astype(np.int64)
    bias = getattr(node, "bias", None)
    bias = np.zeros(len(weight), np.float32) if bias is None else np.asarray(bias, np.float32)
    return {
        "name": name,
        "shape": weight.shape,
        "index": index,
        "values": flat[index],
        "bias": bias,
        "padding": padding,
    }


def _read_neuron(nir: Any, name: str, node: Any, dt: float, parts: dict[str, Any]) -> None:
    """Take the constants, and the gain of the current into the weights before."""
    rest = _one(name, "v_reset", node.v_reset)
    threshold = _one(name, "v_threshold", node.v_threshold)
    resistance = _one(name, "r", node.r)
    if isinstance(node, nir.IF):
        tau, gain = None, resistance * dt
    else:
        leak = _one(name, "v_leak", node.v_leak)
        check(leak == rest, f"{name}: v_leak", leak, f"v_reset ({rest})")
        tau, gain = float(np.float32(_one(name, "tau", node.tau) / dt)), resistance
    parts["neuron"] = Neuron(tau, threshold, rest)
    parts["values"] = parts["values"] * np.float32(gain)
    parts["bias"] = parts["bias"] * np.float32(gain)


def _one(name: str, field: str, value: Any) -> float:
    values = np.unique(np.zeros(1) if value is None else value)
    check(len(values) == 1, f"{name}: {field}", f"{len(values)} values", "the same for all neurons")
    return float(values[0])


def _read_pool(nir: Any, name: str, node: Any) -> tuple[int, bool] | None:
    """Return the size and whether it is an average, if the node pools."""
    if isinstance(node, nir.Conv2d):
        return _read_pooling_conv(node)
    if not isinstance(node, nir.AvgPool2d | nir.SumPool2d):
        return None
    sizes = {int(n) for part in (node.kernel_size, node.stride) for n in np.ravel(part)}
    check(len(sizes) == 1 and not np.any(node.padding), f"{name}: pooling", sizes, "square, apart")
    return sizes.pop(), isinstance(node, nir.AvgPool2d)


def _read_pooling_conv(node: Any) -> tuple[int, bool] | None:
    """Recognise a convolution that adds up each channel's windows."""
    outputs, inputs, *kernel = node.weight.shape
    sizes = {*kernel, *np.ravel(node.stride).tolist()}
    if outputs != inputs or len(sizes) > 1 or sizes == {1} or np.any(node.bias):
        return None
    plain = not isinstance(node.padding, str) and not np.any(node.padding) and node.groups == 1
    own = np.eye(outputs, dtype=node.weight.dtype)[:, :, None, None]
    same = np.array_equal(node.weight, np.broadcast_to(own, node.weight.shape))
    return (int(sizes.pop()), False) if plain and same else None
