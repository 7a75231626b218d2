"""Meters of the units of a target: what every weight of a network costs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spikewire.pruning.costs import Meter, uses_per_weight
from spikewire.pruning.layers import Layer


class Synapses(Meter):
    """The synapses each weight stands for: 1 in a linear layer, its positions in a convolution.

    They follow from the sizes of the images alone. A model with an `input_shape` is run once on an
    empty image when the meter is made; of any other the first forward pass is watched.

    Args:
        model: the model.
        layers: the pruned layers; the cost of their weights is ``layer.state["cost"]``, int64.

    Attributes:
        values: the different costs of each layer by its name, without 0.
    """

    def __init__(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        super().__init__(model, layers)
        self.values = {layer.name: frozenset({1}) for layer in layers}
        self._costs: dict[str, Tensor] = {}
        for layer in layers:
            shape = (1, 1, *layer.weight.shape[2:])
            layer.state["cost"] = layer.weight.new_ones(shape, dtype=torch.int64)
        if all(layer.weight.dim() == 2 for layer in layers):
            self.remove()
        elif shape := getattr(model, "input_shape", None):
            run_empty_image(model, shape, layers[0].weight)
            self.end_step()

    @property
    def known(self) -> bool:
        """Whether the costs are known: from the start, or from the first step on."""
        return not self.hooks.handles

    def see(self, layer: Layer, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Note the cost, at the first forward pass."""
        kernel = layer.weight.dim() - 2
        if kernel > 0 and layer.name not in self._costs:
            ones = torch.ones(1, *inputs.shape[-kernel:], dtype=torch.int64)
            self._costs[layer.name] = uses_per_weight(module, ones)

    def end_step(self) -> None:
        """Write the costs once a forward pass was seen; the hooks are then removed."""
        if self.known or not self._costs:
            return
        for layer in self.layers:
            if (cost := self._costs.get(layer.name)) is not None:
                layer.state["cost"].copy_(cost)
                self.values[layer.name] = frozenset(cost.flatten().tolist()) - {0}
        self.remove()


def run_empty_image(model: nn.Module, shape: Sequence[int], like: Tensor) -> None:
    """Run the model in evaluation mode on one image of zeros; nothing in it changes."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        model(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))
    finally:
        for module, mode in modes.items():
            module.training = mode
