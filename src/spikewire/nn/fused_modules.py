"""`fuse`: the fused kernels for a model that is not one of spikewire's, module by module.

A BatchNorm of a fused model does not run: it returns a `Deferred` tensor. Neurons that get it, also
after the sum with a shortcut, run both as one kernel, and a 2x2 max-pool after them joins in.
Anything else that uses it makes the BatchNorm run first, so the results are the same.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.kernels import fusible
from spikewire.nn.deferred import Deferred, Pending, Work, computed
from spikewire.nn.fusion import is_norm, is_replaced
from spikewire.nn.recognition import is_known_norm, is_known_pool, read_neuron
from spikewire.nn.recurrent import is_hooked


def fuse(model: nn.Module) -> int:
    """Run BatchNorm, neurons and 2x2 max-pools of a model as fused kernels, where they meet.

    A kernel runs BatchNorm and the neurons that get its output, with a 2x2 max-pool after them, or
    with the sum of a shortcut between them: ``neuron(norm(x) + shortcut)``, in either order, as
    ``+``, ``+=``, `torch.add` or `Tensor.add_`, where both have the same shape and dtype. They need
    not be defined next to each other.

    Recognised are `nn.BatchNorm2d` and `nn.MaxPool2d`, also those of SpikingJelly in multi-step
    mode, the neurons of spikewire, and SpikingJelly's `LIFNode`, `IFNode` and `ParametricLIFNode`
    in multi-step mode with `decay_input` and with the surrogates `ATan(2)`, `Sigmoid(4)`,
    `PiecewiseQuadratic(1)` or `Rect(1)`. All other modules stay as they are, and so does every
    module while kernels are off, on a CPU, or compiled, and a BatchNorm while it has a hook. Any
    other use of the output of BatchNorm, such as a hook that reads it, makes it run alone. Names,
    parameters and buffers of the model do not change. A neuron of SpikingJelly must be reset before
    every call, and any use of its membrane potential after a call is refused, as kernels do not
    keep it. Spikes are in channels-last memory: `reshape` them, as `view` may fail.

    Args:
        model: any model; changed in place. `unfuse` changes it back.

    Returns:
        The number of neuron layers with a BatchNorm defined between the previous neuron layer and
        them, which is how many kernels run per call if `forward` follows the order of definition.
        Where it is 0, the model was not changed.

    Example:
        >>> spikewire.fuse(model)
        17
    """
    leaves = [module for module in _leaves(model) if not is_replaced(module)]
    groups = count_groups(leaves)
    if not groups:
        return 0
    for module, after in zip(leaves, [*leaves[1:], None], strict=True):
        if is_known_norm(module):
            install(module, FusedNorm(module))
        elif read_neuron(module) is not None:
            pool = after if after is not None and is_known_pool(after) else None
            install(module, FusedNeuron(module, pool))
            if pool is not None:
                install(pool, FusedPool(pool))
    return groups


def unfuse(model: nn.Module) -> None:
    """Undo `fuse`.

    Args:
        model: a model, fused or not; changed in place.
    """
    for module in model.modules():
        if "forward" in vars(module) and not is_replaced(module):
            del module.forward


def count_groups(leaves: list[nn.Module]) -> int:
    """Return how many neuron layers have a BatchNorm between the previous ones and them."""
    groups, waiting = 0, False
    for module in leaves:
        if is_known_norm(module):
            waiting = True
        elif read_neuron(module) is not None:
            groups, waiting = groups + waiting, False
    return groups


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


def install(module: Any, fused: "Fused") -> None:
    """Set the forward of one module; deep copies of the module get their own."""
    module.forward = fused.forward


def is_transformed() -> bool:
    """Return whether the model is compiled, or run by `torch.func`."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


