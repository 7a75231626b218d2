"""What one weight costs: how often the network uses it per image.

A linear weight is used once, a convolution's once per position of its output; positions on padding
are no synapse::

    uses[input, tap] = sum over output positions of activity[input, position * stride + tap]

With an activity of 1 everywhere these are the synapses a weight stands for; with the number of
spikes per image, its synaptic operations.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from spikewire.nn.synapses import synaptic_layers
from spikewire.pruning.layers import Layer

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner


def uses_per_weight(module: nn.Module, activity: Tensor) -> Tensor:
    """Return how often each weight is used by inputs of this activity, for one output channel.

    Args:
        module: a linear or convolutional layer.
        activity: events per input of one sample, ``[inputs]`` or ``[channels, *image]``; one
            channel stands for all if they are the same.

    Returns:
        A tensor that broadcasts to the weight: ``[1, inputs]`` or ``[1, channels, *kernel]``, for a
        transposed convolution ``[channels, 1, *kernel]``.
    """
    if not isinstance(module, _ConvNd):
        return activity.unsqueeze(0)
    padding = _padding(module)
    if module.padding_mode != "zeros":
        sides = [side for pad in reversed(padding) for side in (pad, pad)]
        activity = F.pad(activity.unsqueeze(0), sides, module.padding_mode).squeeze(0)
        padding = [0] * len(padding)
    ranges = [
        _ranges(module, dim, size, pad)
        for dim, (size, pad) in enumerate(zip(activity.shape[1:], padding, strict=True))
    ]
    taps = [activity[:, *slices].flatten(1).sum(1) for slices in product(*ranges)]
    uses = torch.stack(taps, 1).unflatten(1, module.kernel_size)
    if isinstance(module, _ConvTransposeNd):
        return uses.unsqueeze(1)
    if module.groups == 1 or len(activity) == 1:
        return uses.unsqueeze(0)
    per_group = module.out_channels // module.groups
    return uses.unflatten(0, (module.groups, -1)).repeat_interleave(per_group, 0)


def _padding(module: _ConvNd) -> list[int]:
    """Return the zeros before the image, per dimension."""
    if isinstance(module.padding, str):
        spans = zip(module.kernel_size, module.dilation, strict=True)
        return [(k - 1) * d // 2 if module.padding == "same" else 0 for k, d in spans]
    return list(module.padding)


def _ranges(module: _ConvNd, dim: int, size: int, padding: int) -> list[slice]:
    """Return for every tap of one dimension the inputs that it meets."""
    kernel, stride, dilation = module.kernel_size[dim], module.stride[dim], module.dilation[dim]
    span, found = (kernel - 1) * dilation, []
    for tap in range(kernel):
        start = tap * dilation - padding
        if isinstance(module, _ConvTransposeNd):  # input i feeds output i * stride + start
            outputs = (size - 1) * stride - 2 * padding + span + module.output_padding[dim] + 1
            first, last = max(0, -(start // stride)), min(size - 1, (outputs - 1 - start) // stride)
            found.append(slice(first, max(first, last + 1)))
            continue
        both = span if module.padding == "same" else 2 * padding
        outputs = (size + both - span - 1) // stride + 1
        low = max(0, -(start // stride))  # the first output that meets an input
        high = min(outputs - 1, (size - 1 - start) // stride)
        first = low * stride + start
        found.append(slice(first, max(first, high * stride + start + 1), stride))
    return found


class ForwardHooks:
    """Forward hooks on the modules of layers; a copy of the model has ones that do nothing.

    Args:
        modules: the modules by the names of the layers.
        layers: the layers, each with a name.
        seen: called with the layer, its module, its input and its output at every forward pass.
        capturable: whether `seen` only adds to tensors in place, which a CUDA graph repeats.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        layers: Sequence[Any],
        seen: Callable[[Any, nn.Module, Tensor, Tensor], None],
        capturable: bool = False,
    ) -> None:
        self.handles: list[Any] = []
        for layer in layers:
            hook, module = _Hook(layer, seen, capturable), modules[layer.name]
            self.handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


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


