"""What a synapse costs: how often the network uses one weight for one image and time step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from spikewire.pruning.layers import Layer

QUIET = 1e-3  # least share of inputs that count as firing, so that nothing is free


class Uses:
    """Watches forward passes to write each layer's cost, scaled to a mean of 1 a weight.

    A linear weight is used once, a convolution's once for every position of its output: one look
    is enough. Where `looking` is given, only inputs that are not 0 count as uses, and every pass in
    training for which it is true is looked at.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[Layer],
        looking: Callable[[], bool] | None = None,
    ):
        self.seen: dict[str, list[Tensor | float]] = {}  # each call of a layer; a loop makes many
        self.mean: dict[str, Tensor | float] = {}  # uses in a call, as last seen
        self.looking = looking
        owners = {id(p): m for m in model.modules() for p in m.parameters(recurse=False)}
        self.hooks = []
        for layer in layers:
            watch = _Watch(self, layer.name, layer.weight.dim() - 2)
            owner = owners[id(layer.weight)]
            self.hooks.append(owner.register_forward_hook(watch, with_kwargs=True))

    def settle(self, layers: Sequence[Layer]) -> None:
        """Write ``layer.state["cost"]`` from what was seen; stop watching if one look is enough."""
        if not self.hooks or not self.seen:
            return
        self.mean |= {name: sum(calls) / len(calls) for name, calls in self.seen.items()}
        self.seen = {}
        uses = [self.mean.get(layer.name, 1) for layer in layers]
        sizes = [layer.weight.numel() for layer in layers]
        mean = sum(u * n for u, n in zip(uses, sizes, strict=True)) / sum(sizes)
        for layer, count in zip(layers, uses, strict=True):
            layer.state["cost"].copy_(torch.as_tensor(count / mean))
        if self.looking is None:
            self.stop()

    def stop(self) -> None:
        """Remove the hooks."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []


class _Watch:
    """The hook on one layer. A copy of the layer, deep or pickled, has one that watches nothing."""

    def __init__(self, uses: Uses, name: str, kernel: int):
        self.uses, self.name, self.kernel = uses, name, kernel

    def __getstate__(self) -> dict[str, Any]:
        return {"uses": None}

    @torch.no_grad()
    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        if self.uses is None or inputs is None or not isinstance(output, Tensor):
            return
        image = inputs if isinstance(module, _ConvTransposeNd) else output
        uses = math.prod(image.shape[-self.kernel :]) if self.kernel > 0 else 1
        if self.uses.looking is not None:
            if not (module.training and self.uses.looking()):
                return
            uses = uses * (torch.count_nonzero(inputs) / inputs.numel()).clamp(min=QUIET)
        self.uses.seen.setdefault(self.name, []).append(uses)
