"""What a synapse costs: how often the network uses one weight for one image and time step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from rewire.targets import Layer

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
        self.seen: dict[str, float | Tensor] = {}
        self.looking = looking
        owners = {id(p): m for m in model.modules() for p in m.parameters(recurse=False)}
        self.hooks = [
            owners[id(layer.weight)].register_forward_hook(self._watch(layer)) for layer in layers
        ]

    def _watch(self, layer: Layer) -> Any:
        kernel = layer.weight.dim() - 2

        @torch.no_grad()
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            image = inputs[0] if isinstance(module, _ConvTransposeNd) else output
            if not isinstance(image, Tensor):
                return
            uses = math.prod(image.shape[-kernel:]) if kernel > 0 else 1
            if self.looking is None:
                self.seen[layer.name] = uses
            elif module.training and self.looking():
                firing = torch.count_nonzero(inputs[0]) / inputs[0].numel()
                self.seen[layer.name] = uses * firing.clamp(min=QUIET)

        return hook

    def settle(self, layers: Sequence[Layer]) -> None:
        """Write ``layer.state["cost"]`` from what was seen; stop watching if one look is enough."""
        if not self.hooks or not self.seen:
            return
        uses = [self.seen.get(layer.name, 1) for layer in layers]
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
