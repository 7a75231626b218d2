"""Forward hooks on layers and on the model; on a copy of the model they do nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spikewire.pruning.layers import Layer


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
