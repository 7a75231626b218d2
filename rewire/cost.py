"""What a synapse costs: how often the network uses one weight for one image and time step."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from rewire.targets import Layer


class Uses:
    """Watches one forward pass to write each layer's cost, scaled to a mean of 1 a weight.

    A linear weight is used once, a convolution's once for every position of its output.
    """

    def __init__(self, model: nn.Module, layers: Sequence[Layer]):
        self.seen: dict[str, int] = {}
        owners = {id(p): m for m in model.modules() for p in m.parameters(recurse=False)}
        self.hooks = [
            owners[id(layer.weight)].register_forward_hook(self._watch(layer)) for layer in layers
        ]

    def _watch(self, layer: Layer) -> Any:
        kernel = layer.weight.dim() - 2

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            image = inputs[0] if isinstance(module, _ConvTransposeNd) else output
            if isinstance(image, Tensor) and kernel > 0:
                self.seen[layer.name] = math.prod(image.shape[-kernel:])

        return hook

    def settle(self, layers: Sequence[Layer]) -> None:
        """Write ``layer.state["cost"]`` from what was seen, once, and stop watching."""
        if not self.hooks:
            return
        uses = [self.seen.get(layer.name, 1) for layer in layers]
        sizes = [layer.weight.numel() for layer in layers]
        mean = sum(u * n for u, n in zip(uses, sizes, strict=True)) / sum(sizes)
        for layer, count in zip(layers, uses, strict=True):
            layer.state["cost"].fill_(count / mean)
        self.stop()

    def stop(self) -> None:
        """Remove the hooks."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
