"""Soft pruning: Shi, Nguyen, Oh, Liu, Kuzum, Front. Neurosci. 2019, https://doi.org/10.3389/fnins.2019.00405."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spikewire.pruning import Layer, Method, Pruner, cubic, setting


@dataclass(frozen=True, kw_only=True)
class SoftPruning(Method):
    """The weakest synapses of each neuron are frozen: they keep their weight and learn no more.

    ``w = w_frozen where |w| was not among the k largest of its neuron, else what learning makes of
    it``. The fraction that learns follows ``c + (1 - c)(1 - x)^3``, c being `trained` and x from 0
    at `begin` to 1 at `ramp`.

    It saves updates in training and nothing afterwards: every synapse exists, and the connectivity
    is 1. Pruning the same synapses (the paper's conventional pruning) is `magnitude`.
    """

    name = "soft"
    counts = "it freezes weights and removes none"

    trained: float = setting(
        0.3, "fraction of each neuron's weights that learn to the end", within="(0, 1]"
    )
    begin: float = setting(0.1, "fraction of the run before freezing begins", within="[0, 1)")
    ramp: float = setting(0.6, "fraction of the run at which it ends", within="(begin, 1]")
    every: int = setting(16, "steps between freezings", within="[1, inf)")

    def init(self, pruner: Pruner) -> None:
        """Let every synapse learn."""
        for layer in pruner.layers:
            layer.state["learns"] = torch.ones_like(layer.weight, dtype=torch.bool)
            layer.state["frozen"] = layer.weight.detach().clone()

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Freeze when it is due."""
        inside = self.begin <= pruner.progress < self.ramp and pruner.step % self.every == 0
        if not (inside or pruner.passes(self.ramp)):
            return
        fraction = cubic((pruner.progress - self.begin) / (self.ramp - self.begin), 1, self.trained)
        self.show_(layers)  # what is frozen has moved in this step
        for layer in pruner.all_layers():
            learns = layer.state["learns"]
            learns &= largest_per_neuron(torch.where(learns, layer.weight.abs(), -1.0), fraction)
            layer.state["frozen"].copy_(layer.weight)

    def mask(self, layer: Layer) -> Tensor:
        """Return that every synapse exists."""
        return torch.ones_like(layer.state["learns"])

    def show_(self, layers: Sequence[Layer]) -> None:
        """Put frozen weights back."""
        for layer in layers:
            learns, frozen = layer.state["learns"], layer.state["frozen"]
            layer.weight.copy_(torch.where(learns, layer.weight, frozen))

    def accept_edit_(self, layer: Layer, before: Tensor) -> None:
        """Keep a weight written from outside, frozen or not."""
        layer.state["frozen"].copy_(layer.weight)


def largest_per_neuron(scores: Tensor, fraction: float) -> Tensor:
    """Return a mask of the highest scores of each neuron, one or more per row."""
    rows = scores.flatten(1)
    chosen = rows.topk(max(1, round(fraction * rows.shape[1])), dim=1).indices
    mask = torch.zeros_like(rows, dtype=torch.bool).scatter_(1, chosen, True)
    return mask.view_as(scores)
