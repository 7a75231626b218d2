"""Masks of the highest scores that a budget pays for, where weights differ in what they cost.

One threshold over all layers, found without a sort: every pass over the scores decides one bit of
it, and no result is read back, so a GPU is not waited for. Scores must not be NaN.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from spikewire.pruning.integrity import bit_view
from spikewire.pruning.selection import highest_key, ordered, top_k_mask


def cost_of(mask: Tensor, cost: Tensor) -> Tensor:
    """Return the summed cost of a mask; `cost` broadcasts to its shape."""
    shared = [d for d, size in enumerate(cost.shape) if size == 1]
    counts = mask.sum(shared, keepdim=True) if shared else mask
    return (counts * cost).sum()


def dense_cost(mask: Tensor, cost: Tensor) -> Tensor:
    """Return the cost of a layer of which every weight exists."""
    return cost.sum() * (mask.numel() // cost.numel())


def masks_within(
    scores: Sequence[Tensor],
    costs: Sequence[Tensor],
    budget: Tensor,
    floors: Sequence[int | Tensor],
    values: Sequence[frozenset[int]] = (),
) -> list[Tensor]:
    """Return the masks of the highest scores over all layers that the budget pays for.

    Scores are taken from the highest on until one does not fit any more; of equal scores those that
    still fit. What is left of the budget then buys the highest absent scores of each of the
    `values`, from the most expensive to the cheapest, so that in the end no absent weight fits.

    Args:
        scores: one tensor per layer.
        costs: what a weight costs, not negative; one tensor per layer, which broadcasts to its
            scores.
        budget: the cost of all masks together, at most; more only where the floors cost more.
        floors: least number of weights per layer, those of highest score.
        values: the different costs of each layer, whole numbers above 0; without them what is left,
            less than the cost of one weight, is not spent.

    Returns:
        One bool mask per layer.
    """
    dtype = torch.promote_types(torch.float32, scores[0].dtype)
    wide = [score.detach().to(dtype, copy=True) for score in scores]
    least = [top_k_mask(score, floor) for score, floor in zip(wide, floors, strict=True)]
    for score, kept in zip(wide, least, strict=True):
        score.masked_fill_(kept, torch.inf)
    room = torch.maximum(budget, _total(least, costs)).to(budget.dtype)
    masks, room = _above_one_level(wide, costs, room)
    different = sorted(frozenset().union(*values), reverse=True)
    for value in different[1:]:  # nothing of the highest cost fits into what is left
        here = [i for i, found in enumerate(values) if value in found]
        own = [[each[i] for i in here] for each in (masks, wide, costs)]
        room = _buy_(*own, room=room, value=value)
    return masks


def _total(masks: Sequence[Tensor], costs: Sequence[Tensor]) -> Tensor:
    return torch.stack([cost_of(m, c) for m, c in zip(masks, costs, strict=True)]).sum()


def _above_one_level(
    scores: Sequence[Tensor], costs: Sequence[Tensor], room: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Return the masks above the highest level that is too expensive, and what is left."""
    keys = [ordered(bit_view(score)) for score in scores]
    level = highest_key(keys[0], lambda step: _total([key >= step for key in keys], costs) > room)
    masks = [key > level for key in keys]
    room = room - _total(masks, costs)
    for key, mask, cost in zip(keys, masks, costs, strict=True):
        tied = _first_within(key == level, cost, room)
        room = room - cost_of(tied, cost)
        mask |= tied
    return masks, room


def _first_within(tied: Tensor, cost: Tensor, room: Tensor) -> Tensor:
    """Return the first of the tied weights whose summed cost is within the room."""
    if cost.numel() == 1:
        fits = tied.flatten().cumsum(0, dtype=torch.int32) <= (room.double() / cost).flatten()
    else:
        fits = (tied * cost).flatten().cumsum(0) <= room
    return tied & fits.view_as(tied)


def _buy_(
    masks: Sequence[Tensor],
    scores: Sequence[Tensor],
    costs: Sequence[Tensor],
    *,
    room: Tensor,
    value: int,
) -> Tensor:
    """Add the highest absent scores of one cost to the masks, as many as fit; return the rest."""
    free = [~m & (c == value) for m, c in zip(masks, costs, strict=True)]
    ranked = [s.where(f, -torch.inf).flatten() for s, f in zip(scores, free, strict=True)]
    bought = top_k_mask(torch.cat(ranked), room // value).split([s.numel() for s in scores])
    for mask, new, here in zip(masks, bought, free, strict=True):
        new = new.view_as(mask) & here
        mask |= new
        room = room - value * new.sum()
    return room
