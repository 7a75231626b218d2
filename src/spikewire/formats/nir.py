"""NIR, the exchange format of spiking simulators: networks written to and read from its files.

``tau dv/dt = v_leak - v + r I`` in Euler steps of dt is the neuron of `spikewire.nn.neurons` when
NIR's ``tau`` is our ``tau dt``, ``r = 1`` and ``v_leak = v_reset = rest``; without leak,
``r = 1 / dt``. Neurons with a synaptic current are CubaLIF, ``tau_syn dI/dt = -I + w_in X`` before
the equation above; its ``r = tau / dt`` is what snnTorch reads, for which ``w_in`` makes up. NIR
has no maximum pooling, no soft reset and no sparse weights: the first two are refused, absent
weights are written as zeros. Several edges into a node are added.

No pooling node is read by every simulator: SpikingJelly and snnTorch read only AvgPool2d, Norse
only SumPool2d. Pooling ``"conv"``, a strided convolution that sums the window of each channel, is
read by all three.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spikewire.errors import SpikewireError, check, check_word
from spikewire.files import atomic_write, io_errors
from spikewire.formats.from_nir import DT, from_nir, import_nir
from spikewire.formats.network import Network, Pool, Source, Stage
from spikewire.formats.stage import IMAGE, Shape

__all__ = ["DT", "POOLINGS", "from_nir", "to_nir", "write"]
ONES = (1, 1)
POOLINGS = ("conv", "avg", "sum")


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
    nir = import_nir()
    check_word("pooling", pooling, POOLINGS)
    check(not network.membrane, "outputs", "membrane potentials", "spikes or currents for NIR")
    nodes, edges, before = {}, [], [""]
    for name, node, sources in _make_nodes(nir, network, pooling, dt):
        nodes[name] = node
        edges += [(source or before[-1], name) for source in sources]
        before.append(name)
    try:
        return nir.NIRGraph(nodes=nodes, edges=edges)
    except ValueError as error:  # its check of types does not know groups and kernels of two sides
        reason = " ".join(str(error).split())[:80]
        raise SpikewireError(
            f"layers: cannot be written as NIR ({reason}); the nir package checks convolutions as "
            "if all had square kernels and no groups"
        ) from None


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
    import_nir().write(content, graph)
    with io_errors(path), atomic_write(path) as file:
        return file.write(content.getbuffer())


Node = tuple[str, Any, tuple[str, ...]]  # name, node, names of its sources; "": the node before


def _make_nodes(nir: Any, network: Network, pooling: str, dt: float) -> Iterator[Node]:
    shape = network.input_shape
    yield "input", nir.Input({"input": np.array(shape)}), ()
    for number in range(len(network.stages)):
        yield from _make_stage(nir, network, number, pooling, dt)
        shape = network.geometry[number].neurons
    if network.vote > 1:
        yield "vote", _make_vote(nir, network), ("",)
        shape = (len(network.classes),)
    yield "output", nir.Output({"output": np.array(shape)}), ("",)


def _make_stage(nir: Any, network: Network, number: int, pooling: str, dt: float) -> Iterator[Node]:
    """Yield the nodes of a stage: flatten, synapses, pooling, neurons, pooling."""
    stage, shapes = network.stages[number], network.geometry[number]
    sources = tuple(_name_source(network, source) for source in network.sources[number])
    if not stage.is_conv and len(shapes.inputs) > 1:
        kind = {"input": np.array(shapes.inputs)}
        yield f"{stage.name}_flatten", nir.Flatten(kind, start_dim=0, end_dim=-1), sources
        sources = ("",)
    scale = _find_scale(network, number) if pooling == "avg" else (1.0, 1.0)
    yield stage.name, _make_synapses(nir, stage, shapes.inputs, *scale), sources
    if stage.current_pool:
        pool = _make_pool(nir, stage.name, stage.current_pool, shapes.currents, pooling)
        yield f"{stage.name}_current_pool", pool, ("",)
    sources = ("", *(_name_currents(network.stages[added]) for added in stage.adds))
    if stage.neuron:
        yield f"{stage.name}_neuron", _make_neuron(nir, stage, shapes.neurons, dt), sources
    else:
        check(not stage.adds, f"{stage.name}: adds", "at the output", "before neurons for NIR")
    if stage.pool:
        pool = _make_pool(nir, stage.name, stage.pool, shapes.neurons, pooling)
        yield f"{stage.name}_pool", pool, ("",)


def _name_source(network: Network, source: Source) -> str:
    """Return the name of the node that a stage reads."""
    if source.stage == IMAGE:
        return "input"
    return f"{network.stages[source.stage].name}_{'pool' if source.pooled else 'neuron'}"


def _name_currents(stage: Stage) -> str:
    """Return the name of the node whose output are the currents of a stage."""
    return f"{stage.name}_current_pool" if stage.current_pool else stage.name


def _find_scale(network: Network, number: int) -> tuple[float, float]:
    """Return the factors that cancel the 1 / k² of AvgPool2d before and after the synapses."""
    stage, before = network.stages[number], set()
    for source in network.sources[number]:
        pool = network.stages[source.stage].pool if source.pooled else None
        before.add(float(pool.size**2) if pool else 1.0)
    check(len(before) == 1, f"{stage.name}: pooling", "avg", "conv or sum for these additions")
    after = float(stage.current_pool.size**2) if stage.current_pool else 1.0
    return before.pop(), after


def _make_synapses(nir: Any, stage: Stage, inputs: Shape, before: float, after: float) -> Any:
    """Return the weights; `before` and `after` cancel the 1 / k² of an AvgPool2d."""
    weight, bias = stage.to_dense() * np.float32(before * after), stage.bias * np.float32(after)
    if not stage.is_conv:
        return nir.Affine(weight, bias)
    sizes = (stage.stride, stage.padding, stage.dilation, stage.groups)
    return nir.Conv2d(inputs[1:], weight, *sizes, bias)


def _make_neuron(nir: Any, stage: Stage, shape: Shape, dt: float) -> Any:
    def fill(value: float) -> Any:
        return np.full(shape, value)

    neuron = stage.neuron
    assert neuron is not None
    hard = "hard for NIR; train with --reset hard, in snnTorch with reset_mechanism='zero'"
    check(neuron.reset == "hard", f"{stage.name}: reset", neuron.reset, hard)
    threshold = neuron.fires_at if neuron.strict else neuron.threshold
    limits = {"v_threshold": fill(threshold), "v_reset": fill(neuron.rest)}
    if neuron.tau is None:
        leaky = "leaky in NIR, with a synaptic current"
        check(not neuron.current_decay, f"{stage.name}: neurons", "IF", leaky)
        return nir.IF(r=fill(1 / dt), **limits)
    tau, limits["v_leak"] = fill(neuron.tau * dt), fill(neuron.rest)
    if not neuron.current_decay:
        return nir.LIF(tau=tau, r=fill(neuron.gain), **limits)
    steps = 1 / (1 - neuron.current_decay)  # time constant of the current in time steps
    taus = {"tau_syn": fill(steps * dt), "tau_mem": tau}
    w_in = fill(steps * neuron.gain / neuron.tau)
    return nir.CubaLIF(**taus, r=fill(neuron.tau), w_in=w_in, **limits)


def _make_pool(nir: Any, name: str, pool: Pool, shape: Shape, pooling: str) -> Any:
    if pool.kind == "max":
        raise SpikewireError(
            f"{name}: NIR has no maximum pooling; train with average pooling instead, "
            "as in `spikewire train --preset cifar10-conv-avg`"
        )
    channels = shape[0]
    size, stride, padding = ((n, n) for n in (pool.size, pool.step, pool.padding))
    if pooling == "conv":
        weight = np.zeros((channels, channels, *size), np.float32)
        weight[np.arange(channels), np.arange(channels)] = 1
        bias = np.zeros(channels, np.float32)
        return nir.Conv2d(shape[1:], weight, stride, padding, ONES, 1, bias)
    node = nir.AvgPool2d if pooling == "avg" else nir.SumPool2d
    return node(np.array(size), np.array(stride), np.array(padding))


def _make_vote(nir: Any, network: Network) -> Any:
    """Return the average over the outputs of each class, as weights."""
    count = len(network.classes)
    weight = np.kron(np.eye(count), np.full((1, network.vote), 1 / network.vote))
    return nir.Affine(weight.astype(np.float32), np.zeros(count, np.float32))
