"""Gradient Rewiring (Grad R): Chen, Yu, Fang, Huang, Tian, IJCAI 2021, https://arxiv.org/abs/2105.04916."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikewire.errors import SpikewireError, check
from spikewire.kernels import same_layout
from spikewire.pruning.asked import asked
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Latent, warn_of_weight_decay
from spikewire.pruning.selection import levels, wire
from spikewire.schedules import cubic


def laplace_sparsity(mu: float, alpha: float) -> float:
    """Return P[theta <= 0] under the prior ``alpha/2 exp(-alpha |theta - mu|)`` (Eq. 9)."""
    return 0.5 * math.exp(-alpha * mu) if mu > 0 else 1 - 0.5 * math.exp(alpha * mu)


def laplace_location(sparsity: float, alpha: float) -> float:
    """Return the mu whose prior prunes a share `sparsity`: the inverse of Eq. 9 (Eq. 10)."""
    if alpha == 0:
        return -math.inf  # a flat prior pulls nowhere; its location does not matter
    return -math.log(2 * sparsity) / alpha if sparsity < 0.5 else math.log(2 - 2 * sparsity) / alpha


@dataclass(kw_only=True)
class GradR(Latent):
    """The gradient at weight 0 brings absent synapses back; a prior drags all of them down.

    ``w = s relu(theta)``, s = +-1 fixed at the start, and for every theta, present or absent::

        theta <- theta - lr (s dL/dw + alpha sign(theta - mu)),   mu = ln(2 - 2p) / alpha

    The optimizer moves ``u = s theta`` with dL/dw. For any sign-equivariant optimizer this equals
    moving theta with s dL/dw, and the prior stays outside Adam's moments.

    Steered (`connectivity` instead of `alpha`): the drift common to all theta is no constant but
    solved from their distribution, so that the share above 0 follows ``c + (1 - c)(1 - x)^3`` and
    ends at c whatever the length of the run.
    """

    name = "gradr"
    exclusive = ("alpha", "connectivity")

    alpha: float | None = field(
        default=None, metadata={"help": "penalty: the prior's pull on every theta (1e-3)"}
    )
    sparsity: float = field(
        default=0.95, metadata={"help": "the paper's p, which sets mu; at least 0.5"}
    )
    connectivity: float | None = asked(None, "asked share of synapses; left out: alpha decides")
    ramp: float = field(
        default=0.6, metadata={"help": "steered: share of the run to the asked share"}
    )
    every: int = field(
        default=4, metadata={"help": "steered: steps between solutions for the drift"}
    )

    def __post_init__(self) -> None:
        if self.alpha is not None and self.asked is not None:
            raise SpikewireError("alpha: give either alpha or connectivity, not both")
        if self.alpha is None and self.asked is None:
            self.alpha = 1e-3
        if self.alpha is not None:
            check(0 <= self.alpha < math.inf, "alpha", self.alpha, "a finite number, 0 or more")
        check(0 < self.ramp <= 1, "ramp", self.ramp, "in (0, 1]")
        check(self.every >= 1, "every", self.every, "1 or more")
        check(
            0.5 <= self.sparsity < 1,
            "sparsity",
            self.sparsity,
            "in [0.5, 1): below 0.5 mu is positive and the weights' prior has two peaks "
            "(paper, appendix C)",
        )

    def init(self, layers: Sequence[Layer]) -> None:
        """Split each weight into sign and theta; a weight of 0 gets sign +1, never 0."""
        for optimizer in {id(x.optimizer): x.optimizer for x in layers}.values():
            refuse_sign_dependent(optimizer)
        warn_of_weight_decay(self, layers)
        for layer in layers:
            weight = layer.weight.detach()
            layer.state["latent"] = weight.clone()
            layer.state["sign"] = torch.ones_like(weight).copysign_(weight)

    def before_step(self, layers: Sequence[Layer]) -> None:
        """Apply the prior to theta as it was before the step; the optimizer adds its own move."""
        if self.alpha is None:
            return
        mu = laplace_location(self.sparsity, self.alpha)
        for layer in layers:
            drag_(layer.weight, layer.state["sign"], mu, layer.lr * self.alpha)

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Where steered, let all theta drift alike, as far as the asked share needs."""
        if self.asked is None or not (self.step % self.every == 0 or self.crosses(1.0)):
            return
        thetas = [layer.state["latent"] * layer.state["sign"] for layer in layers]
        masks = wire(layers, thetas, lambda x: cubic(self.progress / self.ramp, 1.0, self.share(x)))
        for layer, level in zip(layers, levels(thetas, masks), strict=True):
            layer.state["latent"].sub_(layer.state["sign"] * level)

    def project(self, layer: Layer) -> Tensor:
        """``w = s relu(s u)``."""
        return rectify(layer.state["latent"], layer.state["sign"])

    def project_(self, layer: Layer) -> None:
        """Let the kernel write where the network reads."""
        rectify(layer.state["latent"], layer.state["sign"], out=layer.weight)


def drag_(latent: Tensor, sign: Tensor, mu: float, pull: float | Tensor) -> None:
    """``u <- u - s sign(s u - mu) pull``."""
    if isinstance(pull, float) and same_layout(latent, sign):
        from spikewire.kernels import weights  # needs Triton, which need not be there

        weights.drag_(latent, sign, mu, pull)
    else:
        latent.sub_(sign * torch.sign(latent * sign - mu) * pull)


def rectify(latent: Tensor, sign: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``s relu(s u)``, in `out` if given."""
    out = torch.empty_like(latent) if out is None else out
    if same_layout(latent, sign, out):
        from spikewire.kernels import weights

        return weights.rectify(latent, sign, out)
    return torch.mul((latent * sign).relu_(), sign, out=out)


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
            f"gradr: cannot tell whether {kind.__name__} treats both signs alike ({error}); "
            "use SGD, Adam, AdamW or RMSprop"
        ) from error
    if not same:
        raise SpikewireError(
            f"gradr: {kind.__name__} moves mirrored gradients differently, so moving s*theta is "
            "not moving theta; use a sign-equivariant optimizer: SGD, Adam, AdamW or RMSprop"
        )
