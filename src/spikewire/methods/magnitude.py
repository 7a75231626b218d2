"""Threshold pruning, gradual as in Zhu & Gupta, ICLR workshop 2018, https://arxiv.org/abs/1710.01878.

One-shot pruning of weak weights is what most SNN work before Grad R did (its introduction).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spikewire.errors import check, check_word
from spikewire.pruning.asked import asked
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Masked
from spikewire.pruning.selection import SCOPES, require_finite, wire
from spikewire.schedules import cubic


@dataclass(kw_only=True)
class Magnitude(Masked):
    """The weakest weights go and never come back.

    Gradual: the share left follows ``c + (1 - c)(1 - x)^3`` while x runs from 0 at `begin` to 1 at
    `ramp`. One-shot: all at once at `begin`, then fine-tuning.
    """

    name = "magnitude"

    connectivity: float = asked(0.05)
    gradual: bool = field(
        default=True, metadata={"help": "prune step by step; else once, at `begin`"}
    )
    begin: float = field(default=0.1, metadata={"help": "share of the run before pruning begins"})
    ramp: float = field(default=0.6, metadata={"help": "share of the run by which it has ended"})
    every: int = field(default=16, metadata={"help": "steps between prunings"})
    scope: str = field(default="global", metadata={"help": "who competes: global or layer"})

    def __post_init__(self) -> None:
        check(0 <= self.begin < 1, "begin", self.begin, "in [0, 1)")
        check(self.begin < self.ramp <= 1, "ramp", self.ramp, "above begin, at most 1")
        check(self.every >= 1, "every", self.every, "1 or more")
        check_word("scope", self.scope, SCOPES)

    def init(self, layers: Sequence[Layer]) -> None:
        """Mark every synapse as present."""
        for layer in layers:
            layer.state["mask"] = torch.ones_like(layer.weight, dtype=torch.bool)

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Cut when it is time to."""
        last = self.ramp if self.gradual else max(self.begin, 1 / self._total_steps)
        inside = self.gradual and self.begin <= self.progress < self.ramp
        if self.crosses(last) or (inside and self.step % self.every == 0):
            self.cut()

    def cut(self) -> None:
        """Keep the strongest of the present, as many as the path says now."""
        done = (self.progress - self.begin) / (self.ramp - self.begin) if self.gradual else 1.0
        # a layer without a gradient now is cut all the same: the time to cut may not come again
        layers = self.everyone()
        # an absent synapse is weaker than any present one, even one of weight 0
        scores = [torch.where(x.state["mask"], x.weight.abs(), -1.0) for x in layers]
        masks = wire(
            layers, require_finite(scores), lambda x: cubic(done, 1.0, self.share(x)), self.scope
        )
        for layer, mask in zip(layers, masks, strict=True):
            layer.state["mask"].copy_(mask)
