"""Threshold pruning, gradual as in Zhu & Gupta, ICLR workshop 2018, https://arxiv.org/abs/1710.01878.

One-shot pruning of small weights is what most SNN work before Grad R did (its introduction).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spikewire.pruning import (
    SCOPES,
    Counted,
    Layer,
    Masked,
    Pruner,
    all_present,
    cubic,
    require_finite,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class Magnitude(Masked, Counted):
    """The smallest weights are pruned and never regrown.

    Gradual: the fraction that is left, in the unit of the target, follows ``c + (1 - c)(1 - x)^3``
    while x runs from 0 at `begin` to 1 at `ramp`. One-shot: all at once at `begin`, then
    fine-tuning. Without a target, `connectivity` is 0.05.
    """

    name = "magnitude"
    default = 0.05

    gradual: bool = setting(True, "prune step by step; false: once, at `begin`")
    begin: float = setting(0.1, "fraction of the run before pruning begins", within="[0, 1)")
    ramp: float = setting(0.6, "fraction of the run at which pruning ends", within="(begin, 1]")
    every: int = setting(16, "steps between prunings", within="[1, inf)")
    scope: str = setting("global", "what competes: all layers or each alone", choices=SCOPES)

    def init(self, pruner: Pruner) -> None:
        """Mark every synapse as present."""
        self.start_meter(pruner)
        for layer in pruner.layers:
            layer.state["mask"] = all_present(layer)

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Prune when it is due."""
        last = self.ramp if self.gradual else max(self.begin, 1 / pruner.total_steps)
        inside = self.gradual and self.begin <= pruner.progress < self.ramp
        if pruner.passes(last) or (inside and pruner.step % self.every == 0):
            self.prune_(pruner)

    def score(self, layer: Layer) -> Tensor:
        """Return ``|w|``: the smallest are pruned."""
        return layer.weight.abs()

    def prune_(self, pruner: Pruner) -> None:
        """Keep the largest of the present weights, as many as the schedule gives now."""
        done = (pruner.progress - self.begin) / (self.ramp - self.begin) if self.gradual else 1.0
        # also layers without a gradient in this step: the time to prune may not come again
        layers = pruner.all_layers()
        present = [layer.state["mask"] for layer in layers]
        scores = [self.score(x).where(mask, 0.0) for x, mask in zip(layers, present, strict=True)]
        require_finite(scores)
        # an absent synapse scores below any present one, even one of weight 0, and is not for sale
        scores = [x.where(mask, -torch.inf) for x, mask in zip(scores, present, strict=True)]
        masks = self.select(
            pruner,
            layers,
            scores,
            lambda target: cubic(done, 1.0, target),
            scope=self.scope,
        )
        for old, mask in zip(present, masks, strict=True):
            old &= mask
