"""Deep Rewiring (Deep R): Bellec, Kappel, Maass, Legenstein, ICLR 2018, https://arxiv.org/abs/1711.05136."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spikewire.errors import check, check_word
from spikewire.pruning.allocation import ALLOCATIONS, first_masks, pick
from spikewire.pruning.asked import asked
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Masked


@dataclass(kw_only=True)
class DeepR(Masked):
    """Noisy descent on present synapses; a random dormant one replaces each that turns negative.

    With ``w = s theta`` and s = +-1 fixed, for present synapses (Algorithm 1)::

        theta <- theta - lr (dL/dtheta + alpha) + sqrt(2 lr temperature) nu,   nu ~ N(0, 1)

    Those with theta < 0 go dormant; as many of the dormant are drawn and start at theta = 0, so the
    count of every layer is exact after every step.
    """

    name = "deepr"

    connectivity: float = asked(0.05)
    alpha: float = field(default=1e-4, metadata={"help": "L1 penalty on present synapses"})
    temperature: float = field(default=1e-9, metadata={"help": "of the noise; 0 switches it off"})
    allocation: str = field(
        default="uniform", metadata={"help": "count per layer: uniform, erk or global"}
    )

    def __post_init__(self) -> None:
        check(0 <= self.alpha < math.inf, "alpha", self.alpha, "a finite number, 0 or more")
        check(0 <= self.temperature < math.inf, "temperature", self.temperature, "0 or more")
        check_word("allocation", self.allocation, ALLOCATIONS)

    def init(self, layers: Sequence[Layer]) -> None:
        """Start from the strongest weights: random on a fresh net, a good choice on a trained."""
        masks = first_masks(layers, self.asked, self.allocation)
        for layer, mask in zip(layers, masks, strict=True):
            weight = layer.weight.detach()
            layer.state["sign"] = torch.ones_like(weight).copysign_(weight)
            layer.state["mask"] = mask

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Add penalty and noise, drop what turned negative, regrow as many at random."""
        for layer in layers:
            weight, mask, sign = layer.weight, layer.state["mask"], layer.state["sign"]
            generator = self.draws(weight.device)
            drift = sign * (layer.lr * self.alpha)
            if self.temperature:
                noise = torch.empty_like(weight).normal_(generator=generator)
                drift -= noise * math.sqrt(2 * layer.lr * self.temperature)
            weight.sub_(drift)
            dropped = mask & (weight * sign < 0)
            mask &= ~dropped  # they may be drawn again: at connectivity 1 there are no others
            self.regrow_(layer, pick(~mask, int(dropped.sum()), generator))
