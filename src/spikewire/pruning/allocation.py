"""How many synapses each layer gets: uniform, ERK, or global competition."""

import math
from collections.abc import Sequence

from torch import Tensor

from spikewire.errors import unknown
from spikewire.pruning.layers import Layer
from spikewire.pruning.selection import select_masks, target_count, top_k_mask

ALLOCATIONS = ("uniform", "erk", "global")


def allocate(
    shapes: Sequence[Sequence[int]], connectivity: float, how: str = "uniform"
) -> list[int]:
    """Divide a global budget among layers; the sum is exact.

    Args:
        shapes: shape of each layer's weight.
        connectivity: fraction of all weights to keep.
        how: ``"uniform"``: the same fraction per layer; ``"erk"`` (Evci et al. 2020): a fraction
            proportional to ``(in + out + kernel) / (in * out * kernel)``, at most 1.

    Returns:
        The number of synapses per layer.

    Raises:
        SpikewireError: if `how` is unknown.
    """
    totals = [math.prod(shape) for shape in shapes]
    if how == "uniform":
        densities = [1.0] * len(shapes)
    elif how == "erk":
        densities = [sum(shape) / math.prod(shape) for shape in shapes]
    else:
        raise unknown("allocation", how, ("uniform", "erk"))
    return divide(totals, densities, target_count(connectivity, sum(totals)))


def divide(totals: Sequence[int], densities: Sequence[float], budget: int) -> list[int]:
    """Return counts in proportion to ``density * total``, each in 1..total, summing to `budget`."""
    budget = min(max(budget, len(totals)), sum(totals))
    low, high = 0.0, 1.0 / min(densities)
    for _ in range(100):  # the capped sum grows with the scale: bisect
        scale = (low + high) / 2
        filled = sum(
            min(t, max(1.0, scale * d * t)) for t, d in zip(totals, densities, strict=True)
        )
        low, high = (scale, high) if filled < budget else (low, scale)
    exact = [min(t, max(1.0, high * d * t)) for t, d in zip(totals, densities, strict=True)]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    spare = budget - sum(counts)
    while spare > 0:
        for i in by_remainder:
            if spare > 0 and counts[i] < totals[i]:
                counts[i] += 1
                spare -= 1
    return counts


def largest_weights(layers: Sequence[Layer], connectivity: float, allocation: str) -> list[Tensor]:
    """Return masks of the largest weights, as many per layer as the allocation gives it.

    Args:
        layers: the pruned layers; one with a connectivity of its own keeps that fraction.
        connectivity: fraction of weights to keep.
        allocation: ``"uniform"``, ``"erk"``, or ``"global"``: all weights compete.
    """
    strengths = [layer.weight.detach().abs() for layer in layers]
    if allocation == "global":
        return select_masks(layers, strengths, lambda x: x.connectivity or connectivity)
    free = [x for x in layers if x.connectivity is None and allocation == "erk"]
    counts = allocate([x.weight.shape for x in free], connectivity, allocation) if free else []
    given = {layer.name: count for layer, count in zip(free, counts, strict=True)}
    return [
        top_k_mask(
            size, given.get(x.name) or target_count(x.connectivity or connectivity, size.numel())
        )
        for x, size in zip(layers, strengths, strict=True)
    ]
