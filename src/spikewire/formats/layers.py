"""Which part of a network a torch module is."""

from enum import Enum
from typing import Any

from torch import nn

from spikewire.formats.pooling import MODULES
from spikewire.nn.batchnorm import BatchNormPerStep
from spikewire.nn.layers import Dropout


class Kind(Enum):
    """The parts of a network, besides neurons."""

    SYNAPSES = "synapses"
    NORM = "norm"
    POOL = "pool"
    SAME = "same"


SYNAPSES = (nn.Conv2d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, BatchNormPerStep)
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
UNCHANGED = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d,
             nn.AlphaDropout, Dropout)  # fmt: skip
KINDS: dict[Kind, tuple[Any, ...]] = {
    Kind.SYNAPSES: SYNAPSES,
    Kind.NORM: NORMS,
    Kind.POOL: POOLS,
    Kind.SAME: UNCHANGED,
}
SPIKINGJELLY = {
    **{base.__name__: kind for kind, bases in KINDS.items() for base in bases},
    "ThresholdDependentBatchNorm1d": Kind.NORM,
    "ThresholdDependentBatchNorm2d": Kind.NORM,
}


def read_kind(module: nn.Module) -> Kind | None:
    """Return which part a module is; None for containers and modules that are not known.

    A subclass with a forward pass of its own is not known, except the layers of SpikingJelly, which
    only add the time dimension.
    """
    kind = type(module)
    for part, bases in KINDS.items():
        for base in bases:
            if isinstance(module, base) and kind.forward is base.forward:
                return part
    if kind.__module__.startswith("spikingjelly.activation_based.layer"):
        return SPIKINGJELLY.get(kind.__name__)
    return None


def pool_options(module: Any) -> tuple[str, dict[str, Any]]:
    """Return the torch function of a pooling module, and its arguments."""
    name = next(base.__name__ for base in type(module).__mro__ if base.__name__ in MODULES)
    options = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "count_include_pad")
    options += ("divisor_override", "return_indices", "output_size")
    return MODULES[name], {key: getattr(module, key) for key in options if hasattr(module, key)}
