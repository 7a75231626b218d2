"""Targets in the unit that is paid for: weights, synapses, synaptic operations or bytes.

A unit gives every weight a cost; a method keeps the weights of highest ``strength / cost^price``
that the target pays for, with one threshold over all layers. A meter measures the costs of now:

===========  ======================================================================  =============
unit         a weight costs                                                          target
===========  ======================================================================  =============
synapses     the positions at which it is applied                                    fraction
synops       the spikes per image that reach it, over all positions and time steps   per image
bytes        two bytes for its value, and what its position takes in a packed file   size of file
===========  ======================================================================  =============
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spikewire.fields import setting
from spikewire.pruning.costs.filesize import Bytes
from spikewire.pruning.costs.meter import Meter
from spikewire.pruning.costs.synapses import Synapses
from spikewire.pruning.costs.synops import SynOps
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import UNITS, Method
from spikewire.pruning.pruner import Pruner
from spikewire.pruning.selection import select_masks, target_count, top_k_mask
from spikewire.pruning.spending import cost_of, dense_cost, masks_within

METERS: dict[str, type[Meter]] = {"synapses": Synapses, "synops": SynOps, "bytes": Bytes}
SINGLE = 8  # weights that are bought one by one with what a threshold leaves of a target
LEAST_PRICE = 1e-3  # of the mean cost of a weight: what is free is not infinitely attractive

Schedule = Callable[[Any], Any]  # of a fraction: a float, or a 0-d tensor where a GPU computed it


@dataclass(frozen=True, kw_only=True)
class Counted(Method):
    """A method whose target is given in one unit that the masks alone decide.

    A subclass calls `start_meter` in `init` and `select` where it selects masks.
    """

    exclusive = ("connectivity", "synapses", "bytes")
    counts = "its masks are fixed before the end of the run and cannot follow the firing"
    default: ClassVar[float | None] = None  # the connectivity where no target is given

    connectivity: float | None = setting(None, "target fraction of weights", within="(0, 1]")
    synapses: float | None = setting(
        None, "target fraction of synapses: of weights times their positions", within="(0, 1]"
    )
    bytes: float | None = setting(
        None, "target size of the packed file with 16-bit values", within="(0, inf)"
    )
    price: float = setting(
        0.1, "exponent of the cost, where the unit is not weights", within="[0, 1]"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(getattr(self, name) is not None for name in self.exclusive):
            object.__setattr__(self, "connectivity", self.default)

    @property
    def unit(self) -> str:
        """The unit of the target; "" where the method has none."""
        return next((name for name in UNITS if getattr(self, name, None) is not None), "")

    def start_meter(self, pruner: Pruner) -> None:
        """Start to measure what weights cost, where the unit needs it."""
        if self.unit in METERS:
            pruner.uses = METERS[self.unit](pruner)

    def select(
        self,
        pruner: Pruner,
        layers: Sequence[Layer],
        scores: Sequence[Tensor],
        schedule: Schedule = lambda target: target,
        *,
        scope: str = "global",
        floor: float = 0.1,
        in_order: bool = False,
    ) -> list[Tensor]:
        """Return the masks of the highest scores that the target pays for now.

        Args:
            pruner: the pruner.
            layers: the layers that compete.
            scores: one tensor per layer, of the shape of its weight.
            schedule: returns the fraction of now from that at the end of the run.
            scope: see `select_masks`.
            floor: see `select_masks`.
            in_order: whether a layer must keep its highest scores, as behind a threshold.

        Returns:
            One bool mask per layer. The total is exact: to the weight; in synapses to the cost of
            one weight of the cheapest layer that still has absent ones; in bytes and operations to
            one weight at the costs of now.
        """
        if self.unit == "connectivity":
            return select_masks(
                layers, scores, lambda x: schedule(pruner.target_of(x)), scope, floor
            )
        meter = pruner.uses
        assert meter is not None
        if self.unit == "synops" and pruner.step == 0:  # no image was seen yet
            return select_masks(layers, scores, lambda x: schedule(0.0), scope, floor)
        meter.update_costs_(layers)
        competition = _Competition(layers, scores, schedule, scope, floor, self.price, in_order)
        masks = []
        for _ in range(meter.rounds):
            masks = competition.masks(getattr(self, self.unit), meter)
            meter.take_masks(layers, masks)
        return masks


@dataclass(frozen=True, kw_only=True)
class Priced(Counted):
    """A method whose target may also be given in operations, since its masks follow the firing."""

    exclusive = UNITS

    synops: float | None = setting(
        None, "target synaptic operations per image, in training", within="(0, inf)"
    )


@dataclass(frozen=True)
class _Competition:
    """Layers whose weights compete for a cost."""

    layers: Sequence[Layer]
    scores: Sequence[Tensor]
    schedule: Schedule
    scope: str
    floor: float
    price: float
    in_order: bool

    def masks(self, target: float, meter: Any) -> list[Tensor]:
        """Return one mask per layer whose summed cost is the target's part of now."""
        layers, scores = self.layers, self.scores
        costs = [layer.state["cost"] for layer in layers]
        dense = [dense_cost(score, cost) for score, cost in zip(scores, costs, strict=True)]
        total = torch.stack(dense).sum()
        fraction = self.schedule(meter.fraction(target, total))
        own = [i for i, layer in enumerate(layers) if layer.connectivity is not None]
        found = {i: self._own_mask(i) for i in own}
        rivals = [i for i in range(len(layers)) if i not in found]
        spent = sum(cost_of(mask, costs[i]) for i, mask in found.items())
        prices = self._prices(costs, total)
        groups = [[i] for i in rivals] if self.scope == "layer" else [rivals] if rivals else []
        left, part = total.double() * fraction - spent, fraction  # float32 ends at 2^24 synapses
        if found and rivals:  # layers alone divide what the layers with their own leave
            part = left / torch.stack([dense[i] for i in rivals]).sum()
        for group in groups:
            budget = dense[group[0]].double() * part if self.scope == "layer" else left
            chosen = masks_within(
                [_divide(scores[i], prices[i]) for i in group],
                [costs[i] for i in group],
                budget.round() if costs[group[0]].dtype == torch.int64 else budget,
                [self._least(fraction, scores[i].numel()) for i in group],
                meter.groups([layers[i] for i in group]),
                self.in_order,
                single=SINGLE,
            )
            found.update(zip(group, chosen, strict=True))
        return [found[i] for i in range(len(layers))]

    def _own_mask(self, i: int) -> Tensor:
        score, own = self.scores[i], self.layers[i].connectivity
        return top_k_mask(score, target_count(self.schedule(own), score.numel()))

    def _prices(self, costs: Sequence[Tensor], total: Tensor) -> Sequence[Tensor]:
        """Return ``cost^price`` per layer, cost being the layer's mean over that of the network.

        Within a layer the order stays that of the scores.
        """
        mean = total / sum(score.numel() for score in self.scores)
        means = torch.stack([cost.double().mean() for cost in costs]) / mean
        prices = means.nan_to_num(1.0).clamp(min=LEAST_PRICE) ** self.price
        return prices.to(torch.promote_types(self.scores[0].dtype, torch.float32)).unbind()

    def _least(self, fraction: Any, size: int) -> Any:
        """Return the least number of weights of a layer."""
        least = self.floor * fraction * size
        return least.long().clamp(min=1) if isinstance(least, Tensor) else max(1, int(least))


def _divide(score: Tensor, price: Tensor) -> Tensor:
    """Return the score at its price: a higher price lowers it, also where it is below 0."""
    return torch.where(score > 0, score / price, score * price)
