"""NIR, the exchange format of spiking simulators: networks written to and read from its files.

``tau dv/dt = v_leak - v + r I`` in Euler steps of dt is the neuron of `spikewire.nn.neurons` when
NIR's ``tau`` is our ``tau dt``, ``r = 1`` and ``v_leak = v_reset = rest``; without leak,
``r = 1 / dt``. NIR has no maximum pooling, no soft reset and no sparse weights: the first two are
refused, absent weights are written as zeros.

No pooling node is read by every simulator: SpikingJelly and snnTorch read only AvgPool2d, Norse
only SumPool2d. Pooling ``"conv"``, a strided convolution that sums the window of each channel, is
read by all three.
"""

import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spikewire.errors import SpikewireError, check, check_word
from spikewire.files import atomic_write, io_errors
from spikewire.formats.network import Network, Neuron, Pool, Shape, Stage

DT = 1e-4  # length of a time step in SpikingJelly and Norse
ONES = (1, 1)
POOLINGS = ("conv", "avg", "sum")


def _import_nir() -> Any:
    try:
        return importlib.import_module("nir")
    except ImportError:
        raise SpikewireError("nir: is not installed; run `pip install 'spikewire[nir]'`") from None


# ---------------------------------------------------------------------- writing


def to_nir(network: Network, pooling: str = "conv", dt: float = DT) -> Any:
    """Return a network as a NIR graph, which expects the image at every time step.

    Args:
        network: The network; its neurons reset hard, and its pooling is average or sum pooling.
        pooling: How to write pooling: ``"conv"`` (a strided convolution, read by SpikingJelly,
            snnTorch and Norse), ``"avg"`` (AvgPool2d) or ``"sum"`` (SumPool2d).
        dt: Length of a time step in seconds; the reader must use the same one.

    Returns:
        A `nir.NIRGraph`.

    Raises:
        SpikewireError: If the `nir` package is missing, `pooling` is unknown, or NIR cannot express
            the network.
    """
    nir = _import_nir()
    check_word("pooling", pooling, POOLINGS)
    nodes = dict(_make_nodes(nir, network, pooling, dt))
    names = list(nodes)
    return nir.NIRGraph(nodes=nodes, edges=list(zip(names, names[1:], strict=False)))


def write(network: Network, path: str | Path, pooling: str = "conv", dt: float = DT) -> int:
    """Write a network to a NIR file (HDF5).

    The file appears under its name only when it is complete; an older one is replaced.

    Args:
        network: The network; see `to_nir` for what NIR can express.
        path: Path of the file.
        pooling: How to write pooling: ``"conv"``, ``"avg"`` or ``"sum"``; see `to_nir`.
        dt: Length of a time step in seconds; the reader must use the same one.

    Returns:
        The size of the file in bytes.

    Raises:
        SpikewireError: If NIR cannot express the network, or the file cannot be written.

    Example:
        >>> nir.write(trace_model(model), "net.nir")
    """
    graph, content, path = to_nir(network, pooling, dt), io.BytesIO(), Path(path)
    _import_nir().write(content, graph)
    with io_errors(path), atomic_write(path) as file:
        return file.write(content.getbuffer())


def _make_nodes(nir: Any, network: Network, pooling: str, dt: float) -> Iterator[tuple[str, Any]]:
    shape, scale = network.input_shape, 1.0
    yield "input", nir.Input({"input": np.array(shape)})
    for stage, geometry in zip(network.stages, network.geometry, strict=True):
        if not stage.is_conv and len(shape) > 1:
            kind = {"input": np.array(shape)}
            yield f"{stage.name}_flatten", nir.Flatten(kind, start_dim=0, end_dim=-1)
        yield stage.name, _make_synapses(nir, stage, shape, scale)
        if stage.neuron:
            yield f"{stage.name}_neuron", _make_neuron(nir, stage.neuron, geometry.neurons, dt)
        scale = 1.0
        if stage.pool:
            scale = float(stage.pool.size**2) if pooling == "avg" else 1.0
            yield f"{stage.name}_pool", _make_pool(nir, stage, geometry.neurons, pooling)
        shape = geometry.outputs
    if network.vote > 1:
        yield "vote", _make_vote(nir, network)
        shape = (len(network.classes),)
    yield "output", nir.Output({"output": np.array(shape)})


