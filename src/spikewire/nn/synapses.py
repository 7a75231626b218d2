"""Which modules of a model are synaptic layers, neurons or normalisation, in any library."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from spikewire.nn.adaptive import AdaptiveCell
from spikewire.nn.neurons import Neuron
from spikewire.nn.recurrent import Cell

SYNAPTIC = (nn.Linear, _ConvNd)
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)
NEURON_MODULES = (
    "spikingjelly.activation_based.neuron",
    "snntorch._neurons",
    "norse.torch.module.snn",
)


def synaptic_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the synaptic layers of a model: linear and convolutional, also transposed.

    Args:
        model: any module; a synaptic layer itself counts too.

    Returns:
        The layers by the names of their weights, in the order of `model.named_modules()`.

    Example:
        >>> list(synaptic_layers(spikewire.build("mnist-mlp")))
        ['fc1.weight', 'fc2.weight']
    """
    found = ((name, m) for name, m in model.named_modules() if isinstance(m, SYNAPTIC))
    return {f"{name}.weight" if name else "weight": module for name, module in found}


def is_spiking(module: nn.Module) -> bool:
    """Return whether a module is a layer of neurons: ours, SpikingJelly's, snnTorch's or Norse's.

    Args:
        module: any module; only its own class counts, not the modules inside it.

    Returns:
        True for an instance of a neuron class of one of these libraries, or of a subclass.
    """
    origins = tuple(kind.__module__ for kind in type(module).__mro__)
    return isinstance(module, Neuron | Cell | AdaptiveCell) or any(
        x.startswith(NEURON_MODULES) for x in origins
    )
