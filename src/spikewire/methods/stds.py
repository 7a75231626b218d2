"""STDS, state transition of dendritic spines: Chen, Yu, Fang, Ma, Huang, Tian, ICML 2022, https://proceedings.mlr.press/v162/chen22ac.html."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spikewire.pruning import (
    UNITS,
    Latent,
    Layer,
    Priced,
    Pruner,
    highest_absent,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class STDS(Latent, Priced):
    """A soft threshold that rises over the run: weak synapses become filopodia, and may return.

    ``w = sign(theta) relu(|theta| - d)`` with ``d = limit (1 - cos(pi x)) / 2`` (or ``limit x``), x
    from 0 to 1 at `ramp` of the run, while theta moves with dL/dw whether its synapse is present or
    not. With a target the limit is solved from the distribution of |theta|, so that the run ends at
    it. Without `limit` or target, `connectivity` is 0.05.
    """

    name = "stds"
    exclusive = ("limit", *UNITS)
    default = 0.05

    limit: float | None = setting(None, "final threshold, the paper's D", within="[0, inf)")
    shape: str = setting("sine", "how the threshold rises", choices=("sine", "linear"))
    ramp: float = setting(0.7, "fraction of the run until it has risen", within="(0, 1]")
    every: int = setting(8, "steps between solutions for the limit", within="[1, inf)")

    def init(self, pruner: Pruner) -> None:
        """Take the weights as theta; the threshold starts at 0."""
        self.start_meter(pruner)
        for layer in pruner.layers:
            layer.state["latent"] = layer.weight.detach().clone()
            layer.state["limit"] = layer.weight.new_full((), self.limit or 0.0)
            layer.state["depth"] = layer.weight.new_zeros(())

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Raise the threshold."""
        self.raise_(pruner, pruner.all_layers(), self.due(pruner))  # also without a gradient

    def due(self, pruner: Pruner) -> bool:
        """Return whether the limit is solved after this step."""
        return pruner.step % self.every == 0 or pruner.passes(1.0)

    def end(self, pruner: Pruner) -> None:
        """Solve once more where the run ends between two solutions, as with a GradScaler."""
        if pruner.step and not self.due(pruner):
            self.raise_(pruner, pruner.layers, solve=True)

    def raise_(self, pruner: Pruner, layers: Sequence[Layer], solve: bool) -> None:
        """Raise the threshold; with `solve`, to a limit that the target needs now."""
        if self.unit and solve:
            sizes = [layer.state["latent"].abs() for layer in layers]
            masks = self.select(pruner, layers, sizes, in_order=True)
            for layer, level in zip(layers, highest_absent(sizes, masks), strict=True):
                layer.state["limit"].copy_(level)
        risen = min(1.0, pruner.progress / self.ramp)
        risen = (1 - math.cos(math.pi * risen)) / 2 if self.shape == "sine" else risen
        for layer in layers:
            torch.mul(layer.state["limit"], risen, out=layer.state["depth"])

    def project(self, layer: Layer) -> Tensor:
        """``w = sign(theta) relu(|theta| - d)``."""
        latent = layer.state["latent"]
        return (latent.abs() - layer.state["depth"]).relu_().copysign_(latent)

    def unproject(self, layer: Layer) -> Tensor:
        """``theta = w + sign(w) d``."""
        return layer.weight + layer.weight.sign() * layer.state["depth"]
