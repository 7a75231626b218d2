"""A trained torch model as the record of a network.

BatchNorm is folded into the weights and the bias of the synapses before it,
``w' = w gamma / sqrt(var + eps)`` and ``b' = beta + (b - mean) gamma / sqrt(var + eps)``. Average
pooling over k x k spikes becomes their sum, with ``1 / k²`` in the next weights. Zeros stay zeros.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError, check
from spikewire.formats.network import Network, Neuron, Pool, Stage
from spikewire.nn import neurons
from spikewire.nn.layers import Dropout, Spiking

PARTS = ("norm", "neuron", "pool", "vote")  # what may follow synapses, in this order
Parts = dict[str, Any]


def trace_model(model: Spiking, **fields: Any) -> Network:
    """Return the record of a trained network.

    Args:
        model: A network in evaluation mode whose `input_shape` is set: convolutions and fully
            connected layers, each followed by at most one BatchNorm, neuron, pooling and vote.
        **fields: Further fields of `Network`: `classes`, `mean`, `std`, `about`. Classes are
            numbered from 0 unless given.

    Returns:
        The network, with BatchNorm and average pooling folded into the weights.

    Raises:
        SpikewireError: If the model has a layer, or an order of layers, that is not supported.

    Example:
        >>> network = trace_model(spikewire.build("mnist-mlp").eval())
        >>> [stage.name for stage in network.stages]
        ['fc1', 'fc2']
    """
    check(isinstance(model, Spiking), "model", type(model).__name__, "a spikewire.nn.Spiking")
    check(model.input_shape is not None, "input_shape", None, "known to the network")
    collected = _collect_parts(model)
    vote = collected[-1].pop("vote", 1)
    before = [{}, *collected]
    stages = tuple(_make_stage(*pair) for pair in zip(collected, before, strict=False))
    fields.setdefault("classes", tuple(map(str, range(stages[-1].shape[0] // vote))))
    return Network(
        stages=stages,
        input_shape=tuple(model.input_shape or ()),
        time_steps=model.time_steps,
        vote=vote,
        **fields,
    )


def _collect_parts(model: Spiking) -> list[Parts]:
    """Return one record per layer of synapses, with what follows it."""
    collected: list[Parts] = []
    for name, layer in model.named_children():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            collected.append({"name": name, "synapses": layer})
        elif isinstance(layer, nn.Flatten | Dropout):
            continue
        else:
            _add_part_(collected, name, layer)
    check(bool(collected), "model", type(model).__name__, "one with synapses")
    return collected


def _add_part_(collected: list[Parts], name: str, layer: nn.Module) -> None:
    """Add a layer without synapses to the last layer of synapses."""
    kind = type(layer).__name__
    if not collected:
        raise SpikewireError(f"{name}: {kind} before the first synapses is not supported")
    found = _read_part(name, layer)
    if found is None:
        raise SpikewireError(f"{name}: {kind} is not supported")
    part, value = found
    later = [other for other in PARTS[PARTS.index(part) :] if other in collected[-1]]
    if later:
        order = f"at most one each of {', '.join(PARTS)}, in this order"
        raise SpikewireError(f"{name}: a {part} after a {later[0]} is not supported; {order}")
    collected[-1][part] = value


def _read_part(name: str, layer: nn.Module) -> tuple[str, Any] | None:
    """Return which of `PARTS` a layer is, and its constants; None if it is none of them."""
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return "norm", layer
    if isinstance(layer, neurons.Neuron):
        return "neuron", Neuron(layer.tau, layer.threshold, layer.rest, layer.reset)
    if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
        return "pool", _read_pool(name, layer)
    if isinstance(layer, nn.AvgPool1d) and layer.kernel_size == layer.stride:
        return "vote", int(np.ravel(layer.kernel_size)[0])
    return None


def _read_pool(name: str, layer: nn.MaxPool2d | nn.AvgPool2d) -> Pool:
    sizes = {int(n) for part in (layer.kernel_size, layer.stride) for n in np.ravel(part)}
    supported = (
        not np.any(layer.padding)
        and not layer.ceil_mode
        and {int(n) for n in np.ravel(getattr(layer, "dilation", 1))} == {1}
        and getattr(layer, "divisor_override", None) is None
    )
    allowed = "square, without overlap, padding, dilation or divisor_override"
    check(len(sizes) == 1 and supported, f"{name}: pooling", sizes, allowed)
    return Pool("max" if isinstance(layer, nn.MaxPool2d) else "sum", sizes.pop())


@torch.no_grad()
def _make_stage(parts: Parts, before: Parts) -> Stage:
    """Return the stage of one layer of synapses; `before` are the parts of the previous one."""
    layer, norm, pool = parts["synapses"], parts.get("norm"), before.get("pool")
    weight = _to_double(layer.weight)
    bias = weight.new_zeros(len(weight)) if layer.bias is None else _to_double(layer.bias)
    if pool and pool.kind == "sum":
        weight = weight / pool.size**2
    if norm is not None:
        gain, shift = _read_affine(norm)
        weight = weight * gain.view(-1, *[1] * (weight.ndim - 1))
        bias = bias * gain + shift
    flat = weight.float().flatten().numpy()
    index = np.flatnonzero(flat)
    return Stage(
        name=parts["name"],
        shape=tuple(weight.shape),
        index=index.astype(np.int64),
        values=flat[index],
        bias=bias.float().numpy(),
        padding=_read_padding(parts["name"], layer),
        neuron=parts.get("neuron"),
        pool=parts.get("pool"),
    )


def _read_affine(norm: Any) -> tuple[Tensor, Tensor]:
    """Return gain and shift per channel of a BatchNorm in evaluation mode."""
    check(norm.running_var is not None, "BatchNorm", "no running statistics", "with statistics")
    gain = (_to_double(norm.running_var) + norm.eps).rsqrt()
    gain = gain if norm.weight is None else gain * _to_double(norm.weight)
    shift = -_to_double(norm.running_mean) * gain
    return gain, shift if norm.bias is None else shift + _to_double(norm.bias)


def _read_padding(name: str, layer: nn.Linear | nn.Conv2d) -> int:
    if isinstance(layer, nn.Linear):
        return 0
    plain = {*layer.stride, *layer.dilation, layer.groups} == {1}
    check(plain, f"{name}: stride, dilation, groups", "other than 1", "1 to be exported")
    sides = {layer.padding} if isinstance(layer.padding, str) else set(layer.padding)
    supported = len(sides) == 1 and "same" not in sides and layer.padding_mode == "zeros"
    check(supported, f"{name}: padding", layer.padding, "one number of zeros on all sides")
    return 0 if "valid" in sides else int(sides.pop())


def _to_double(tensor: Tensor) -> Tensor:
    return tensor.detach().double().cpu()
