"""`fuse`: the fused kernels for a model that is not one of spikewire's, module by module.

A BatchNorm that is followed by neurons does not run: it returns a `Deferred`, a tensor that knows
what it stands for. Neurons that get it run both as one kernel, and a 2x2 max-pool after them joins
in. Anything else that uses it makes the BatchNorm run first, so the results are the same.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from spikewire.errors import SpikewireError
from spikewire.kernels import fusible
from spikewire.nn.fusion import is_neuron, is_norm, is_pool, run_fused
from spikewire.nn.membrane import NeuronConstants
from spikewire.nn.recurrent import is_hooked

NORM_CLASSES = ("BatchNorm2d",)
POOL_CLASSES = ("MaxPool2d",)
SPIKINGJELLY = "spikingjelly.activation_based."
RESHAPES = {"view", "reshape", "flatten", "unflatten", "contiguous"}
FACTS = {"shape", "ndim", "dtype", "device", "is_cuda", "layout", "size", "dim"}
FACTS |= {"__len__", "numel", "is_floating_point"}


class Read(NamedTuple):
    """Constants of neurons, and their rate where it is learnt."""

    constants: NeuronConstants
    rate: Tensor | None


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
        if not (_is(norm, NORM_CLASSES) and is_norm(norm)) or read_neuron(neuron) is None:
            continue
        pool = after if after is not None and _is(after, POOL_CLASSES) and is_pool(after) else None
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


def _is(module: nn.Module, names: tuple[str, ...]) -> bool:
    """Return whether a module is a layer of torch, or of SpikingJelly, with one of these names."""
    kind = type(module)
    ours = kind.__module__.startswith(("torch.nn.", SPIKINGJELLY + "layer"))
    return ours and kind.__name__ in names


def install(module: Any, fused: "FusedNorm | FusedNeuron | FusedPool") -> None:
    """Set the methods of one module; deep copies of the module get their own."""
    module.forward = fused.forward
    if isinstance(fused, FusedNeuron) and hasattr(type(module), "reset"):
        module.reset = fused.reset


# ---------------------------------------------------------------------- neurons


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
    if not getattr(function, "spiking", False):
        return None
    return SURROGATES.get((type(function).__name__, float(getattr(function, "alpha", 0.0))))


# ---------------------------------------------------------------------- deferred tensors


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


# ---------------------------------------------------------------------- methods of fused modules


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
