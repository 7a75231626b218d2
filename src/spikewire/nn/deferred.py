"""Tensors without values: BatchNorm, and what follows it, that has not run yet.

A `Deferred` stands for BatchNorm of x, then perhaps the sum with a shortcut, then perhaps neurons.
Neurons that get it run everything as one kernel (`spikewire.nn.fused_modules`). Any other use of it
runs the layers one after another, once, and uses the values.
"""

import copy
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_map_only

from spikewire.errors import SpikewireError
from spikewire.nn.fusion import move_statistics, run_fused
from spikewire.nn.recognition import read_neuron

ADDITIONS = {"add", "add_"}  # `+`, `+=` and `torch.add` have these names too
RESHAPES = {"view", "reshape", "flatten", "unflatten"}
FACTS = {"shape", "ndim", "dtype", "device", "is_cuda", "layout", "size", "dim"}
FACTS |= {"__len__", "numel", "is_floating_point"}


class Operand(NamedTuple):
    """A tensor that is read later, and must not be modified until then."""

    tensor: Tensor
    version: int | None

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """Return a tensor as it is now."""
        return cls(tensor, version(tensor))

    def read(self) -> Tensor:
        """Return the tensor."""
        if version(self.tensor) != self.version:
            raise SpikewireError(
                "fuse: an input or parameter of a fused BatchNorm, or a shortcut that is added to "
                "its output, was modified in place before the output was used; call "
                "spikewire.unfuse(model)"
            )
        return self.tensor


def version(x: Tensor) -> int | None:
    """Return how many times a tensor was modified in place, None if that is not recorded."""
    return None if x.is_inference() else x._version


class Work(NamedTuple):
    """What a deferred tensor stands for: ``neuron(norm(x) + add)``, the last two optional."""

    x: Operand
    norm: nn.BatchNorm2d
    constants: tuple[Operand, ...]  # mean, variance, weight and bias
    grad: bool  # whether gradients were enabled when it was deferred
    add: Operand | None = None
    neuron: nn.Module | None = None

    @classmethod
    def of(cls, x: Tensor, norm: nn.BatchNorm2d) -> Self:
        """Return BatchNorm of x as it is now; in training, running statistics move at once."""
        statistics = move_statistics(norm, x.flatten(0, -4))
        norm = copy.copy(norm)
        norm._parameters, norm._buffers = dict(norm._parameters), dict(norm._buffers)
        if norm.training:
            norm._buffers = dict.fromkeys(norm._buffers)  # statistics do not move again
        constants = tuple(Operand.of(y) for y in (*statistics, norm.weight, norm.bias))
        return cls(Operand.of(x), norm, constants, torch.is_grad_enabled())

    def map(self, function: Any) -> "Work":
        """Return the same work on other operands."""
        add = None if self.add is None else Operand.of(function(self.add.read()))
        return self._replace(x=Operand.of(function(self.x.read())), add=add)

    def inputs(self) -> list[Tensor]:
        """Return all tensors that may get a gradient, operands first."""
        operands = [self.x.tensor] if self.add is None else [self.x.tensor, self.add.tensor]
        neurons = [] if self.neuron is None else self.neuron.parameters()
        return [*operands, self.norm.weight, self.norm.bias, *neurons]

    def run(self, pool: bool = False) -> Tensor:
        """Do it: neurons, and perhaps a pool after them, as one kernel with all before them."""
        x, add = self.x.read(), None if self.add is None else self.add.read()
        mean, variance, _, _ = (y.read() for y in self.constants)
        if self.neuron is None:
            out = type(self.norm).forward(self.norm, x)
            return out if add is None else out + add.reshape(out.shape)
        found = read_neuron(self.neuron)
        assert found is not None
        more = {"pool": pool, "add": add, "statistics": (mean, variance)}
        return run_fused(self.norm, found.constants, found.rate, x, len(x), **more)


