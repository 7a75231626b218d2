"""Forward passes of a model in training: which are counted, and how many images each is given."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.module_tracker import ModuleTracker

from spikewire.nn.calls import has_state, keeps_state, over_time
from spikewire.nn.synapses import is_spiking

_TRACKER = ModuleTracker()


def in_backward() -> bool:
    """Return whether autograd runs: activation checkpointing then repeats forward passes."""
    return not torch.compiler.is_compiling() and _TRACKER.is_bw


def first_tensor(values: Any) -> Tensor | None:
    """Return the first tensor of nested arguments that has dimensions; None if there is none."""
    if isinstance(values, Tensor):
        return values if values.dim() else None
    if isinstance(values, Mapping):
        values = values.values()
    elif not isinstance(values, tuple | list):
        return None
    return next((x for x in map(first_tensor, values) if x is not None), None)


class Passes:
    """Watches the forward passes of a model.

    The first module that is called in a step is the one whose every call is a pass: the model, or a
    part of it where a training loop calls only that. Its images are in the first dimension of its
    first tensor, unless the first module that knows better says otherwise: a network of spikewire
    by `temporal`, a layer of SpikingJelly by its `step_mode`, neurons by the shape they take. In a
    loop over time outside of the model, the passes after the first one continue the state of its
    neurons: they are given the same images, which are counted once. A pass that resets them before
    its first synaptic layer is given other images.

    Args:
        model: the model, without wrappers.
        layers: its synaptic layers.
        active: returns whether passes are counted now.
        add: called with the number of images to add; below 0 where the first guess was too high.
        capturable: whether `add` only adds to tensors in place, which a CUDA graph repeats.

    Attributes:
        counted: whether the pass of now is counted: whether it is one of training.
        images: how many images it is given.
        first: whether no synaptic layer was called in it yet; set by whoever watches those.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[nn.Module],
        active: Callable[[], bool],
        add: Callable[[int], None],
        capturable: bool = False,
    ) -> None:
        self.active, self.add = active, add
        self.counted, self.images, self.first = False, 0, True
        self._root: nn.Module | None = None
        self._shape = torch.Size()  # of the first two dimensions of what it is given
        self._sure = False  # whether the images are not a guess
        self._begun = False  # whether a pass of this step was counted
        self._kept: list[nn.Module] = []  # neurons whose state the pass of now continues
        self._neurons = [m for m in model.modules() if is_spiking(m) and keeps_state(m)]
        self._learned: tuple[nn.Module, int] | None = None  # a root and its dimension of images
        parents, neurons = _watched(model, {*layers})

        def watch(modules: Iterable[nn.Module]) -> list[Any]:
            hook = _PassHook(self, capturable)
            return [m.register_forward_pre_hook(hook, with_kwargs=True) for m in modules]

        self._handles, self._neuron_handles = watch(parents), watch(neurons)

    def end_step(self) -> None:
        """Find the module whose calls are passes again in the next step."""
        self._root, self._begun = None, False
        if self._learned is not None:
            self._remove(self._neuron_handles)  # neurons without hooks may be fused

    def remove(self) -> None:
        """Remove the hooks."""
        self._remove(self._handles)
        self._remove(self._neuron_handles)

    def _remove(self, handles: list[Any]) -> None:
        while handles:
            handles.pop().remove()

    def enter(self, module: nn.Module, arguments: Any) -> None:
        """Begin a pass, or learn in one how many images it has."""
        if not self.active() or in_backward():
            return
        if self._root is None:
            self._root = module
        if module is self._root:
            self.counted, self.images, self.first = module.training, 0, True
            self._sure = False
            self._kept = [*filter(has_state, self._neurons)] if self._begun else []
            self._begun |= self.counted
        elif self._kept and self.first and not all(map(has_state, self._kept)):
            self._kept = []  # the model has reset them itself: these are other images
            self.add(self.images)
        if not self.counted or self._sure:
            return
        x, dimension = first_tensor(arguments), self._dimension(module)
        if x is None or (dimension is None and self.images):
            return
        images = x.shape[min(dimension or 0, x.dim() - 1)]
        if not self._kept:
            self.add(images - self.images)
        self.images, self._sure = images, dimension is not None
        if module is self._root:
            self._shape = x.shape[:2]
        elif self._sure:
            self._learn(images)

    def _dimension(self, module: nn.Module) -> int | None:
        if self._learned is not None and module is self._learned[0]:
            return self._learned[1]
        return batch_dimension(module)

    def _learn(self, images: int) -> None:
        """Note which dimension of the root's input counts images, where only one can."""
        if list(self._shape).count(images) == 1 and self._root is not None:
            self._learned = self._root, list(self._shape).index(images)


def batch_dimension(module: nn.Module) -> int | None:
    """Return the dimension of a module's input that counts images; None where it is not known."""
    temporal = getattr(module, "temporal", None)
    if isinstance(temporal, bool):
        return int(temporal)
    if getattr(module, "step_mode", None) == "m":
        return 1
    return int(over_time(module)) if is_spiking(module) else None


def _watched(model: nn.Module, layers: set[nn.Module]) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return the modules that may begin a pass, and others that know how many images it has.

    The first are the model, its layers and what contains them. Of the others, neurons in a network
    of spikewire are left out: hooks would keep them from being fused.
    """
    parents = [m for m in model.modules() if m is model or not layers.isdisjoint(m.modules())]
    ours = {x for m in model.modules() if hasattr(m, "temporal") for x in m.modules()}
    others = [m for m in model.modules() if m not in ours and m not in {*parents}]
    return parents, [m for m in others if is_spiking(m) or hasattr(m, "step_mode")]


class _PassHook:
    """The hook before a module's calls. A copy of the module has one that does nothing."""

    def __init__(self, passes: Passes, capturable: bool) -> None:
        self.passes: Passes | None = passes
        self.capturable = capturable

    def __getstate__(self) -> dict[str, Any]:
        return {"passes": None, "capturable": True}

    @torch.no_grad()
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.passes is not None:
            self.passes.enter(module, (args, kwargs))


def remove_copied_pass_hooks(module: nn.Module) -> None:
    """Remove hooks that do nothing, since they came with a copy of the module."""
    for key, hook in [*module._forward_pre_hooks.items()]:
        if isinstance(hook, _PassHook) and hook.passes is None:
            del module._forward_pre_hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)