class Fused:
    """What replaces the forward of one module."""

    same_results = True  # for `is_replaced`

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the output of the module, which may be deferred."""
        one = [*inputs, *named.values()]
        if len(one) > 1:
            return self.original(*inputs, **named)
        out = self.run(*one)
        return self.original(*inputs, **named) if out is None else out

    def run(self, x: Tensor) -> Tensor | None:
        """Return the output, None where the module must run as it was."""
        raise NotImplementedError

    def original(self, *inputs: Any, **named: Any) -> Any:
        """Run the module as it was."""
        values = [computed(x) for x in inputs]
        return type(self.module).forward(
            self.module, *values, **{name: computed(x) for name, x in named.items()}
        )


class FusedNorm(Fused):
    """A BatchNorm that leaves its work to the neurons."""

    def run(self, x: Tensor) -> Tensor | None:
        """Return a deferred tensor of the shape of x, where the kernels may run."""
        if isinstance(x, Deferred) or is_transformed() or not fusible(x, 1):
            return None
        if is_hooked(self.module) or not (is_norm(self.module) and self.takes(x)):
            return None
        return Deferred.of(Pending(Work.of(x, self.module)), x.shape)

    def takes(self, x: Tensor) -> bool:
        """Return whether x has the device, dimensions and channels of BatchNorm, and is enough."""
        many, channels = getattr(self.module, "step_mode", "s") == "m", self.module.num_features
        fits = x.ndim == (5 if many else 4) and x.shape[-3] == channels < x.numel()
        return fits and x.device == self.module.weight.device


class FusedNeuron(Fused):
    """Neurons that run the BatchNorm before them, and leave a pool after them to do all."""

    def __init__(self, module: nn.Module, pool: nn.Module | None) -> None:
        super().__init__(module)
        self.pool = pool

    def run(self, x: Tensor) -> Tensor | None:
        """Return spikes, deferred where a pool follows."""
        self.require_reset()
        work = x.work() if isinstance(x, Deferred) and x.ndim == 5 else None
        if work is None or work.neuron is not None or not fusible(work.x.tensor, len(x)):
            return None
        found = read_neuron(self.module)
        if found is None or not self.is_at(found.constants.rest):
            return None
        if "v" in self.memories:
            self.memories["v"] = NotKept()
        work = work.map(lambda y: y.reshape(x.shape))._replace(neuron=self.module)
        return Deferred.of(Pending(work), x.shape) if self.may_defer(work) else work.run()

    @property
    def memories(self) -> dict[str, Any]:
        """What the neurons keep between calls; nothing where they are not SpikingJelly's."""
        return getattr(self.module, "_memories", {})

    def is_at(self, rest: float) -> bool:
        """Return whether the neurons start at rest, as the kernels do."""
        v = self.memories.get("v", rest)
        return isinstance(v, float | int) and v == rest

    def may_defer(self, work: Work) -> bool:
        """Return whether a pool follows, and no hook is to see the values in between."""
        pool = self.pool if work.add is None else None  # the kernel has a sum or a pool
        return pool is not None and not is_hooked(self.module, pool)

    def require_reset(self) -> None:
        """Refuse neurons that continue from a fused call."""
        if isinstance(self.memories.get("v"), NotKept):
            raise SpikewireError(
                "fuse: a neuron was not reset since its last call; reset the network before every "
                "batch (functional.reset_net), or call spikewire.unfuse(model)"
            )


class FusedPool(Fused):
    """A pool that runs with the BatchNorm and neurons before it."""

    def run(self, x: Tensor) -> Tensor | None:
        """Return pooled spikes in the shape that the pool of x has."""
        work = x.work() if isinstance(x, Deferred) else None
        if work is None or work.neuron is None or min(x.shape[-2:]) < 2:
            return None
        pooled = work.run(pool=True)
        return pooled.reshape(*x.shape[:-2], *pooled.shape[-2:])


class NotKept:
    """The membrane potential of neurons after a fused call: any use of it is refused."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise SpikewireError(
            "fuse: the membrane potential of a neuron was used, which fused kernels do not keep; "
            "reset the network (functional.reset_net), or call spikewire.unfuse(model)"
        )

    def __getattr__(self, name: str) -> Any:
        """Refuse an attribute; copying and pickling look for special methods first."""
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __pow__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __float__ = __bool__ = __len__ = __iter__ = __getitem__ = __array__ = _refuse

    @classmethod
    def __torch_function__(cls, *_: Any) -> NoReturn:
        """Refuse a function of torch."""
        cls()._refuse()
