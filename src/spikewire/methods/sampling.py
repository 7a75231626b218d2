"""Synaptic sampling: Kappel, Habenschuss, Legenstein, Maass, PLoS Comput. Biol. 2015, https://doi.org/10.1371/journal.pcbi.1004485."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from spikewire.pruning import (
    Latent,
    Layer,
    Pruner,
    SpikewireError,
    reset_moments_,
    setting,
    target_count,
    warn_of_weight_decay,
)

PUBLISHED_MEAN = 0.5  # of the prior
UNBOUNDED = {"low": -math.inf, "high": math.inf, "total": 0.0}  # options that bound weights
LOWEST = 3.0  # standard deviations below the mean: the first theta of a weight of 0
MARGIN = 1e-6  # of the first theta above 0


def prior_mean(connectivity: float, std: float) -> float:
    """Return the mean of a normal prior with ``P(theta > 0) = connectivity``: std Phi^-1."""
    return std * NormalDist().inv_cdf(connectivity)


@dataclass(frozen=True, kw_only=True)
class SynapticSampling(Latent):
    """Connections are sampled: noise, a Gaussian prior and the gradient move every theta.

    ``w = s exp(theta - theta0)`` where theta > 0, else 0, and for all theta at once::

        theta <- theta - lr dL/dtheta + b (mean - theta) / std^2 + sqrt(2 b) nu,   nu ~ N(0, 1)

    with ``b = lr temperature``. ``dL/dtheta = w dL/dw`` is 0 for an absent synapse, which moves by
    prior and noise alone and returns when it passes 0, with its optimizer state reset. With SGD
    and a small rate theta is a sample of ``p(theta) exp(-L / temperature)``, p being the prior.

    How many synapses are left is an outcome. Without a gradient it is P(theta > 0) = Phi(mean /
    std): 69 % with the published prior. `expected`, a connectivity, sets the mean by its inverse;
    it is no target, since the gradient moves theta of present synapses away from the prior.

    The signs s, fixed as in Deep R, the optimizer and `theta0` per layer are ours.
    """

    name = "sampling"
    keeps_signs = True
    counts = "connectivity is an outcome of its prior; expected sets the prior's mean"
    exclusive = ("mean", "expected")

    expected: float | None = setting(
        None,
        "connectivity at the start and, without a gradient, later; sets mean",
        within="(0, 1)",
    )
    mean: float | None = setting(
        None,
        "mean of the prior of theta; 0.5 if `expected` is not given",
        within="[-50, 50]",
    )
    std: float = setting(1.0, "standard deviation of the prior of theta", within="[0.001, 1000]")
    temperature: float = setting(
        1e-2, "of the sampling: b = lr x temperature; 0: no prior, no noise", within="[0, inf)"
    )
    theta0: float | None = setting(
        None,
        "offset of theta, 3 as published; none: per layer, to start with Phi(mean / std) present",
        within="[-50, 50]",
    )

    @property
    def centre(self) -> float:
        """The mean of the prior, given or derived."""
        if self.expected is not None:
            return prior_mean(self.expected, self.std)
        return PUBLISHED_MEAN if self.mean is None else self.mean

    def init(self, pruner: Pruner) -> None:
        """Set ``theta = log |w| + theta0``: present synapses have the given weights."""
        warn_of_weight_decay(self.name, pruner.layers)
        for layer in pruner.layers:
            refuse_bounds(layer)
            weight = layer.weight.detach()
            smallest = self.smallest_weight(weight)
            theta = (weight.abs() / smallest).log_().add_(MARGIN)
            layer.state["latent"] = theta.clamp_(min=self.centre - LOWEST * self.std)
            layer.state["before"] = theta.clone()
            layer.state["scale"] = torch.ones_like(weight).copysign_(weight) * smallest

    def smallest_weight(self, weight: Tensor) -> Any:
        """Return ``exp(-theta0)`` of a layer, the size of its smallest weights."""
        if self.theta0 is not None:
            return math.exp(-self.theta0)
        present = 1 - NormalDist(self.centre, self.std).cdf(0)
        sizes = weight.abs()[weight != 0]
        if not sizes.numel():
            return weight[0].numel() ** -0.5
        return kth_largest(sizes, target_count(present, weight.numel()))

    def before_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Turn dL/dw into ``dL/dtheta = w dL/dw``."""
        for layer in layers:
            layer.state["before"].copy_(layer.state["latent"])
            layer.weight.grad.mul_(self.project(layer))  # pyright: ignore[reportOptionalMemberAccess]

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Add what prior and noise do; an absent synapse feels nothing else."""
        for layer in layers:
            latent, before = layer.state["latent"], layer.state["before"]
            rate = layer.lr * self.temperature  # b
            moved = torch.where(before > 0, latent, before)
            if rate:
                noise = torch.empty_like(latent)
                noise.normal_(generator=pruner.device_generator(latent.device))
                drift = (self.centre - before) * (rate / self.std**2)
                moved += drift + noise * math.sqrt(2 * rate)
            latent.copy_(moved)
            regrown = (before <= 0) & (latent > 0)
            if regrown.any():
                reset_moments_(layer.optimizer, layer.weight, regrown, (before > 0) & (latent > 0))

    def project(self, layer: Layer) -> Tensor:
        """``w = s exp(theta - theta0)`` where theta > 0; NaN stays NaN."""
        theta = layer.state["latent"]
        return theta.exp().mul_(theta > 0).mul_(layer.state["scale"])

    def mask(self, layer: Layer) -> Tensor:
        """Return where theta is above 0."""
        return layer.state["latent"] > 0

    def accept_edit_(self, layer: Layer, before: Tensor) -> None:
        """Keep a written weight by the offset of its synapse, not by theta: it stays present."""
        written = self.mask(layer) & (layer.weight != before)
        scale = layer.state["scale"]
        scale.copy_(torch.where(written, layer.weight / layer.state["latent"].exp(), scale))


def kth_largest(sizes: Tensor, count: int) -> Tensor:
    """Return the `count`-th largest of sizes, the least of them where there are fewer."""
    return sizes.kthvalue(max(1, sizes.numel() - count + 1)).values


def refuse_bounds(layer: Layer) -> None:
    """Raise where the optimizer bounds weights: theta is none."""
    if any(layer.options.get(key, free) != free for key, free in UNBOUNDED.items()):
        kind = type(layer.optimizer).__name__
        raise SpikewireError(
            f"sampling: {kind} bounds the weights it moves, and here it moves theta; "
            "use a network that learns by a gradient, rbm or tempotron"
        )
