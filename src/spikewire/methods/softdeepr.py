"""Soft Deep Rewiring: Bellec, Kappel, Maass, Legenstein, ICLR 2018, https://arxiv.org/abs/1711.05136."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spikewire.pruning import (
    INITIAL,
    Latent,
    Layer,
    Pruner,
    check,
    first_masks,
    reset_moments_,
    setting,
)


def dormant_limit(connectivity: float, alpha: float, temperature: float) -> float:
    """Return the theta_min under which a fraction `connectivity` of the synapses is present.

    Without a gradient theta diffuses freely between theta_min and 0 and against the drift alpha
    above 0: its stationary density is 1 below 0 and ``exp(-alpha theta / temperature)`` above. The
    masses are ``-theta_min`` and ``temperature / alpha``, hence the rule of the authors' code::

        theta_min = -(temperature / alpha) (1 - connectivity) / connectivity
    """
    return -temperature / alpha * (1 - connectivity) / connectivity


@dataclass(frozen=True, kw_only=True)
class SoftDeepR(Latent):
    """Deep R without a fixed count: dormant synapses move at random and return above 0.

    ``w = s relu(theta)``, s = +-1 fixed (Algorithm 2)::

        theta >= 0:  theta <- theta - lr (dL/dtheta + alpha) + sqrt(2 lr temperature) nu
        theta < 0:   theta <- theta + sqrt(2 lr temperature) nu

    and no theta falls below theta_min; one that returns starts with its optimizer state reset. How
    many synapses are left follows from alpha, temperature and theta_min. With `expected`, a
    connectivity, theta_min is derived from it (`dormant_limit`), and the run starts with that
    fraction present, the others spread evenly between theta_min and 0. This is the authors' rule of
    thumb, not a target: it ignores the gradient, which keeps more synapses present.
    """

    name = "softdeepr"
    keeps_signs = True
    counts = "the number of weights follows from its other fields"
    exclusive = ("theta_min", "expected")
    for_trained = {"initial": "largest"}

    expected: float | None = setting(
        None,
        "connectivity at the start and, without a gradient, later; sets theta_min",
        within="(0, 1]",
    )

    alpha: float = setting(1e-2, "L1 penalty on present synapses", within="[0, inf)")
    temperature: float = setting(1e-7, "temperature of the noise; 0: no noise", within="[0, inf)")
    theta_min: float | None = setting(
        None, "lower limit of dormant theta; -0.01 if `expected` is not given", within="(-inf, 0)"
    )
    initial: str = setting(
        "random",
        "with expected, the synapses present at first: random, or the largest weights",
        choices=INITIAL,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expected is not None:
            check(self.alpha > 0, "alpha", self.alpha, "above 0 with expected")
            check(self.temperature > 0, "temperature", self.temperature, "above 0 with expected")
        elif self.theta_min is None:
            object.__setattr__(self, "theta_min", -0.01)

    @property
    def limit(self) -> float:
        """The lower limit of theta, given or derived."""
        if self.expected is None:
            assert self.theta_min is not None
            return self.theta_min
        return dormant_limit(self.expected, self.alpha, self.temperature)

    def init(self, pruner: Pruner) -> None:
        """Split each weight into sign and theta; all are present, or the expected fraction."""
        for layer in pruner.layers:
            weight = layer.weight.detach()
            layer.state["sign"] = torch.ones_like(weight).copysign_(weight)
            layer.state["latent"] = weight.clone()
            layer.state["before"] = weight.clone()
        if self.expected is not None:
            masks = first_masks(pruner, self.expected, "uniform", self.initial)
            for layer, mask in zip(pruner.layers, masks, strict=True):
                self.make_dormant_(pruner, layer, ~mask)

    def make_dormant_(self, pruner: Pruner, layer: Layer, dormant: Tensor) -> None:
        """Spread the theta of dormant synapses evenly between the limit and 0."""
        latent = layer.state["latent"]
        generator = pruner.device_generator(latent.device)
        theta = torch.empty_like(latent).uniform_(self.limit, 0.0, generator=generator)
        latent.copy_(torch.where(dormant, theta * layer.state["sign"], latent))

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
            theta = moved.clamp_(min=self.limit)
            latent.copy_(theta * sign)
            regrown = ~active & (theta >= 0)
            if regrown.any():
                reset_moments_(layer.optimizer, layer.weight, regrown, active & (theta > 0))

    def project(self, layer: Layer) -> Tensor:
        """``w = s relu(theta)``."""
        sign = layer.state["sign"]
        return (layer.state["latent"] * sign).relu_().mul_(sign)
