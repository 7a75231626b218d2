"""RigL: Evci, Gale, Menick, Castro, Elsen, ICML 2020, https://arxiv.org/abs/1911.11134."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spikewire.errors import check, check_word
from spikewire.pruning.allocation import ALLOCATIONS, first_masks
from spikewire.pruning.asked import asked
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Masked
from spikewire.pruning.selection import top_k_mask


@dataclass(kw_only=True)
class RigL(Masked):
    """A fixed count: drop the weakest synapses, grow where the dense gradient is largest.

    Every `every` steps until `until` of the run, in each layer, ``drop (1 + cos(pi x)) / 2`` of the
    present synapses are replaced; x runs from 0 to 1. New ones start at weight 0; one that was just
    dropped may be chosen again and then keeps its weight. A rewiring step trains as well.
    """

    name = "rigl"

    connectivity: float = asked(0.05)
    allocation: str = field(
        default="erk", metadata={"help": "count per layer: uniform, erk or global"}
    )
    drop: float = field(default=0.3, metadata={"help": "share replaced at the first rewiring"})
    every: int = field(default=32, metadata={"help": "steps between rewirings"})
    until: float = field(
        default=0.75, metadata={"help": "share of the run after which the wiring is fixed"}
    )

    def __post_init__(self) -> None:
        check(0 < self.drop < 1, "drop", self.drop, "in (0, 1)")
        check(self.every >= 1, "every", self.every, "1 or more")
        check(0 < self.until <= 1, "until", self.until, "in (0, 1]")
        check_word("allocation", self.allocation, ALLOCATIONS)

    def init(self, layers: Sequence[Layer]) -> None:
        """Start from the strongest weights, as many a layer as the allocation gives it."""
        masks = first_masks(layers, self.asked, self.allocation)
        for layer, mask in zip(layers, masks, strict=True):
            layer.state["mask"] = mask
            layer.state["promise"] = torch.zeros_like(layer.weight)

    def due(self, step: int) -> bool:
        """Tell whether the wiring changes after this step."""
        return step % self.every == 0 and step < self.until * self._total_steps

    def before_step(self, layers: Sequence[Layer]) -> None:
        """Keep the size of the dense gradient, which is masked before the optimizer sees it."""
        if self.due(self.step + 1):
            for layer in layers:
                layer.state["promise"].copy_(self.promise(layer))

    def promise(self, layer: Layer) -> Tensor:
        """Return how much an absent synapse promises: ``|dL/dw|``."""
        return layer.grad.abs()

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Replace the weakest by the most promising; the counts stay."""
        if not self.due(self.step):
            return
        done = self.step / (self.until * self._total_steps)
        share = self.drop * (1 + math.cos(math.pi * done)) / 2
        for layer in layers:
            mask, weight = layer.state["mask"], layer.weight
            present = int(mask.sum())
            moves = min(round(share * present), mask.numel() - present)
            kept = top_k_mask(torch.where(mask, weight.abs(), -1.0), present - moves)
            promise = torch.where(kept, -1.0, layer.state["promise"])
            grown = top_k_mask(promise, moves)
            layer.state["mask"].copy_(kept | (mask & grown))
            self.regrow_(layer, grown & ~mask)
