"""The modules that own a weight, alone or shared; the synaptic layers that are not pruned."""

from collections.abc import Sequence

from torch import nn

from spikewire.nn.synapses import synaptic_layers
from spikewire.pruning.layers import Layer


def owning_modules(model: nn.Module) -> dict[int, nn.Module]:
    """Return the module of every parameter, by the identity of the parameter."""
    return {id(p): m for m in model.modules() for p in m.parameters(recurse=False)}


def sharing_modules(model: nn.Module, weight: nn.Parameter) -> list[nn.Module]:
    """Return the modules that have a weight; several share a tied one."""
    return [m for m in model.modules() if any(p is weight for p in m.parameters(recurse=False))]


def unpruned_layers(model: nn.Module, layers: Sequence[Layer]) -> dict[str, nn.Module]:
    """Return the synaptic layers of a model that are not pruned, by the names of their weights."""
    pruned = {id(layer.weight) for layer in layers}
    return {n: m for n, m in synaptic_layers(model).items() if id(m.weight) not in pruned}
