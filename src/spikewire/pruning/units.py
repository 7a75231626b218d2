"""Targets in the unit that is paid for: weights, synapses.

A unit gives every weight a cost; a method keeps the weights of highest ``strength / cost^price``
that the target pays for, with one threshold over all layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikewire.fields import setting
from spikewire.pruning.layers import Layer
from spikewire.pruning.meter import Synapses
from spikewire.pruning.method import Method
from spikewire.pruning.pruner import Pruner
from spikewire.pruning.selection import select_masks, target_count, top_k_mask
from spikewire.pruning.spending import cost_of, dense_cost, masks_within

UNITS = ("connectivity", "synapses")
LEAST_PRICE = 1e-3  # of the mean cost of a weight: what is free is not infinitely attractive

Schedule = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Priced(Method):
    """A method whose target may be given in any unit: exactly one of `UNITS`.

    A subclass calls `start_meter` in `init` and `select` where it selects masks.
    """

    exclusive = UNITS

    connectivity: float | None = setting(None, "target fraction of weights", within="(0, 1]")
    synapses: float | None = setting(
        None, "target fraction of synapses: of weights times their positions", within="(0, 1]"
    )
    price: float = setting(
        0.1, "exponent of the cost, where the unit is not weights", within="[0, 1]"
    )

    @property
    def unit(self) -> str:
        """The unit of the target; "" where the method has none."""
        return next((name for name in UNITS if getattr(self, name) is not None), "")

    def start_meter(self, pruner: Pruner) -> None:
        """Start to measure what weights cost, where the unit needs it."""
        if self.unit == "synapses":
            assert pruner.model is not None
            pruner.uses = Synapses(pruner.model, pruner.layers)

    def select(
        self,
        pruner: Pruner,
        layers: Sequence[Layer],
        scores: Sequence[Tensor],
        schedule: Schedule = lambda target: target,
        *,
        scope: str = "global",
        floor: float = 0.1,
    ) -> list[Tensor]:
        """Return the masks of the highest scores that the target pays for now.

        Args:
            pruner: the pruner.
            layers: the layers that compete.
            scores: one tensor per layer, of the shape of its weight.
            schedule: returns the fraction of now from that at the end of the run.
            scope: see `select_masks`.
            floor: see `select_masks`.

        Returns:
            One bool mask per layer. The total is exact: to the weight, or to the cost of one weight
            of the cheapest layer that still has absent ones.
        """
        if self.unit == "connectivity":
            return select_masks(
                layers, scores, lambda x: schedule(pruner.target_of(x)), scope, floor
            )
        meter: Any = pruner.uses
        costs = [layer.state["cost"] for layer in layers]
        values = [meter.values[layer.name] for layer in layers]
        total = torch.stack([dense_cost(*pair) for pair in zip(scores, costs, strict=True)]).sum()
        fraction = schedule(getattr(self, self.unit))
        masks: dict[int, Tensor] = {}
        rivals = []
        for i, (layer, score) in enumerate(zip(layers, scores, strict=True)):
            if layer.connectivity is not None:
                count = target_count(schedule(layer.connectivity), score.numel())
                masks[i] = top_k_mask(score, count)
            elif scope == "layer":
                own = (dense_cost(score, costs[i]) * fraction).round().to(total.dtype)
                (masks[i],) = masks_within([score], [costs[i]], own, [1], [values[i]])
            else:
                rivals.append(i)
        if rivals:
            spent = [cost_of(mask, costs[i]) for i, mask in masks.items()]
            budget = (total * fraction).round().to(total.dtype) - sum(spent)
            mean = total / sum(score.numel() for score in scores)
            chosen = masks_within(
                [self._priced(scores[i], costs[i], mean) for i in rivals],
                [costs[i] for i in rivals],
                budget,
                [max(1, int(floor * fraction * scores[i].numel())) for i in rivals],
                [values[i] for i in rivals],
            )
            masks.update(zip(rivals, chosen, strict=True))
        return [masks[i] for i in range(len(scores))]

    def _priced(self, score: Tensor, cost: Tensor, mean: Tensor) -> Tensor:
        """Return ``score / cost^price``, cost being the layer's mean over that of the network.

        Within a layer the order stays that of the scores.
        """
        relative = (cost.double().mean() / mean).clamp(min=LEAST_PRICE)
        return score / (relative**self.price).to(score.dtype)
