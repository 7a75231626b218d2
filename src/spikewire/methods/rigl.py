"""RigL: Evci, Gale, Menick, Castro, Elsen, ICML 2020, https://arxiv.org/abs/1911.11134."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spikewire.pruning import (
    ALLOCATIONS,
    INITIAL,
    Counted,
    Layer,
    Masked,
    Pruner,
    begin_layers_,
    refill_layers,
    setting,
    top_k_mask,
)


@dataclass(frozen=True, kw_only=True)
class RigL(Masked, Counted):
    """A fixed count: drop the smallest weights, grow where the dense gradient is largest.

    Every `every` steps until `until` of the run, in each layer, ``drop (1 + cos(pi x)) / 2`` of the
    present synapses are replaced; x runs from 0 to 1. New ones start at weight 0; one that was just
    dropped may be chosen again and then keeps its weight. A step that changes masks also trains. In
    a unit other than `connectivity` a layer keeps its cost instead of its number of synapses.
    """

    name = "rigl"
    default = 0.05

    allocation: str = setting("erk", "synapses per layer", choices=ALLOCATIONS)
    initial: str = setting(
        "largest", "synapses present at first: random, or the largest weights", choices=INITIAL
    )
    drop: float = setting(0.3, "fraction replaced at the first update", within="(0, 1)")
    every: int = setting(32, "steps between updates of the masks", within="[1, inf)")
    until: float = setting(
        0.75, "fraction of the run after which the masks are fixed", within="(0, 1]"
    )

    def init(self, pruner: Pruner) -> None:
        """Choose the first synapses, as many per layer as the allocation gives it."""
        self.start_meter(pruner)
        begin_layers_(self, pruner, self.allocation, self.initial)
        for layer in pruner.layers:
            layer.state["promise"] = torch.zeros_like(layer.weight)

    def due(self, pruner: Pruner, step: int) -> bool:
        """Return whether the masks change after this step."""
        return step % self.every == 0 and step < self.until * pruner.total_steps

    def before_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Keep the growth scores: the gradient is masked before the optimizer sees it."""
        if self.due(pruner, pruner.step + 1):
            for layer in layers:
                layer.state["promise"].copy_(self.growth_score(pruner, layer))

    def growth_score(self, pruner: Pruner, layer: Layer) -> Tensor:
        """Return the score by which absent synapses are chosen: ``|dL/dw|``."""
        return layer.grad.abs()

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Replace the smallest weights by the absent synapses of highest score."""
        if not self.due(pruner, pruner.step):
            return
        done = pruner.step / (self.until * pruner.total_steps)
        kept = []
        for layer in layers:
            mask = layer.state["mask"]
            present = int(mask.sum())
            moves = min(round(self.replaced(done) * present), mask.numel() - present)
            kept.append(self.kept(mask, layer.weight, present - moves))
        promises = [layer.state["promise"] for layer in layers]
        chosen = refill_layers(self, pruner, layers, promises, kept)
        for layer, mask in zip(layers, chosen, strict=True):
            grown = mask & ~layer.state["mask"]
            layer.state["mask"] &= mask
            self.grow_(pruner, layer, grown)

    def replaced(self, done: float) -> float:
        """Return the fraction of the present synapses to replace, ``drop (1 + cos(pi x)) / 2``."""
        return self.drop * (1 + math.cos(math.pi * done)) / 2

    def kept(self, mask: Tensor, weight: Tensor, count: int) -> Tensor:
        """Return the mask of the `count` present synapses to keep: the largest."""
        return top_k_mask(torch.where(mask, weight.abs(), -1.0), count)

    def grow_(self, pruner: Pruner, layer: Layer, grown: Tensor) -> None:
        """Add synapses, at weight 0."""
        self.regrow_(layer, grown)
