"""Soft Deep Rewiring: Bellec, Kappel, Maass, Legenstein, ICLR 2018, https://arxiv.org/abs/1711.05136."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spikewire.errors import check
from spikewire.pruning.allocation import reset_moments_
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Latent


@dataclass(kw_only=True)
class SoftDeepR(Latent):
    """Deep R without a fixed count: the dormant walk at random and come back when they cross 0.

    ``w = s relu(theta)``, s = +-1 fixed (Algorithm 2)::

        theta >= 0:  theta <- theta - lr (dL/dtheta + alpha) + sqrt(2 lr temperature) nu
        theta < 0:   theta <- theta + sqrt(2 lr temperature) nu

    and no theta sinks below theta_min; one that comes back starts with fresh moments. How many
    synapses are left follows from alpha, temperature and theta_min.
    """

    name = "softdeepr"

    alpha: float = field(default=1e-2, metadata={"help": "L1 penalty on present synapses"})
    temperature: float = field(default=1e-7, metadata={"help": "of the noise; 0 switches it off"})
    theta_min: float = field(
        default=-0.01, metadata={"help": "floor of dormant synapses, negative"}
    )

    def __post_init__(self) -> None:
        check(0 <= self.alpha < math.inf, "alpha", self.alpha, "a finite number, 0 or more")
        check(0 <= self.temperature < math.inf, "temperature", self.temperature, "0 or more")
        check(-math.inf < self.theta_min < 0, "theta_min", self.theta_min, "a negative number")

    def init(self, layers: Sequence[Layer]) -> None:
        """Split each weight into sign and theta; all are present at first."""
        for layer in layers:
            weight = layer.weight.detach()
            layer.state["sign"] = torch.ones_like(weight).copysign_(weight)
            layer.state["latent"] = weight.clone()
            layer.state["before"] = weight.clone()

    def before_step(self, layers: Sequence[Layer]) -> None:
        """Remember theta: dormant synapses must not feel the gradient, nor old momentum."""
        for layer in layers:
            layer.state["before"].copy_(layer.state["latent"])

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Move the present by penalty and noise, the dormant by noise alone, down to the floor."""
        for layer in layers:
            sign, latent = layer.state["sign"], layer.state["latent"]
            before = layer.state["before"] * sign
            noise = torch.zeros_like(latent)
            if self.temperature:
                noise.normal_(generator=self.draws(latent.device))
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
