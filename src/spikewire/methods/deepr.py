"""Deep Rewiring (Deep R): Bellec, Kappel, Maass, Legenstein, ICLR 2018, https://arxiv.org/abs/1711.05136."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spikewire.pruning import (
    ALLOCATIONS,
    Layer,
    Masked,
    Pruner,
    largest_weights,
    random_mask,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class DeepR(Masked):
    """Noisy descent on present synapses; a random dormant one replaces each that turns negative.

    With ``w = s theta`` and s = +-1 fixed, for present synapses (Algorithm 1)::

        theta <- theta - lr (dL/dtheta + alpha) + sqrt(2 lr temperature) nu,   nu ~ N(0, 1)

    Those with theta < 0 become dormant; as many of the dormant are drawn and start at theta = 0, so
    the count of every layer is exact after every step.
    """

    name = "deepr"

    connectivity: float = setting(0.05, "target fraction of weights", within="(0, 1]")
    alpha: float = setting(1e-4, "L1 penalty on present synapses", within="[0, inf)")
    temperature: float = setting(1e-9, "temperature of the noise; 0: no noise", within="[0, inf)")
    allocation: str = setting("uniform", "synapses per layer", choices=ALLOCATIONS)

    def init(self, pruner: Pruner) -> None:
        """Start from the largest weights, which on a fresh network are random."""
        target = pruner.shared_target or self.connectivity
        masks = largest_weights(pruner.layers, target, self.allocation)
        for layer, mask in zip(pruner.layers, masks, strict=True):
            weight = layer.weight.detach()
            layer.state["sign"] = torch.ones_like(weight).copysign_(weight)
            layer.state["mask"] = mask

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Add penalty and noise, drop what turned negative, regrow as many at random."""
        for layer in layers:
            weight, mask, sign = layer.weight, layer.state["mask"], layer.state["sign"]
            generator = pruner.device_generator(weight.device)
            drift = sign * (layer.lr * self.alpha)
            if self.temperature:
                noise = torch.empty_like(weight).normal_(generator=generator)
                drift -= noise * math.sqrt(2 * layer.lr * self.temperature)
            weight.sub_(drift)
            dropped = mask & (weight * sign < 0)
            mask &= ~dropped  # they may be drawn again: at connectivity 1 there are no others
            self.regrow_(layer, random_mask(~mask, int(dropped.sum()), generator))
