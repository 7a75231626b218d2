"""Budget: Grad R's idea (https://arxiv.org/abs/2105.04916) under an exact synapse budget; our own.

Ablations: docs/ablations.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikewire.pruning import (
    SCOPES,
    Latent,
    Layer,
    Priced,
    Pruner,
    all_present,
    check,
    cubic,
    highest_absent,
    require_finite,
    setting,
)

FRACTIONS = ("connectivity", "synapses")  # units whose target is a fraction of the dense network


@dataclass(frozen=True, kw_only=True)
class Budget(Latent, Priced):
    """Every synapse has a latent weight that follows the gradient; the largest are the network.

    ``w = u where |u| is among the largest of all layers that the target pays for, else 0``, and u
    moves with dL/dw whether its synapse is present or not: an absent one returns, with either sign,
    as soon as it outgrows a present one. The target is given in one unit: `connectivity` counts
    weights, `synapses` a weight once per position at which it is applied, `synops` the spikes per
    image that reach it, `bytes` the packed file. The fraction of the dense network's follows
    ``c + (b - c)(1 - x)^3``, b being `first` and x from 0 to 1 at `ramp`, and is the target c from
    there on. Without a target, `connectivity` is 0.05.

    A `first` below a target in `connectivity` or `synapses` is refused, since the schedule would
    start at the target. It is not compared with a target in `synops` or `bytes`, which is a
    fraction only once the network is known: there the schedule starts at the larger of the two, and
    with `synops` the masks before the first step have the fraction `first` of the weights.

    Layers of n weights are compared by ``|u| / n^balance``: by size alone a small output layer, all
    of whose inputs matter, loses its synapses to a large hidden one. Where weights differ in what
    they cost, the score is divided by ``cost^price`` too.

    With `per_neuron` the score is the rank of ``|u|`` among the inputs of its neuron, as a fraction
    of them. It is for rules that scale the weights of a neuron to a sum, as STDP does: there a
    neuron that loses synapses gets stronger ones, spikes for more images and loses more.

    Absent latents crowd just below the threshold, so present ones must crowd just above it to stay,
    and their weights hardly differ. `shrink` takes a fraction of the threshold from all of them:
    ``w = u - clip(u, -shrink level, shrink level)``, level being the largest absent ``|u|`` of the
    layer; 0 is the hard threshold, 1 the soft one.

    At low connectivity that leaves little: of normal latents, the largest 3 % of which are present,
    the soft threshold leaves a fifth of the norm. BatchNorm makes up for it; a network without it
    may fall silent. `rescale` multiplies the weights of a layer by ``|u mask| / |w|`` at every
    update of the masks, so that they have the norm that they would have at a hard threshold.
    """

    name = "budget"
    default = 0.05

    first: float = setting(
        1.0,
        "fraction of the unit at the start, not below the target; below 1 for a sparse start",
        within="(0, 1]",
    )
    ramp: float = setting(0.5, "fraction of the run until the target is met", within="(0, 1]")
    every: int = setting(8, "steps between updates of the masks", within="[1, inf)")
    fixed: float = setting(
        1.0, "fraction of the run after which the masks are fixed", within="[ramp, 1]"
    )
    floor: float = setting(
        0.1, "minimum connectivity of a layer, as a fraction of the uniform one", within="[0, 1]"
    )
    balance: float = setting(0.25, "preference of small layers over large ones", within="[0, 1]")
    shrink: float = setting(
        0.0, "fraction of the threshold taken from present weights: 0 hard, 1 soft", within="[0, 1]"
    )
    rescale: bool = setting(
        False, "with shrink: keep the norm of each layer's weights, for networks without BatchNorm"
    )
    scope: str = setting("global", "what competes: all layers or each alone", choices=SCOPES)
    per_neuron: bool = setting(
        False, "rank the weights of each neuron alone: all neurons keep about as many synapses"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.shrink > 0 or not self.rescale, "rescale", True, "false where shrink is 0")
        if self.unit in FRACTIONS:
            target = getattr(self, self.unit)
            allowed = f"at least {target}, the target {self.unit}"
            check(self.first >= target, "first", self.first, allowed)

    def init(self, pruner: Pruner) -> None:
        """Start dense, or with the largest weights."""
        for layer in pruner.layers:
            layer.state["latent"] = layer.weight.detach().clone()
            layer.state["mask"] = all_present(layer)
            if self.shrink:
                layer.state["level"] = layer.weight.new_zeros(())
            if self.rescale:
                layer.state["gain"] = layer.weight.new_ones(())
        self.start_meter(pruner)
        if self.first < 1:
            self.update_masks_(pruner, pruner.layers)

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Update the masks when due."""
        if self.due(pruner, pruner.step) or pruner.passes(self.ramp):
            self.update_masks_(pruner, pruner.all_layers())

    def due(self, pruner: Pruner, step: int) -> bool:
        """Return whether the masks change after this step.

        Operations follow the firing of the network, so the last step selects by the newest counts.
        """
        last = self.unit == "synops" and pruner.passes(1.0)
        return (step % self.every == 0 or last) and pruner.progress <= self.fixed

    def update_masks_(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Keep the synapses of highest score."""
        scores = [self.score(layer) for layer in layers]

        def schedule(target: Any) -> Any:
            known = not isinstance(target, Tensor)
            start: Any = max(self.first, target) if known else target.clamp(min=self.first)
            return cubic(pruner.progress / self.ramp, start, target)

        masks = self.select(pruner, layers, scores, schedule, scope=self.scope, floor=self.floor)
        for layer, mask in zip(layers, masks, strict=True):
            layer.state["mask"].copy_(mask)
            if self.shrink:
                (level,) = highest_absent([layer.state["latent"].abs()], [mask])
                layer.state["level"].copy_(level)
            if self.rescale:
                layer.state["gain"].copy_(self.gain(layer))

    def gain(self, layer: Layer) -> Tensor:
        """Return by what `rescale` multiplies the weights of a layer; 1 where all would be 0."""
        layer.state["gain"].fill_(1.0)
        hard, soft = layer.state["latent"] * layer.state["mask"], self.project(layer)
        return (hard.float().norm() / soft.float().norm()).nan_to_num(1.0, posinf=1.0)

    def score(self, layer: Layer) -> Tensor:
        """Return ``|u| / n^balance``, n the size of the layer; or the rank within the neuron."""
        size = layer.state["latent"].abs()
        size = size.to(torch.promote_types(size.dtype, torch.float32))  # float16 would underflow
        if self.per_neuron:
            return rank_per_neuron(size)
        return size.div_(layer.weight.numel() ** self.balance)

    def end(self, pruner: Pruner) -> None:
        """Select operations by the newest counts, also where the run ends early.

        Raises:
            TrainingFailed: if weights are not finite: no latent would be among the largest.
        """
        require_finite([layer.state["latent"] for layer in pruner.layers])
        missing = pruner.step and not self.due(pruner, pruner.step)
        if self.unit == "synops" and missing and pruner.progress <= self.fixed:
            self.update_masks_(pruner, pruner.layers)

    def mask(self, layer: Layer) -> Tensor:
        """Return the selected synapses, even one whose latent happens to be 0."""
        return layer.state["mask"]

    def project(self, layer: Layer) -> Tensor:
        """``w = gain (u - clip(u, -shrink level, shrink level)) mask``."""
        weight = torch.empty_like(layer.weight)
        self._project(layer, weight)
        return weight

    def project_(self, layer: Layer) -> None:
        """Write straight into the weight."""
        self._project(layer, layer.weight)

    def unproject(self, layer: Layer) -> Tensor:
        """``u = w / gain + sign(w) shrink level``."""
        if not self.shrink:
            return layer.weight
        weight = layer.weight / layer.state["gain"] if self.rescale else layer.weight
        return weight + weight.sign() * (self.shrink * layer.state["level"])

    def _project(self, layer: Layer, out: Tensor) -> None:
        latent = layer.state["latent"]
        if self.shrink:
            taken: Any = self.shrink * layer.state["level"]
            taken = taken if taken.is_cuda else taken.item()  # a CPU clips by numbers much faster
            latent = torch.sub(latent, torch.clamp(latent, -taken, taken, out=out), out=out)
        # a CPU reads bytes several times as fast as bools
        torch.mul(latent, layer.state["mask"].view(torch.uint8), out=out)
        if self.rescale:
            out.mul_(layer.state["gain"])


def rank_per_neuron(size: Tensor) -> Tensor:
    """Return the rank of each value in its row, 1 for the largest; equal ranks differ by value."""
    rows = size.flatten(1)
    order = rows.argsort(dim=1, stable=True)
    places = torch.arange(rows.shape[1], device=rows.device, dtype=rows.dtype)
    ranks = torch.empty_like(rows).scatter_(1, order, places.expand_as(rows))
    ranks += rows / (2 * rows.max()).clamp(min=torch.finfo(rows.dtype).tiny)  # less than one rank
    return ranks.add_(0.5).div_(rows.shape[1]).view_as(size)
