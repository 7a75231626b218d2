"""Soft Deep Rewiring: Bellec, Kappel, Maass, Legenstein, ICLR 2018, https://arxiv.org/abs/1711.05136."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spikewire.pruning import Latent, Layer, Pruner, reset_moments_, setting


@dataclass(frozen=True, kw_only=True)
class SoftDeepR(Latent):
    """Deep R without a fixed count: dormant synapses move at random and return above 0.

    ``w = s relu(theta)``, s = +-1 fixed (Algorithm 2)::

        theta >= 0:  theta <- theta - lr (dL/dtheta + alpha) + sqrt(2 lr temperature) nu
        theta < 0:   theta <- theta + sqrt(2 lr temperature) nu

    and no theta falls below theta_min; one that returns starts with its optimizer state reset. How
    many synapses are left follows from alpha, temperature and theta_min.
    """

    name = "softdeepr"

    alpha: float = setting(1e-2, "L1 penalty on present synapses", within="[0, inf)")
    temperature: float = setting(1e-7, "temperature of the noise; 0: no noise", within="[0, inf)")
    theta_min: float = setting(-0.01, "lower limit of dormant theta", within="(-inf, 0)")

    def init(self, pruner: Pruner) -> None:
        """Split each weight into sign and theta; all are present at first."""
        for layer in pruner.layers:
            weight = layer.weight.detach()
            layer.state["sign"] = torch.ones_like(weight).copysign_(weight)
            layer.state["latent"] = weight.clone()
            layer.state["before"] = weight.clone()

    def before_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Remember theta: dormant synapses must follow neither the gradient nor old momentum."""
        for layer in layers:
            layer.state["before"].copy_(layer.state["latent"])

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Move present synapses by penalty and noise, dormant ones by noise, above theta_min."""
        for layer in layers:
            sign, latent = layer.state["sign"], layer.state["latent"]
            before = layer.state["before"] * sign
            noise = torch.zeros_like(latent)
            if self.temperature:
                noise.normal_(generator=pruner.device_generator(latent.device))
                noise *= math.sqrt(2 * layer.lr * self.temperature)
            active = before >= 0
            moved = torch.where(active, latent * sign - layer.lr * self.alpha, before) + noise
            theta = moved.clamp_(min=self.theta_min)
            latent.copy_(theta * sign)
            regrown = ~active & (theta >= 0)
            if regrown.any():
                reset_moments_(layer.optimizer, layer.weight, regrown, active & (theta > 0))

    def project(self, layer: Layer) -> Tensor:
        """``w = s relu(theta)``."""
        sign = layer.state["sign"]
        return (layer.state["latent"] * sign).relu_().mul_(sign)
