"""ADMM pruning: Deng et al., "Comprehensive SNN Compression", TNNLS 2021, https://arxiv.org/abs/1911.00822."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spikewire.errors import check, check_word
from spikewire.pruning.asked import asked
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Masked
from spikewire.pruning.selection import SCOPES, wire


@dataclass(kw_only=True)
class Admm(Masked):
    """Pull the weights towards a sparse copy of themselves, then cut and fine-tune.

    From `begin` to `harden` of the run the loss gains ``rho/2 |W - Z + U|^2``; every `every` steps
    ``Z <- the strongest of W + U``, the rest 0, and ``U <- U + W - Z``. At `harden` the strongest
    weights stay, and training goes on under that mask.
    """

    name = "admm"

    connectivity: float = asked(0.05)
    rho: float = field(default=1e-2, metadata={"help": "strength of the pull"})
    begin: float = field(default=0.1, metadata={"help": "share of the run before the pull begins"})
    harden: float = field(
        default=0.5, metadata={"help": "share of the run at which the weights are cut"}
    )
    every: int = field(default=32, metadata={"help": "steps between updates of Z and U"})
    scope: str = field(default="global", metadata={"help": "who competes: global or layer"})

    def __post_init__(self) -> None:
        check(0 <= self.rho < math.inf, "rho", self.rho, "a finite number, 0 or more")
        check(0 <= self.begin < 1, "begin", self.begin, "in [0, 1)")
        check(self.begin < self.harden <= 1, "harden", self.harden, "above begin, at most 1")
        check(self.every >= 1, "every", self.every, "1 or more")
        check_word("scope", self.scope, SCOPES)

    def init(self, layers: Sequence[Layer]) -> None:
        """Begin dense; Z and U are set when the pull begins."""
        for layer in layers:
            layer.state["mask"] = torch.ones_like(layer.weight, dtype=torch.bool)
            layer.state["z"] = torch.zeros_like(layer.weight)
            layer.state["u"] = torch.zeros_like(layer.weight)

    def before_step(self, layers: Sequence[Layer]) -> None:
        """Add ``rho (W - Z + U)`` to the gradient, between the first Z and the cut."""
        if self.step == 0 or not self.begin <= self.progress < self.harden:
            return
        for layer in layers:
            assert layer.weight.grad is not None
            pull = (layer.weight - layer.state["z"] + layer.state["u"]) * self.rho
            scale = getattr(layer.optimizer, "grad_scale", None)
            layer.weight.grad.add_(pull if scale is None else pull * scale)

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Update Z and U while pulling; cut once at `harden`."""
        # a layer without a gradient now is cut all the same: the time to cut does not come again
        layers = self.everyone()
        if self.crosses(self.harden):
            masks = wire(layers, [x.weight.abs() for x in layers], self.share, self.scope)
            for layer, mask in zip(layers, masks, strict=True):
                layer.state["mask"].copy_(mask)
        elif self.crosses(max(self.begin, 1 / self._total_steps)):
            self.project(layers)
        elif self.begin < self.progress < self.harden and self.step % self.every == 0:
            self.project(layers)
            for layer in layers:
                layer.state["u"].add_(layer.weight - layer.state["z"])

    def project(self, layers: Sequence[Layer]) -> None:
        """``Z <- the strongest of W + U``, the sparse copy that W is pulled to."""
        aims = [layer.weight + layer.state["u"] for layer in layers]
        masks = wire(layers, [aim.abs() for aim in aims], self.share, self.scope)
        for layer, aim, mask in zip(layers, aims, masks, strict=True):
            layer.state["z"].copy_(aim * mask)
