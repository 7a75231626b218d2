"""Deep Rewiring (Deep R): Bellec, Kappel, Maass, Legenstein, ICLR 2018, https://arxiv.org/abs/1711.05136."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikewire.pruning import (
    ALLOCATIONS,
    INITIAL,
    Layer,
    Masked,
    Pruner,
    first_masks,
    random_mask,
    setting,
)

CONSTRAINTS = ("layer", "global")
MOMENTS = ("reset", "dense")


@dataclass(frozen=True, kw_only=True)
class DeepR(Masked):
    """Noisy descent on present synapses; a random dormant one replaces each that turns negative.

    With ``w = s theta`` and s = +-1 fixed, for present synapses (Algorithm 1)::

        theta <- theta - lr (dL/dtheta + alpha) + sqrt(2 lr temperature) nu,   nu ~ N(0, 1)

    Those with theta < 0 become dormant; as many of the dormant are drawn and start at theta = 0, so
    the count of every layer is exact after every step. With the global constraint only the count of
    all layers together is: each freed place goes to a layer drawn in proportion to its size times
    its connectivity at the start, then to one of its dormant places.

    A new synapse starts with its optimizer state reset. With ``moments="dense"`` the optimizer
    also sees the gradient of dormant synapses, as in the LSNN's code: a new one moves at once by
    the mean of its gradients so far, and one that they push below 0 is replaced in the next step.

    The first synapses are drawn at random; for a trained network, give ``initial="largest"``.
    """

    name = "deepr"
    keeps_signs = True
    counts = "it keeps a number of weights per layer"
    for_trained = {"initial": "largest"}

    connectivity: float = setting(0.05, "target fraction of weights", within="(0, 1]")
    alpha: float = setting(1e-4, "L1 penalty on present synapses", within="[0, inf)")
    temperature: float = setting(1e-9, "temperature of the noise; 0: no noise", within="[0, inf)")
    allocation: str = setting("uniform", "synapses per layer", choices=ALLOCATIONS)
    initial: str = setting(
        "random",
        "synapses present at first: random, or the largest weights (of a trained network)",
        choices=INITIAL,
    )
    constraint: str = setting(
        "layer", "whose count is fixed: each layer's, or that of all together", choices=CONSTRAINTS
    )
    moments: str = setting(
        "reset",
        "optimizer state of a new synapse: reset, or of its gradients while dormant",
        choices=MOMENTS,
    )

    def init(self, pruner: Pruner) -> None:
        """Choose the first synapses; signs are those of the weights."""
        target = pruner.shared_target or self.connectivity
        masks = first_masks(pruner, target, self.allocation, self.initial)
        for layer, mask in zip(pruner.layers, masks, strict=True):
            weight = layer.weight.detach()
            layer.state["sign"] = torch.ones_like(weight).copysign_(weight)
            layer.state["mask"] = mask
            if self.constraint == "global":
                layer.state["count"] = mask.sum()  # size x connectivity

    def lend_(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Mask the gradient, unless the optimizer is to see that of dormant synapses."""
        if self.moments == "reset":
            super().lend_(pruner, layers)

    def regrow_(self, layer: Layer, regrown: Tensor) -> None:
        """Add synapses at weight 0."""
        if self.moments == "reset":
            super().regrow_(layer, regrown)
            return
        layer.weight.masked_fill_(regrown, 0.0)
        layer.state["mask"] |= regrown

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Add penalty and noise, drop what turned negative, regrow as many at random."""
        generators = [pruner.device_generator(layer.weight.device) for layer in layers]
        dropped = [self.drop_(*pair) for pair in zip(layers, generators, strict=True)]
        freed: int | Tensor = 0
        for layer, generator, count in zip(layers, generators, known(dropped), strict=True):
            if self.constraint == "layer" or layer.connectivity is not None:
                self.regrow_some_(layer, count, generator)
            else:
                freed = freed + count
        if isinstance(freed, Tensor) or freed:
            self.regrow_anywhere_(pruner, freed)

    def drop_(self, layer: Layer, generator: torch.Generator) -> Tensor:
        """Add penalty and noise; drop what turned negative, and return how many."""
        weight, mask, sign = layer.weight, layer.state["mask"], layer.state["sign"]
        drift = sign * (layer.lr * self.alpha)
        if self.temperature:
            noise = torch.empty_like(weight).normal_(generator=generator)
            drift -= noise * math.sqrt(2 * layer.lr * self.temperature)
        weight.sub_(drift)
        dropped = mask & (weight * sign < 0)
        mask &= ~dropped  # they may be drawn again: at connectivity 1 there are no others
        return dropped.sum()

    def regrow_some_(self, layer: Layer, count: int | Tensor, generator: torch.Generator) -> None:
        """Draw some of the layer's dormant synapses."""
        if isinstance(count, Tensor) or count:
            self.regrow_(layer, random_mask(~layer.state["mask"], count, generator))

    def regrow_anywhere_(self, pruner: Pruner, freed: int | Tensor) -> None:
        """Draw layers for the freed places, then dormant synapses in them."""
        layers = [layer for layer in pruner.all_layers() if layer.connectivity is None]
        weights = [layer.state["count"] for layer in layers]
        room = [(~layer.state["mask"]).sum() for layer in layers]
        if isinstance(freed, Tensor):
            generator = pruner.device_generator(freed.device)
            sizes = sum(layer.weight.numel() for layer in layers)
            counts = spread(torch.stack(weights), torch.stack(room), freed, sizes, generator)
        else:
            counts = draw_layers(known(weights), known(room), freed, pruner.generator)
        for layer, count in zip(layers, counts, strict=True):
            generator = pruner.device_generator(layer.weight.device)
            self.regrow_some_(layer, count, generator)


