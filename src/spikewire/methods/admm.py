"""ADMM pruning: Deng et al., "Comprehensive SNN Compression", TNNLS 2021, https://arxiv.org/abs/1911.00822."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spikewire.pruning import (
    SCOPES,
    Layer,
    Masked,
    Pruner,
    all_present,
    select_masks,
    setting,
)

DISTANCES = ("squared", "norm")


@dataclass(frozen=True, kw_only=True)
class ADMM(Masked):
    """Pull the weights towards a sparse copy of themselves, then prune and fine-tune.

    From `begin` to `harden` of the run the loss gains ``rho/2 |W - Z + U|^2``, or with ``distance
    = "norm"`` ``rho |W - Z + U|`` of each layer; every `every` steps ``Z <- the largest of W + U``,
    the rest 0, and ``U <- U + W - Z``. At `harden` the largest weights are kept, and training
    continues under that mask.

    The authors' script starts from a trained network with ``begin=0, rho=1e-4, distance="norm",
    scope="layer"``, updates Z and U once per epoch (`every` = steps per epoch), and prunes after
    half of its epochs.
    """

    name = "admm"

    connectivity: float = setting(0.05, "target fraction of weights", within="(0, 1]")
    rho: float = setting(1e-2, "strength of the pull", within="[0, inf)")
    begin: float = setting(0.1, "fraction of the run before the pull begins", within="[0, 1)")
    harden: float = setting(
        0.5, "fraction of the run at which weights are pruned", within="(begin, 1]"
    )
    every: int = setting(32, "steps between updates of Z and U", within="[1, inf)")
    scope: str = setting("global", "what competes: all layers or each alone", choices=SCOPES)
    distance: str = setting(
        "squared", "what the pull shrinks: the squared distance, or its norm", choices=DISTANCES
    )

    def init(self, pruner: Pruner) -> None:
        """Start dense; Z is set when the pull begins, U is 0 until its first update."""
        for layer in pruner.layers:
            layer.state["mask"] = all_present(layer)
            layer.state["z"] = torch.zeros_like(layer.weight)
            layer.state["u"] = torch.zeros_like(layer.weight)
        if self.begin == 0:
            self.update_z_(pruner, pruner.layers)

    def before_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Add the gradient of the pull, between the first Z and the pruning."""
        if not self.begin <= pruner.progress < self.harden:
            return
        for layer in layers:
            assert layer.weight.grad is not None
            pull = (layer.weight - layer.state["z"] + layer.state["u"]) * self.rho
            if self.distance == "norm":  # the gradient of |X| is X / |X|
                pull *= self.rho / pull.norm().clamp(min=1e-30)
            scale = getattr(layer.optimizer, "grad_scale", None)
            layer.weight.grad.add_(pull if scale is None else pull * scale)

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Update Z and U while pulling; prune once, at `harden`."""
        # also layers without a gradient in this step: the time to prune does not come again
        layers = pruner.all_layers()
        if pruner.passes(self.harden):
            masks = select_masks(
                layers, [x.weight.abs() for x in layers], pruner.target_of, self.scope
            )
            for layer, mask in zip(layers, masks, strict=True):
                layer.state["mask"].copy_(mask)
        elif pruner.passes(self.begin):
            self.update_z_(pruner, layers)
        elif self.begin < pruner.progress < self.harden and pruner.step % self.every == 0:
            self.update_z_(pruner, layers)
            for layer in layers:
                layer.state["u"].add_(layer.weight - layer.state["z"])

    def update_z_(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """``Z <- the largest of W + U``, the sparse copy that W is pulled to."""
        sums = [layer.weight + layer.state["u"] for layer in layers]
        masks = select_masks(layers, [x.abs() for x in sums], pruner.target_of, self.scope)
        for layer, total, mask in zip(layers, sums, masks, strict=True):
            layer.state["z"].copy_(total * mask)