def _make_synapses(nir: Any, stage: Stage, inputs: Shape, scale: float) -> Any:
    """Return the weights; `scale` cancels the 1 / k² of an AvgPool2d before them."""
    weight = stage.to_dense() * np.float32(scale)
    if not stage.is_conv:
        return nir.Affine(weight, stage.bias)
    padding = (stage.padding,) * 2
    return nir.Conv2d(inputs[1:], weight, ONES, padding, ONES, 1, stage.bias)


def _make_neuron(nir: Any, neuron: Neuron, shape: Shape, dt: float) -> Any:
    def fill(value: float) -> Any:
        return np.full(shape, value)

    check(neuron.reset == "hard", "reset", neuron.reset, "hard for NIR; train with --reset hard")
    limits = {"v_threshold": fill(neuron.threshold), "v_reset": fill(neuron.rest)}
    if neuron.tau is None:
        return nir.IF(r=fill(1 / dt), **limits)
    return nir.LIF(tau=fill(neuron.tau * dt), r=fill(1.0), v_leak=fill(neuron.rest), **limits)


def _make_pool(nir: Any, stage: Stage, shape: Shape, pooling: str) -> Any:
    assert stage.pool is not None
    if stage.pool.kind == "max":
        raise SpikewireError(
            f"{stage.name}: NIR has no maximum pooling; train with average pooling instead, "
            "as in `spikewire train --preset cifar10-conv-avg`"
        )
    channels, size = shape[0], (stage.pool.size,) * 2
    if pooling == "conv":
        weight = np.zeros((channels, channels, *size), np.float32)
        weight[np.arange(channels), np.arange(channels)] = 1
        bias = np.zeros(channels, np.float32)
        return nir.Conv2d(shape[1:], weight, size, (0, 0), ONES, 1, bias)
    node = nir.AvgPool2d if pooling == "avg" else nir.SumPool2d
    return node(np.array(size), np.array(size), np.array((0, 0)))


def _make_vote(nir: Any, network: Network) -> Any:
    """Return the average over the outputs of each class, as weights."""
    count = len(network.classes)
    weight = np.kron(np.eye(count), np.full((1, network.vote), 1 / network.vote))
    return nir.Affine(weight.astype(np.float32), np.zeros(count, np.float32))


# ---------------------------------------------------------------------- reading


class _PoolNode(NamedTuple):
    size: int
    average: bool