class Pending:
    """What a deferred tensor and its reshaped forms have in common: work, later its result."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.value: Tensor | None = None
        self.version: int | None = None

    def compute(self) -> Tensor:
        """Do the work, once, with gradients if they were enabled when it was deferred."""
        if self.value is None:
            with torch.set_grad_enabled(self.work.grad):
                self.value = self.work.run()
            self.version = version(self.value)
        return self.value

    def peek(self) -> Tensor:
        """Return the values without gradients; where autograd does not record, keep none."""
        return self.work.run() if self.value is None else self.value.detach()

    def is_modified(self, work: Work) -> bool:
        """Return whether it was modified in place since it stood for some work."""
        return self.work is not work or (
            self.value is not None and version(self.value) != self.version
        )


class Deferred(Tensor):
    """A tensor without values whose work is not done yet; any use of its values does it."""

    pending: Pending

    @staticmethod
    def of(pending: Pending, shape: torch.Size) -> "Deferred":
        """Return the deferred result of some work, in a shape."""
        return Link.apply(pending, shape, *pending.work.inputs())  # pyright: ignore

    def work(self) -> Work | None:
        """Return the work if something else may still do it, None if this tensor must."""
        work = self.pending.work
        free = self.pending.value is None and work.grad == torch.is_grad_enabled()
        return work if free and not self.is_foreign() else None

    def is_foreign(self) -> bool:
        """Return whether an autograd function, such as a checkpoint, made it without gradients."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.requires_grad and not self.pending.work.grad

    def compute(self) -> Tensor:
        """Return the values."""
        value = self.pending.compute()
        if self.is_foreign() and not value.requires_grad:
            with torch._C.DisableTorchFunctionSubclass():
                value = self.pending.value = self.clone()
        return value if value.shape == self.shape else value.reshape(self.shape)

    def peek(self) -> Tensor:
        """Return the values without gradients."""
        return self.pending.peek().reshape(self.shape)

    def plus(self, other: Any, in_place: bool) -> "Deferred | None":
        """Return the sum with a tensor of the same kind deferred, None if it cannot be."""
        work = self.work()
        if work is None or work.add is not None or work.neuron is not None:
            return None
        if not self.is_like(other):
            return None
        work = work._replace(add=Operand.of(computed(other)))
        pending = self.pending if in_place else Pending(work)
        pending.work = work
        return Deferred.of(pending, self.shape)

    def is_like(self, other: Any) -> bool:
        """Return whether another tensor has the same shape and type, and other work."""
        if type(other) not in (Tensor, nn.Parameter, Deferred):
            return False
        kinds = [(x.shape, x.dtype, x.device, x.layout) for x in (self, other)]
        return kinds[0] == kinds[1] and getattr(other, "pending", None) is not self.pending

    def shares_memory(self, name: str, options: Any) -> bool:
        """Return whether a function may stay deferred: its result has the memory of this tensor."""
        work = self.work()
        if work is None or name in RESHAPES:
            return work is not None
        plain = work.neuron is None and work.x.tensor.is_contiguous()  # as the output then is
        return name == "contiguous" and not options and plain

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Answer shape and type, keep reshapes and one sum deferred, compute before the rest."""
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        first: Any = args[0] if args else None
        if name in FACTS or (name == "requires_grad" and first.pending.value is None):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if isinstance(first, Deferred) and first.shares_memory(name, args[1:] or kwargs):
            with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
                like = torch.empty(first.shape, dtype=first.dtype, device="meta")
                like = func(like, *args[1:], **(kwargs or {}))
            if like.shape[-3:] == first.shape[-3:] and like.dtype == first.dtype:
                return Deferred.of(first.pending, like.shape)
        if name in ADDITIONS and len(args) == 2 and not kwargs:
            total = _add(*args, in_place=name == "add_")
            if total is not None:
                return total
        values = tree_map_only(Deferred, computed, (args, kwargs or {}))
        return func(*values[0], **values[1])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        """Compute for code that reaches the tensor below autograd; `Link` has the gradient."""
        if func._schema.is_mutable:
            raise _refusal(f"{func}, which modifies it in place,")
        values = tree_map_only(Deferred, Deferred.peek, (args, kwargs or {}))
        return func(*values[0], **values[1])


def _add(a: Any, b: Any, in_place: bool) -> Deferred | None:
    """Return a sum deferred, by the first of both that can be; None if it must be computed."""
    total = a.plus(b, in_place) if isinstance(a, Deferred) else None
    if total is None and isinstance(b, Deferred) and not in_place:
        total = b.plus(a, False)
    return total


def computed(x: Any) -> Any:
    """Return the values of a deferred tensor, anything else as it is."""
    return x.compute() if isinstance(x, Deferred) else x


def _refusal(what: str) -> SpikewireError:
    return SpikewireError(
        f"fuse: {what} uses the output of a fused BatchNorm, whose gradient would be lost; "
        "call spikewire.unfuse(model)"
    )


class Link(torch.autograd.Function):
    """The gradient of a deferred tensor that an autograd function gets instead of its values.

    Such a function, also that of a backward hook, computes the values where gradients are off.
    Backward runs the layers once more, with gradients.
    """

    @staticmethod
    def forward(ctx: Any, pending: Pending, shape: torch.Size, *_: Tensor) -> Deferred:
        """Return a deferred tensor."""
        ctx.pending, ctx.work = pending, pending.work
        x = pending.work.x.tensor
        self = Tensor._make_wrapper_subclass(Deferred, shape, dtype=x.dtype, device=x.device)
        self.pending = pending
        return self

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of operands and parameters."""
        if ctx.pending.is_modified(ctx.work):
            raise _refusal("an autograd function, after a modification in place,")
        needed = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            work = ctx.work.map(lambda x: x.detach().requires_grad_())
            out = work.run()
        inputs = [x for x, need in zip(work.inputs(), needed, strict=True) if need]
        found = iter(torch.autograd.grad(out, inputs, grad.reshape(out.shape), allow_unused=True))
        return None, None, *(next(found) if need else None for need in needed)