class _Hook:
    """The hook on one layer. A copy of the layer, deep or pickled, has one that does nothing."""

    def __init__(self, layer: Layer, seen: Callable[..., None], capturable: bool) -> None:
        self.layer, self.seen, self.capturable = layer, seen, capturable

    def __getstate__(self) -> dict[str, Any]:
        return {"layer": None}

    @torch.no_grad()
    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        output = output[0] if isinstance(output, tuple) else output  # of neurons: their spikes
        if self.layer is not None and inputs is not None and isinstance(output, Tensor):
            self.seen(self.layer, module, inputs, output)


class Named(NamedTuple):
    """A module that is no pruned layer, for `ForwardHooks`."""

    name: str


class ModelHook:
    """The hook before a forward pass of the model. A copy of the model has one that does nothing.

    Args:
        begin: called with the arguments of the model.
        capturable: whether `begin` only adds to tensors in place.
    """

    def __init__(self, begin: Callable[[Any], None], capturable: bool = False) -> None:
        self.begin, self.capturable = begin, capturable

    def __getstate__(self) -> dict[str, Any]:
        return {"begin": None}

    @torch.no_grad()
    def __call__(self, module: nn.Module, args: Any) -> None:
        """Pass the arguments on."""
        if self.begin is not None:
            self.begin(args)


def remove_copies(module: nn.Module) -> None:
    """Remove hooks that do nothing, since they came with a copy of the module."""
    for key, hook in [*module._forward_hooks.items()]:
        if isinstance(hook, _Hook) and hook.layer is None:
            del module._forward_hooks[key]
            module._forward_hooks_with_kwargs.pop(key, None)


class Meter:
    """Measures what weights cost, in ``layer.state["cost"]``; a pruner's `uses`.

    Args:
        pruner: the pruner.

    Attributes:
        owners: every layer with each of the modules that have its weight: tied ones have several.
        rounds: how often masks are selected, where costs depend on the selection.
        capturable: whether `see` only adds to tensors in place, which a CUDA graph repeats.
        counting: whether the forward passes of the next step are counted.
        pending: sums of the step that is not taken up yet, where forward passes are counted.
    """

    rounds = 1
    shared = True  # whether all modules that share a weight are looked at
    capturable = False
    counting = False
    pending: Any = None

    def __init__(self, pruner: "Pruner") -> None:
        assert pruner.model is not None
        self.pruner, self.layers = pruner, pruner.layers
        owners = owning_modules(pruner.model)
        self.modules = {layer.name: owners[id(layer.weight)] for layer in pruner.layers}
        self.owners = [  # all modules of a layer, one after the other
            (layer, module)
            for layer in pruner.layers
            for module in sharing_modules(pruner.model, layer.weight)
        ]
        self.hooks = ForwardHooks(self.modules, self.layers, self.see, self.capturable)
        for layer, module in self.owners if self.shared else ():
            if module is not self.modules[layer.name]:
                more = ForwardHooks({layer.name: module}, [layer], self.see, self.capturable)
                self.hooks.handles += more.handles

    def see(self, layer: Layer, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Look at one forward pass of a layer."""

    def end_step(self) -> None:
        """Take up what was seen in a step, before the method acts on it."""

    def resume(self) -> None:
        """Continue at the pruner's step."""

    def update_costs_(self, layers: Sequence[Layer]) -> None:
        """Write ``layer.state["cost"]``."""

    def take_masks(self, layers: Sequence[Layer], masks: Sequence[Tensor]) -> None:
        """Take up what was selected, where costs depend on it."""

    def groups(self, layers: Sequence[Layer]) -> list[dict[int, Tensor]]:
        """Return for each layer its weights by cost, where costs are whole numbers; else nothing.

        The indices are those of kernel positions; none stand for the whole layer.
        """
        return []

    def fraction(self, target: float, dense: Tensor) -> Any:
        """Return the target as a fraction of the dense network's cost."""
        raise NotImplementedError

    def actual(self, masks: Mapping[str, Tensor]) -> float | None:
        """Return what masks cost, in the unit of the target; None where it is not known."""
        return None

    def remove(self) -> None:
        """Remove the forward hooks, also their copies on copied modules."""
        self.hooks.remove()
        for module in self.pruner.model.modules() if self.pruner.model is not None else ():
            remove_copies(module)