def from_nir(source: Any, *, time_steps: int = 8, dt: float = DT) -> Network:
    """Return the network of a NIR graph or file.

    The graph must be a chain of Conv2d, Affine, Linear, LIF, IF, AvgPool2d, SumPool2d and Flatten,
    with the same constants for all neurons of a layer.

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
    nir = _import_nir()
    graph = source if isinstance(source, nir.NIRGraph) else _read_graph(nir, source)
    shape, stages = _collect_stages(nir, graph, dt)
    return Network(
        stages=stages,
        input_shape=shape,
        time_steps=time_steps,
        classes=tuple(map(str, range(stages[-1].shape[0]))),
    )


def _read_graph(nir: Any, path: Any) -> Any:
    try:
        return nir.read(str(path))
    except Exception as error:  # a damaged file fails anywhere inside h5py or nir
        reason = " ".join((str(error) or type(error).__name__).split())[:80]
        raise SpikewireError(f"{path}: is not a NIR file ({reason})") from None


def _collect_stages(nir: Any, graph: Any, dt: float) -> tuple[Shape, tuple[Stage, ...]]:
    """Return the shape of the input, and the stages in order."""
    shape: Shape = ()
    stages: list[dict[str, Any]] = []
    pool: _PoolNode | None = None  # of the last stage
    for name, node in _walk_chain(nir, graph):
        if isinstance(node, nir.Input):
            shape = tuple(int(n) for n in np.ravel(next(iter(node.input_type.values()))))
        elif stages and "neuron" in stages[-1] and (found := _read_pool(nir, name, node)):
            pool = found
            stages[-1]["pool"] = Pool("sum", pool.size)
        elif isinstance(node, nir.Conv2d | nir.Affine | nir.Linear):
            stages.append(_read_synapses(nir, name, node, pool))
            pool = None
        elif isinstance(node, nir.LIF | nir.IF) and stages and "neuron" not in stages[-1]:
            stages[-1] |= _read_neuron(nir, name, node, dt, stages[-1])
        elif not isinstance(node, nir.Flatten | nir.Output):
            raise SpikewireError(f"{name}: {type(node).__name__} in this position is not supported")
    check(bool(stages), "graph", "no synapses", "a chain with synapses")
    return shape, tuple(Stage(**fields) for fields in stages)


def _walk_chain(nir: Any, graph: Any) -> Iterator[tuple[str, Any]]:
    """Yield the nodes from input to output; refuse branches and loops."""
    after: dict[str, list[str]] = {}
    for source, target in graph.edges:
        after.setdefault(source, []).append(target)
    starts = [name for name, node in graph.nodes.items() if isinstance(node, nir.Input)]
    check(len(starts) == 1, "graph", f"{len(starts)} inputs", "with one input")
    name, left = starts[0], len(graph.nodes)
    while True:
        yield name, graph.nodes[name]
        left -= 1
        targets = after.get(name, [])
        if not targets:
            break
        check(len(targets) == 1 and left > 0, name, targets, "a chain, without branches or loops")
        name = targets[0]
    check(left == 0, "graph", f"{left} nodes outside the chain", "one chain from input to output")


def _read_synapses(nir: Any, name: str, node: Any, pool: _PoolNode | None) -> dict[str, Any]:
    """Return the fields of a stage; an average before it is folded into its weights."""
    weight = np.asarray(node.weight, np.float32)
    if pool is not None and pool.average:
        weight = weight / np.float32(pool.size**2)
    flat, bias = weight.ravel(), getattr(node, "bias", None)
    index = np.flatnonzero(flat).astype(np.int64)
    return {
        "name": name,
        "shape": weight.shape,
        "index": index,
        "values": flat[index],
        "bias": np.asarray(np.zeros(len(weight)) if bias is None else bias, np.float32),
        "padding": _read_padding(name, node) if isinstance(node, nir.Conv2d) else 0,
    }


def _read_padding(name: str, node: Any) -> int:
    sides = {*np.ravel(node.stride).tolist(), *np.ravel(node.dilation).tolist(), node.groups}
    check(sides == {1}, f"{name}: stride, dilation, groups", sides, "1")
    plain = not isinstance(node.padding, str) and len(set(np.ravel(node.padding))) == 1
    check(plain, f"{name}: padding", node.padding, "one number on all sides")
    return int(np.ravel(node.padding)[0])


def _read_neuron(
    nir: Any, name: str, node: Any, dt: float, stage: dict[str, Any]
) -> dict[str, Any]:
    """Return the constants, and the weights times the gain of the current."""
    rest = _read_constant(name, "v_reset", node.v_reset)
    threshold = _read_constant(name, "v_threshold", node.v_threshold)
    resistance = _read_constant(name, "r", node.r)
    if isinstance(node, nir.IF):
        tau, gain = None, resistance * dt
    else:
        leak = _read_constant(name, "v_leak", node.v_leak)
        check(leak == rest, f"{name}: v_leak", leak, f"v_reset ({rest})")
        tau, gain = float(np.float32(_read_constant(name, "tau", node.tau) / dt)), resistance
    scaled = {key: stage[key] * np.float32(gain) for key in ("values", "bias")}
    return {"neuron": Neuron(tau, threshold, rest), **scaled}


def _read_constant(name: str, field: str, value: Any) -> float:
    values = np.unique(np.zeros(1) if value is None else value)
    check(len(values) == 1, f"{name}: {field}", f"{len(values)} values", "the same for all neurons")
    return float(values[0])


def _read_pool(nir: Any, name: str, node: Any) -> _PoolNode | None:
    """Return size and kind of a pooling node; None for any other node."""
    if isinstance(node, nir.Conv2d):
        return _read_pooling_conv(node)
    if not isinstance(node, nir.AvgPool2d | nir.SumPool2d):
        return None
    sizes = {int(n) for part in (node.kernel_size, node.stride) for n in np.ravel(part)}
    plain = len(sizes) == 1 and not np.any(node.padding)
    check(plain, f"{name}: pooling", sizes, "square, without overlap or padding")
    return _PoolNode(sizes.pop(), isinstance(node, nir.AvgPool2d))


def _read_pooling_conv(node: Any) -> _PoolNode | None:
    """Return the size of a convolution that sums the windows of each channel; None for others."""
    outputs, inputs, *kernel = node.weight.shape
    sizes = {*kernel, *np.ravel(node.stride).tolist()}
    if outputs != inputs or len(sizes) > 1 or sizes == {1} or np.any(node.bias):
        return None
    plain = not isinstance(node.padding, str) and not np.any(node.padding) and node.groups == 1
    diagonal = np.eye(outputs, dtype=node.weight.dtype)[:, :, None, None]
    same = np.array_equal(node.weight, np.broadcast_to(diagonal, node.weight.shape))
    return _PoolNode(int(sizes.pop()), False) if plain and same else None
