"""The meter of synapses: the positions at which a weight is applied."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spikewire.errors import SpikewireError
from spikewire.nn.names import unwrap
from spikewire.pruning.costs.meter import COMPILED
from spikewire.pruning.costs.positions import uses_per_weight
from spikewire.pruning.costs.uses import OnePass
from spikewire.pruning.hooks import ForwardHooks, Named
from spikewire.pruning.layers import Layer
from spikewire.pruning.owners import unpruned_layers
from spikewire.pruning.selection import target_count
from spikewire.pruning.spending import cost_of, dense_cost
from spikewire.pruning.warn import warn_caller

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner


class Synapses(OnePass):
    """The synapses each weight stands for: 1 in a linear layer, its positions in a convolution.

    They follow from the sizes of the images alone, and count once per use of the layer. Synapses
    of layers that are not pruned are subtracted from the target, which is of the whole network.

    Args:
        pruner: the pruner; the cost of its weights is ``layer.state["cost"]``, int64. Where layers
            are not pruned, ``memory["unpruned"]`` has their synapses: if dense, and present.
    """

    def __init__(self, pruner: "Pruner") -> None:
        super().__init__(pruner)
        for layer in pruner.layers:
            shape = (1, 1, *layer.weight.shape[2:])
            layer.state["cost"] = layer.weight.new_ones(shape, dtype=torch.int64)
        self._group()
        assert pruner.model is not None
        self.others = unpruned_layers(unwrap(pruner.model), pruner.layers)
        if self.others:
            like = pruner.layers[0].weight
            pruner.memory["unpruned"] = like.new_zeros(2, dtype=torch.int64)
            more = ForwardHooks(self.others, [*map(Named, self.others)], self.see)
            self.hooks.handles += more.handles
        self.run()
        self.end_step()

    @property
    def known(self) -> bool:
        """Whether the costs are known: linear weights have 1, unless a forward pass shows more."""
        linear = all(layer.weight.dim() == 2 for layer in self.layers) and not self.others
        return super().known or (linear and len(self.owners) == len(self.layers))

    def cost_of_call(self, layer: Any, module: Any, inputs: Tensor, output: Tensor) -> Tensor:
        """Return the positions of each weight of one input and output."""
        kernel = module.weight.dim() - 2
        image = inputs.shape[-kernel:] if kernel > 0 else ()
        return uses_per_weight(module, torch.ones(1, *image, dtype=torch.int64))

    def end_step(self) -> None:
        """Write the costs once a forward pass was seen; the hooks are then removed."""
        if not self.hooks.handles:
            return
        found = self.found()
        self._warn_of_unseen(found)
        if not self.calls:
            return
        for layer in (layer for layer in self.layers if layer.name in found):
            layer.state["cost"].copy_(found[layer.name])
        for module in self.others.values():
            weight: Any = module.weight
            for cost, *_ in self.calls.uses(module):
                present = cost_of(weight != 0, cost.to(weight.device))
                both = torch.stack([dense_cost(weight, cost), present.cpu()])
                self.pruner.memory["unpruned"] += both.to(self._unpruned().device)
        self._group()
        self.remove()
        self._require_room()

    def _warn_of_unseen(self, found: Mapping[str, Tensor]) -> None:
        """Warn of layers that the first forward pass did not call: their costs are not known."""
        name, unseen = self.pruner.method.name, [x.name for x in self.layers if x.name not in found]
        if not self.calls and self.pruner.step == 1 and not self.known:
            warn_caller(f"{name}: no layer was seen in the first step; {COMPILED}")
        elif self.calls and unseen:
            more = f" and {len(unseen) - 1} more" if len(unseen) > 1 else ""
            warn_caller(
                f"{name}: not called in the first forward pass: {unseen[0]}{more}; each weight "
                "counts as one synapse, also where later passes call the layer"
            )

    def resume(self) -> None:
        """Take the costs from the saved state, where a step was taken before."""
        super().resume()
        self._group()

    def _group(self) -> None:
        self._groups = {layer.name: _by_cost(layer.state["cost"]) for layer in self.layers}

    def _unpruned(self) -> Tensor:
        """Return the synapses of layers that are not pruned: if dense, and present."""
        none = self.layers[0].state["cost"].new_zeros(2)
        return self.pruner.memory.get("unpruned", none)

    def _require_room(self) -> None:
        """Raise if layers that do not compete cost more than the target."""
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
        every, present = self._unpruned().tolist()
        total, taken = sum(dense.values()) + every, taken + present
        least = sum(int(layer.state["cost"].min()) for layer in free)
        if taken and taken + least > target * total + 0.5:
            raise SpikewireError(
                f"targets: synapses {target:g} is {target * total:,.0f} of {total:,} synapses; the "
                f"layers named here, or not pruned, keep {taken:,} or more; change synapses or "
                "targets"
            )

    def groups(self, layers: Sequence[Layer]) -> list[dict[int, Tensor]]:
        """Return for each layer the positions of its kernel by their costs."""
        return [
            {
                cost: places.to(layer.weight.device)
                for cost, places in self._groups[layer.name].items()
            }
            for layer in layers  # which may have moved
        ]

    def fraction(self, target: float, dense: Tensor) -> Any:
        """Return the target as a fraction of the synapses of the pruned layers, if dense."""
        if not self.others:
            return target
        every, present = self._unpruned().to(dense.device).double()
        return ((target * (dense + every) - present) / dense).clamp(0.0, 1.0)

    def actual(self, masks: Mapping[str, Tensor]) -> float | None:
        """Return the fraction of the network's synapses; None before a forward pass."""
        if self.hooks.handles:
            return None
        every, present = self._unpruned().tolist()
        for layer in self.layers:
            every += int(dense_cost(layer.weight, layer.state["cost"]))
            present += int(cost_of(masks[layer.name], layer.state["cost"]))
        return present / every


def _by_cost(cost: Tensor) -> dict[int, Tensor]:
    """Return the positions of a kernel by their costs; none stand for all where these are equal."""
    kernel = cost.flatten().cpu()
    values = kernel.unique().tolist()
    if len(values) == 1:
        return {values[0]: kernel.new_empty(0)}
    return {value: (kernel == value).nonzero().flatten().to(cost.device) for value in values}
