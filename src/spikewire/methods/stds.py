"""STDS, state transition of dendritic spines: Chen, Yu, Fang, Ma, Huang, Tian, ICML 2022, https://proceedings.mlr.press/v162/chen22ac.html."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spikewire.errors import SpikewireError, check, check_word
from spikewire.pruning.asked import asked
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Latent
from spikewire.pruning.selection import levels, wire

SHAPES = ("sine", "linear")


@dataclass(kw_only=True)
class Stds(Latent):
    """A soft threshold that rises over the run: weak synapses become filopodia, and may come back.

    ``w = sign(theta) relu(|theta| - d)`` with ``d = limit sin(pi/2 x)`` (or ``limit x``), x from 0
    to 1 at `ramp` of the run, while theta moves with dL/dw whether its synapse is present or not.
    With `connectivity` the limit is solved from the distribution of |theta|, so that the run ends
    where it was asked to.
    """

    name = "stds"
    exclusive = ("limit", "connectivity")

    connectivity: float | None = asked(None, "asked share of synapses; else the limit decides")
    limit: float | None = field(default=None, metadata={"help": "final threshold, the paper's D"})
    shape: str = field(default="sine", metadata={"help": "how the threshold rises: sine or linear"})
    ramp: float = field(default=0.7, metadata={"help": "share of the run by which it has risen"})
    every: int = field(default=8, metadata={"help": "steps between solutions for the limit"})

    def __post_init__(self) -> None:
        if self.limit is not None and self.asked is not None:
            raise SpikewireError("limit: give either limit or connectivity, not both")
        if self.limit is None and self.asked is None:
            self.connectivity = 0.05
        if self.limit is not None:
            check(0 <= self.limit < math.inf, "limit", self.limit, "a finite number, 0 or more")
        check(0 < self.ramp <= 1, "ramp", self.ramp, "in (0, 1]")
        check(self.every >= 1, "every", self.every, "1 or more")
        check_word("shape", self.shape, SHAPES)

    def init(self, layers: Sequence[Layer]) -> None:
        """Take the weights as theta; the threshold starts at 0."""
        for layer in layers:
            layer.state["latent"] = layer.weight.detach().clone()
            layer.state["limit"] = layer.weight.new_full((), self.limit or 0.0)
            layer.state["depth"] = layer.weight.new_zeros(())

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Raise the threshold."""
        layers = self.everyone()  # it also rises where there was no gradient
        if self.asked is not None and (self.step % self.every == 0 or self.crosses(1.0)):
            strengths = [layer.state["latent"].abs() for layer in layers]
            masks = wire(layers, strengths, self.share)
            for layer, level in zip(layers, levels(strengths, masks), strict=True):
                layer.state["limit"].copy_(level)
        risen = min(1.0, self.progress / self.ramp)
        risen = math.sin(math.pi / 2 * risen) if self.shape == "sine" else risen
        for layer in layers:
            torch.mul(layer.state["limit"], risen, out=layer.state["depth"])

    def project(self, layer: Layer) -> Tensor:
        """``w = sign(theta) relu(|theta| - d)``."""
        latent = layer.state["latent"]
        return (latent.abs() - layer.state["depth"]).relu_().copysign_(latent)
