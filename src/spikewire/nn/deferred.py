"""Tensors without values: BatchNorm, and what follows it, that has not run yet."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from spikewire.errors import SpikewireError
from spikewire.nn.fusion import run_fused
from spikewire.nn.recognition import read_neuron

RESHAPES = {"view", "reshape", "flatten", "unflatten", "contiguous"}
FACTS = {"shape", "ndim", "dtype", "device", "is_cuda", "layout", "size", "dim"}
FACTS |= {"__len__", "numel", "is_floating_point"}


class Work(NamedTuple):
    """What a deferred tensor stands for: BatchNorm of x, then perhaps neurons."""

    x: Tensor
    norm: nn.BatchNorm2d
    grad: bool  # whether gradients were enabled when it was deferred
    runs: list[bool]  # one item from the first run of the BatchNorm on, alone or with neurons
    neuron: nn.Module | None = None

    def take_norm(self) -> nn.BatchNorm2d:
        """Return the BatchNorm to run; after the first run a copy, so that statistics move once."""
        if not self.runs:
            self.runs.append(True)
            return self.norm
        norm = copy.copy(self.norm)
        norm._buffers = {name: value.clone() for name, value in norm.named_buffers()}
        return norm


class Deferred(Tensor):
    """A tensor without values whose work is not done yet; any use of its values does it."""

    work: Work
    done: list[Tensor]  # the result, shared by all reshaped forms

    @staticmethod
    def of(work: Work, shape: torch.Size, done: list[Tensor]) -> "Deferred":
        """Return the deferred result of some work, in a shape."""
        options: dict[str, Any] = {"dtype": work.x.dtype, "device": work.x.device}
        self = Tensor._make_wrapper_subclass(Deferred, shape, **options)
        self.work, self.done = work, done
        return self

    def compute(self) -> Tensor:
        """Do the work, once; return the values."""
        if self.work.grad and not torch.is_grad_enabled():
            raise _refusal(
                "an autograd function, a container's backward hook or other no_grad code"
            )
        if not self.done:
            self.done.append(
                run_norm(self.work) if self.work.neuron is None else run_neuron(self.work)
            )
        with torch._C.DisableTorchFunctionSubclass():
            return self.done[0].reshape(self.shape)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Answer shape and type, keep reshaping deferred, and compute before anything else."""
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if name in FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        first = args[0] if args else None
        if name in RESHAPES and isinstance(first, Deferred) and not first.done:
            with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
                shape = func(torch.empty(first.shape, device="meta"), *args[1:], **(kwargs or {}))
            if shape.shape[-3:] == first.shape[-3:]:
                return Deferred.of(first.work, shape.shape, first.done)
        values = tree_map_only(Deferred, Deferred.compute, (args, kwargs or {}))
        return func(*values[0], **values[1])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        """Refuse what reaches the tensor below autograd: its gradient would be lost."""
        raise _refusal(str(func))


def _refusal(what: str) -> SpikewireError:
    return SpikewireError(
        f"fuse: {what} uses the output of a fused BatchNorm, whose gradient would be lost; "
        "call spikewire.unfuse(model)"
    )


def run_norm(work: Work) -> Tensor:
    """Run BatchNorm alone."""
    return type(work.norm).forward(work.take_norm(), work.x)


def run_neuron(work: Work, pool: bool = False) -> Tensor:
    """Run BatchNorm, neurons and perhaps a pool as one kernel; time is the first dimension."""
    assert work.neuron is not None
    found = read_neuron(work.neuron)
    assert found is not None
    norm, x = work.take_norm(), work.x
    return run_fused(norm, found.constants, found.rate, x, len(x), pool=pool)
