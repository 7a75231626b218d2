"""Pure tensor functions on masks: choose, count, share out, compare. True = the synapse exists."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from spikewire.errors import unknown
from spikewire.pruning.layers import Layer
from spikewire.pruning.selection import target_count, top_k_mask, wire

ALLOCATIONS = ("uniform", "erk", "global")


def pick(allowed: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return a mask of `count` places drawn at random, without repetition, where `allowed`."""
    places = allowed.flatten().nonzero().flatten()
    order = torch.randperm(places.numel(), generator=generator, device=allowed.device)
    chosen = torch.zeros(allowed.numel(), dtype=torch.bool, device=allowed.device)
    chosen[places[order[:count]]] = True
    return chosen.view_as(allowed)


def allocate(
    shapes: Sequence[Sequence[int]], connectivity: float, how: str = "uniform"
) -> list[int]:
    """Share a global budget out over layers of the given weight shapes; the sum is exact.

    uniform: every layer the same share. erk (Evci et al. 2020): a layer's share is proportional to
    ``(in + out + kernel) / (in * out * kernel)``, capped at 1.
    """
    totals = [math.prod(shape) for shape in shapes]
    if how == "uniform":
        densities = [1.0] * len(shapes)
    elif how == "erk":
        densities = [sum(shape) / math.prod(shape) for shape in shapes]
    else:
        raise unknown("allocation", how, ("uniform", "erk"))
    return share_out(totals, densities, target_count(connectivity, sum(totals)))


def share_out(totals: Sequence[int], densities: Sequence[float], budget: int) -> list[int]:
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


def turnover(before: Tensor, after: Tensor) -> tuple[int, int]:
    """Return (pruned, regrown): synapses lost and synapses won between two masks."""
    return int((before & ~after).sum()), int((~before & after).sum())


_FIRST_MOMENTS = ("exp_avg", "momentum_buffer", "grad_avg", "mu_product")
_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "exp_inf", "sum", "acc_delta")


def reset_moments_(optimizer: Optimizer, weight: Tensor, regrown: Tensor, present: Tensor) -> None:
    """Let regrown synapses start afresh: first moment 0, second the median of the present ones.

    Zeroing both would make the first move of a late regrowth several times the learning rate.
    """
    for key, value in optimizer.state.get(weight, {}).items():
        if not isinstance(value, Tensor) or value.shape != weight.shape:
            continue
        if key in _FIRST_MOMENTS:
            value.masked_fill_(regrown, 0.0)
        elif key in _SECOND_MOMENTS:
            value.copy_(torch.where(regrown, median_of(value, present), value))


def median_of(values: Tensor, where: Tensor, at_most: int = 65_536) -> Tensor:
    """Return the median of `values` there, from an even sample when there are very many."""
    chosen = values[where]
    if not chosen.numel():
        return values.new_zeros(())
    return chosen[:: max(1, chosen.numel() // at_most)].median()


def first_masks(layers: Sequence[Layer], asked: float, allocation: str) -> list[Tensor]:
    """Return the strongest weights of each layer, as many as the allocation gives it.

    Layers with a connectivity of their own stand apart; ``global`` lets all weights compete.
    """
    strengths = [layer.weight.detach().abs() for layer in layers]
    if allocation == "global":
        return wire(layers, strengths, lambda x: x.connectivity or asked)
    free = [x for x in layers if x.connectivity is None and allocation == "erk"]
    counts = allocate([x.weight.shape for x in free], asked, allocation) if free else []
    given = {layer.name: count for layer, count in zip(free, counts, strict=True)}
    return [
        top_k_mask(size, given.get(x.name) or target_count(x.connectivity or asked, size.numel()))
        for x, size in zip(layers, strengths, strict=True)
    ]
