"""`fuse`: the fused kernels for a model that is not one of spikewire's, module by module.

A BatchNorm that is followed by neurons does not run: it returns a `Deferred`, a tensor that knows
what it stands for. Neurons that get it run both as one kernel, and a 2x2 max-pool after them joins
in. Anything else that uses it makes the BatchNorm run first, so the results are the same.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.kernels import fusible
from spikewire.nn.deferred import Deferred, Work, run_neuron
from spikewire.nn.fusion import is_norm
from spikewire.nn.recognition import is_known_norm, is_known_pool, read_neuron
from spikewire.nn.recurrent import is_hooked


def fuse(model: nn.Module) -> int:
    """Run BatchNorm, neurons and 2x2 max-pools of a model as fused kernels, where they meet.

    Recognised are `nn.BatchNorm2d` and `nn.MaxPool2d`, also those of SpikingJelly in multi-step
    mode, the neurons of spikewire, and SpikingJelly's `LIFNode`, `IFNode` and `ParametricLIFNode`
    in multi-step mode with `decay_input` and with the surrogates `ATan(2)`, `Sigmoid(4)`,
    `PiecewiseQuadratic(1)` or `Rect(1)`. All other modules stay as they are, and so does every
    module while kernels are off, on a CPU, or compiled, and a BatchNorm while it or its neurons
    have a hook. Names, parameters and buffers of the model do not change. A neuron of SpikingJelly
    must be reset before every call. Spikes are in channels-last memory: `reshape` them, as `view`
    may fail.

    Args:
        model: any model; changed in place. `unfuse` changes it back.

    Returns:
        The number of groups: BatchNorm layers that neurons follow in the order of their definition.

    Example:
        >>> spikewire.fuse(model)
        17
    """
    groups = 0
    leaves = [*_leaves(model)]
    for norm, neuron, after in zip(leaves, leaves[1:], [*leaves[2:], None], strict=False):
        if not is_known_norm(norm) or read_neuron(neuron) is None:
            continue
        pool = after if after is not None and is_known_pool(after) else None
        install(norm, FusedNorm(norm, neuron))
        install(neuron, FusedNeuron(neuron, pool))
        if pool is not None:
            install(pool, FusedPool(pool))
        groups += 1
    return groups


def unfuse(model: nn.Module) -> None:
    """Undo `fuse`.

    Args:
        model: a model, fused or not; changed in place.
    """
    for module in model.modules():
        for name in ("forward", "reset"):
            if isinstance(getattr(vars(module).get(name), "__self__", None), Fused):
                delattr(module, name)


def _leaves(model: nn.Module) -> Iterator[nn.Module]:
    """Yield modules without children, in order; what is inside a neuron counts as part of it."""
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside:
            continue
        known = read_neuron(module) is not None
        if known:
            inside |= {id(child) for child in module.modules()}
        if known or not any(True for _ in module.children()):
            yield module


def install(module: Any, fused: "FusedNorm | FusedNeuron | FusedPool") -> None:
    """Set the methods of one module; deep copies of the module get their own."""
    module.forward = fused.forward
    if isinstance(fused, FusedNeuron) and hasattr(type(module), "reset"):
        module.reset = fused.reset


class Fused:
    """The methods that replace those of one module, and the module that may finish its work."""

    def __init__(self, module: nn.Module, follower: nn.Module | None = None) -> None:
        self.module: Any = module
        self.follower = follower

    def may_defer(self) -> bool:
        """Return whether a module follows, and no hook is to see the values in between."""
        return self.follower is not None and not is_hooked(self.module, self.follower)

    def original(self, *inputs: Any) -> Any:
        """Run the module as it was."""
        values = [x.compute() if isinstance(x, Deferred) else x for x in inputs]
        return type(self.module).forward(self.module, *values)


class FusedNorm(Fused):
    """A BatchNorm that leaves its work to the neurons."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a deferred tensor of the shape of x, where the kernels may run."""
        if isinstance(x, Deferred) or torch.compiler.is_compiling() or not fusible(x, 1):
            return self.original(x)
        if not (self.may_defer() and is_norm(self.module) and self.takes(x)):
            return self.original(x)
        work = Work(x, self.module, torch.is_grad_enabled(), [])
        return Deferred.of(work, x.shape, [])

    def takes(self, x: Tensor) -> bool:
        """Return whether x has the dimensions and channels of the BatchNorm."""
        many = getattr(self.module, "step_mode", "s") == "m"
        return x.ndim == (5 if many else 4) and x.shape[-3] == self.module.num_features


class FusedNeuron(Fused):
    """Neurons that run the BatchNorm before them, and leave a pool after them to do all."""

    used = False  # since the last reset

    def forward(self, x: Tensor) -> Tensor:
        """Return spikes, deferred where a pool follows."""
        if not isinstance(x, Deferred) or x.done or x.work.neuron is not None or x.ndim != 5:
            return self.original(x)
        if read_neuron(self.module) is None or not fusible(x.work.x, len(x)):
            return self.original(x)
        self.check_state()
        work = x.work._replace(x=x.work.x.reshape(x.shape), neuron=self.module)
        return Deferred.of(work, x.shape, []) if self.may_defer() else run_neuron(work)

    def check_state(self) -> None:
        """Refuse neurons that continue from an earlier call, which the kernels do not."""
        memories = getattr(self.module, "_memories", {})
        kept = self.used or any(isinstance(value, Tensor) for value in memories.values())
        if hasattr(type(self.module), "reset") and kept:
            raise SpikewireError(
                "fuse: a neuron was not reset since its last call; reset the network before every "
                "batch (functional.reset_net), or call spikewire.unfuse(model)"
            )
        self.used = True

    def reset(self) -> None:
        """Reset the neurons."""
        self.used = False
        type(self.module).reset(self.module)


class FusedPool(Fused):
    """A pool that runs with the BatchNorm and neurons before it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return pooled spikes in the shape that the pool of x has."""
        if not isinstance(x, Deferred) or x.done or x.work.neuron is None:
            return self.original(x)
        if min(x.shape[-2:]) < 2:
            return self.original(x)
        pooled = run_neuron(x.work, True)
        return pooled.reshape(*x.shape[:-2], *pooled.shape[-2:])
