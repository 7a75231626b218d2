"""Gradient Rewiring (Grad R): Chen, Yu, Fang, Huang, Tian, IJCAI 2021, https://arxiv.org/abs/2105.04916."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikewire.pruning import (
    UNITS,
    Latent,
    Layer,
    Priced,
    Pruner,
    SpikewireError,
    cubic,
    drag_,
    highest_absent,
    rectify,
    setting,
    warn_caller,
    warn_of_weight_decay,
)


def laplace_sparsity(mu: float, alpha: float) -> float:
    """Return P[theta <= 0] under the prior ``alpha/2 exp(-alpha |theta - mu|)`` (Eq. 9)."""
    return 0.5 * math.exp(-alpha * mu) if mu > 0 else 1 - 0.5 * math.exp(alpha * mu)


def laplace_location(p: float, alpha: float) -> float:
    """Return the mu whose prior prunes a fraction `p`: the inverse of Eq. 9 (Eq. 10)."""
    if alpha == 0:
        return -math.inf  # a flat prior has no pull; its location does not matter
    return -math.log(2 * p) / alpha if p < 0.5 else math.log(2 - 2 * p) / alpha


MOST = 1 / 3  # fraction of weights left by the prior above which attach warns
SAMPLE = 65_536  # weights of a layer from which that is estimated


def expected_connectivity(theta: Tensor, drift: float, walk: float) -> float:
    """Return the fraction of theta above 0 after a drift down and a random walk.

    ``mean of Phi((theta - drift) / walk)`` with the normal distribution Phi. The prior moves theta
    by ``drift = alpha lr steps``. Adam divides the gradient by its size, so a gradient of changing
    sign moves theta by about lr per step, and by ``walk = lr sqrt(steps)`` in all. In the paper's
    CIFAR-10 runs (lr 1e-4, 6.4 M steps) this gives 40, 30 and 10 % for alpha = 1e-4, 2e-4 and 5e-4;
    published are 37.8, 28.4 and 12.0 %. A gradient that keeps its sign makes it an estimate only.
    """
    if walk == 0:
        return float((theta > drift).double().mean())
    return float(torch.special.ndtr((theta - drift) / walk).double().mean())


@dataclass(frozen=True, kw_only=True)
class GradR(Latent, Priced):
    """The gradient at weight 0 brings absent synapses back; a prior drags all of them down.

    ``w = s relu(theta)``, s = +-1 fixed at the start, and for every theta, present or absent::

        theta <- theta - lr (s dL/dw + alpha sign(theta - mu)),   mu = ln(2 - 2p) / alpha

    The optimizer moves ``u = s theta`` with dL/dw. For any sign-equivariant optimizer this equals
    moving theta with s dL/dw, and the prior stays outside Adam's moments.

    With a target instead of `alpha` the drift common to all theta is not constant but solved from
    their distribution, so that the fraction above 0, in the unit of the target, follows
    ``c + (1 - c)(1 - x)^3`` and ends at c whatever the length of the run.
    """

    name = "gradr"
    keeps_signs = True
    exclusive = ("alpha", *UNITS)

    alpha: float | None = setting(
        None,
        "penalty: how strongly the prior drags every theta down; 1e-3 without a target",
        within="[0, inf)",
    )
    p: float = setting(
        0.95,
        "the paper's p, which sets mu; in its settings no theta gets that low: no effect",
        within="[0.5, 1)",
    )
    ramp: float = setting(
        0.6, "with a target: fraction of the run until it is met", within="(0, 1]"
    )
    every: int = setting(
        4, "with a target: steps between solutions for the drift", within="[1, inf)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha is None and not self.unit:
            object.__setattr__(self, "alpha", 1e-3)

    def init(self, pruner: Pruner) -> None:
        """Split each weight into sign and theta; a weight of 0 gets sign +1, never 0."""
        for optimizer in pruner.optimizers:
            refuse_sign_dependent(optimizer)
        warn_of_weight_decay(self.name, pruner.layers)
        self.start_meter(pruner)
        for layer in pruner.layers:
            weight = layer.weight.detach()
            layer.state["latent"] = weight.clone()
            layer.state["sign"] = torch.ones_like(weight).copysign_(weight)
        if self.alpha:
            warn_of_small_drift(pruner, self.alpha)

    def before_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Apply the prior to theta as it was before the step; the optimizer adds its own move."""
        if self.alpha is None:
            return
        mu = laplace_location(self.p, self.alpha)
        for layer in layers:
            drag_(layer.weight, layer.state["sign"], mu, layer.lr * self.alpha)

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """With a target, shift theta when due."""
        if self.unit and self.due(pruner):
            self.shift_(pruner, pruner.all_layers())  # also those without a gradient in this step

    def due(self, pruner: Pruner) -> bool:
        """Return whether theta is shifted after this step."""
        return pruner.step % self.every == 0 or pruner.passes(1.0)

    def end(self, pruner: Pruner) -> None:
        """Shift once more where the run ends between two shifts, as with a GradScaler."""
        if self.unit and pruner.step and not self.due(pruner):
            self.shift_(pruner, pruner.layers)

    def shift_(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Shift all theta of a layer as far as the target needs."""
        done = pruner.progress / self.ramp
        thetas = [layer.state["latent"] * layer.state["sign"] for layer in layers]
        masks = self.select(
            pruner, layers, thetas, lambda target: cubic(done, 1.0, target), in_order=True
        )
        levels = highest_absent(thetas, masks)
        for layer, theta, mask, level in zip(layers, thetas, masks, levels, strict=True):
            shift = torch.where(mask.all(), just_below(theta.amin()), level)
            layer.state["latent"].sub_(layer.state["sign"] * shift)

    def project(self, layer: Layer) -> Tensor:
        """``w = s relu(s u)``."""
        return rectify(layer.state["latent"], layer.state["sign"])

    def project_(self, layer: Layer) -> None:
        """Let the kernel write where the network reads."""
        rectify(layer.state["latent"], layer.state["sign"], out=layer.weight)


def just_below(lowest: Tensor) -> Tensor:
    """Return the shift that leaves the lowest theta, and so all of them, above 0; 0 if it is."""
    limits = torch.finfo(lowest.dtype)
    return (lowest * (1 + 4 * limits.eps) - limits.tiny).clamp(max=0.0) * (lowest <= 0)


def warn_of_small_drift(pruner: Pruner, alpha: float) -> None:
    """Warn if the prior is expected to leave more than a third of the weights."""
    left = total = drift = 0.0
    for layer in pruner.layers:
        lr = max(layer.options.get(key) or 0.0 for key in ("lr", "initial_lr", "max_lr"))
        normalised = "betas" in layer.options or "alpha" in layer.options  # Adam, RMSprop
        walk = lr * math.sqrt(pruner.total_steps) if normalised else 0.0
        drift = alpha * float(lr) * pruner.total_steps
        theta = layer.weight.detach().abs().flatten()
        sample = theta[:: max(1, len(theta) // SAMPLE)].float()
        left += expected_connectivity(sample, drift, float(walk)) * len(theta)
        total += len(theta)
    if left > MOST * total:
        warn_caller(
            f"gradr: alpha {alpha:g} moves theta by only {drift:.2g} in this run (alpha x lr x "
            f"steps), so about {left / total:.0%} of the weights will stay; give connectivity "
            "instead, or a larger alpha"
        )


def refuse_sign_dependent(optimizer: Optimizer) -> None:
    """Raise unless mirrored gradients make mirrored moves, tried on a 4 x 4 matrix."""
    kind, options = type(optimizer), optimizer.defaults
    accepted = inspect.signature(kind).parameters
    options = {k: v for k, v in options.items() if k in accepted and not isinstance(v, Tensor)}
    example = optimizer.param_groups[0]["params"][0]
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(4, 4, 4, generator=generator).to(example)
    sign = torch.where(start * gradients[0] > 0, 1.0, -1.0).to(example)
    plain, mirrored = nn.Parameter(start.clone()), nn.Parameter(start * sign)
    try:
        for parameter, factor in ((plain, 1.0), (mirrored, sign)):
            probe = kind([parameter], **options)
            for gradient in gradients:
                parameter.grad = gradient * factor
                probe.step()
        same = torch.allclose(plain * sign, mirrored, atol=1e-6)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpikewireError(
            f"gradr: cannot find out whether {kind.__name__} treats both signs the same ({error}); "
            "use SGD, Adam, AdamW or RMSprop"
        ) from error
    if not same:
        raise SpikewireError(
            f"gradr: {kind.__name__} moves mirrored gradients differently, so moving s*theta is "
            "not moving theta; use SGD, Adam, AdamW or RMSprop, or another method"
        )
