"""The meter of synapses: the positions at which a weight is applied."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.pruning.costs import uses_per_weight
from spikewire.pruning.layers import Layer
from spikewire.pruning.selection import target_count
from spikewire.pruning.spending import cost_of, dense_cost
from spikewire.pruning.uses import OnePass

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner


class Synapses(OnePass):
    """The synapses each weight stands for: 1 in a linear layer, its positions in a convolution.

    They follow from the sizes of the images alone, and count once per use of the layer.

    Args:
        pruner: the pruner; the cost of its weights is ``layer.state["cost"]``, int64.
    """

    def __init__(self, pruner: "Pruner") -> None:
        super().__init__(pruner)
        for layer in pruner.layers:
            shape = (1, 1, *layer.weight.shape[2:])
            layer.state["cost"] = layer.weight.new_ones(shape, dtype=torch.int64)
        self._group()
        self.run()
        self.end_step()

    @property
    def known(self) -> bool:
        """Whether the costs are known: linear weights have 1, unless a forward pass shows more."""
        linear = all(layer.weight.dim() == 2 for layer in self.layers)
        return super().known or (linear and len(self.owners) == len(self.layers))

    def cost_of_call(
        self, layer: Layer, module: nn.Module, inputs: Tensor, output: Tensor
    ) -> Tensor:
        """Return the positions of each weight of one input and output."""
        kernel = layer.weight.dim() - 2
        image = inputs.shape[-kernel:] if kernel > 0 else ()
        return uses_per_weight(module, torch.ones(1, *image, dtype=torch.int64))

    def end_step(self) -> None:
        """Write the costs once a forward pass was seen; the hooks are then removed."""
        if not self.hooks.handles or not self.calls:
            return
        found = self.found()
        for layer in (layer for layer in self.layers if layer.name in found):
            layer.state["cost"].copy_(found[layer.name])
        self._group()
        self.remove()
        self._require_room()

    def resume(self) -> None:
        """Take the costs from the saved state, where a step was taken before."""
        super().resume()
        self._group()

    def _group(self) -> None:
        self._groups = {layer.name: _by_cost(layer.state["cost"]) for layer in self.layers}

    def _require_room(self) -> None:
        """Raise if layers with a connectivity of their own cost more than the target."""
        target, layers = getattr(self.pruner.method, "synapses", None), self.layers
        free = [layer for layer in layers if layer.connectivity is None]
        if target is None or not free:
            return
        dense = {x.name: int(dense_cost(x.weight, x.state["cost"])) for x in layers}
        taken = 0
        for layer in (x for x in layers if x.connectivity is not None):
            size, cost = layer.weight.numel(), layer.state["cost"]
            count = target_count(layer.connectivity or 0.0, size)
            least = dense[layer.name] - (size - count) * int(cost.max())
            taken += max(count * int(cost.min()), least)
        total = sum(dense.values())
        least = sum(int(layer.state["cost"].min()) for layer in free)
        if taken and taken + least > target * total + 0.5:
            raise SpikewireError(
                f"targets: synapses {target:g} is {target * total:,.0f} of {total:,} synapses; the "
                f"layers named here keep {taken:,} or more; change synapses or targets"
            )

    def groups(self, layers: Sequence[Layer]) -> list[dict[int, Tensor]]:
        """Return for each layer the positions of its kernel by their costs."""
        return [self._groups[layer.name] for layer in layers]

    def fraction(self, target: float, dense: Tensor) -> Any:
        """Return the target as a fraction of the dense network's cost."""
        return target

    def actual(self, masks: Mapping[str, Tensor]) -> float | None:
        """Return the fraction of the synapses of pruned layers; None before a forward pass."""
        if self.hooks.handles:
            return None
        dense = sum(int(dense_cost(x.weight, x.state["cost"])) for x in self.layers)
        return sum(int(cost_of(masks[x.name], x.state["cost"])) for x in self.layers) / dense


def _by_cost(cost: Tensor) -> dict[int, Tensor]:
    """Return the positions of a kernel by their costs; none stand for all where these are equal."""
    kernel = cost.flatten().cpu()
    values = kernel.unique().tolist()
    if len(values) == 1:
        return {values[0]: kernel.new_empty(0)}
    return {value: (kernel == value).nonzero().flatten().to(cost.device) for value in values}