def known(counts: Sequence[Tensor]) -> list[Any]:
    """Return counts as whole numbers, except those of one GPU: it is not waited for."""
    alone = len({count.device for count in counts}) == 1
    return list(counts) if alone and counts[0].is_cuda else [int(count) for count in counts]


def spread(
    weights: Tensor, room: Tensor, count: Tensor, most: int, generator: torch.Generator
) -> list[Tensor]:
    """Return how many of `count` draws, in proportion to `weights`, each layer gets.

    As `draw_layers`, on a device that is not waited for. Draws beyond the room of a layer go to the
    first layers that have some.

    Args:
        weights: one positive number per layer.
        room: the most each layer can take.
        count: number of draws, at most the sum of `room`.
        most: what `count` cannot exceed.
        generator: of the device of the others.
    """
    limits = weights.cumsum(0, dtype=torch.float32)
    points = torch.rand(most, generator=generator, device=weights.device) * limits[-1]
    picks = torch.bucketize(points, limits, right=True).clamp(max=len(weights) - 1)
    valid = torch.arange(most, device=weights.device) < count
    wanted = torch.stack([((picks == layer) & valid).sum() for layer in range(len(weights))])
    counts = wanted.minimum(room)
    free = room - counts
    before = free.cumsum(0) - free
    return list(counts + (count - counts.sum() - before).clamp(min=0).minimum(free))


def draw_layers(
    weights: Sequence[float], room: Sequence[int], count: int, generator: torch.Generator
) -> list[int]:
    """Return how many of `count` draws, in proportion to `weights`, each layer gets.

    Args:
        weights: one positive number per layer.
        room: the most each layer can take; draws beyond it are repeated among the others.
        count: number of draws, at most the sum of `room`.
        generator: a CPU generator.
    """
    limits, chances = torch.tensor(room), torch.tensor(weights, dtype=torch.float64)
    drawn = torch.zeros_like(limits)
    while (left := count - int(drawn.sum())) > 0:
        free = torch.where(drawn < limits, chances, 0.0)
        picks = torch.multinomial(free, left, replacement=True, generator=generator)
        drawn = torch.minimum(drawn + picks.bincount(minlength=len(room)), limits)
    return drawn.tolist()
