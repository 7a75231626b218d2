"""Which modules of torch and SpikingJelly the fused kernels can run, and their constants."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from spikewire.nn.fusion import is_neuron, is_norm, is_pool
from spikewire.nn.membrane import NeuronConstants

SPIKINGJELLY = "spikingjelly.activation_based."


class Read(NamedTuple):
    """Constants of neurons, and their rate where it is learnt."""

    constants: NeuronConstants
    rate: Tensor | None


def is_known_norm(module: nn.Module) -> bool:
    """Return whether a module is a BatchNorm2d of torch or SpikingJelly that kernels can run."""
    return _is(module, "BatchNorm2d") and is_norm(module)


def is_known_pool(module: nn.Module) -> bool:
    """Return whether a module is a 2x2 max-pool of torch or SpikingJelly."""
    return _is(module, "MaxPool2d") and is_pool(module)


def _is(module: nn.Module, name: str) -> bool:
    """Return whether a module is a layer of torch, or of SpikingJelly, with this name."""
    kind = type(module)
    ours = kind.__module__.startswith(("torch.nn.", SPIKINGJELLY + "layer"))
    return ours and kind.__name__ == name


def read_neuron(module: nn.Module) -> Read | None:
    """Return the constants of neurons that the kernels can run, None for any other module."""
    if is_neuron(module):
        return Read(module.constants, module.rate)
    kind = type(module)
    reader = READERS.get(kind.__name__)
    if reader is None or not kind.__module__.startswith(SPIKINGJELLY + "neuron"):
        return None
    node: Any = module
    surrogate = read_surrogate(node.surrogate_function)
    plain = node.step_mode == "m" and not node.store_v_seq and surrogate is not None
    if not plain or getattr(node, "_neuron_precision", None) is not None:
        return None
    if not getattr(node, "decay_input", True):
        return None
    tau, rate = reader(node)
    soft = node.v_reset is None
    reset = ("soft" if soft else "hard") + ("" if node.detach_reset else " attached")
    rest = 0.0 if soft else float(node.v_reset)
    return Read(NeuronConstants(tau, float(node.v_threshold), rest, surrogate or "", reset), rate)


READERS: dict[str, Callable[[Any], tuple[float | None, Tensor | None]]] = {
    "LIFNode": lambda node: (float(node.tau), None),
    "IFNode": lambda node: (None, None),
    "ParametricLIFNode": lambda node: (None, node.w.sigmoid()),
}
SURROGATES = {("ATan", 2.0): "atan", ("Sigmoid", 4.0): "sigmoid"}
SURROGATES |= {("PiecewiseQuadratic", 1.0): "triangle", ("Rect", 1.0): "rectangle"}


def read_surrogate(function: Any) -> str | None:
    """Return the name of SpikingJelly's surrogate among ours, None for any other."""
    kind = type(function)
    theirs = kind.__module__.startswith(SPIKINGJELLY + "surrogate")
    if not theirs or not function.spiking:
        return None
    return SURROGATES.get((kind.__name__, float(getattr(function, "alpha", 0.0))))
