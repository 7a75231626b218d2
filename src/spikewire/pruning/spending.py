"""Masks of the highest scores that a budget pays for, where weights differ in what they cost.

One threshold over all layers, found without a sort: every pass over the scores decides a part of
it, and no result is read back, so a GPU is not waited for. Scores must not be NaN.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from spikewire.kernels import same_layout
from spikewire.pruning.integrity import bit_view
from spikewire.pruning.selection import highest_key, ordered, top_k_mask

Groups = Mapping[int, Tensor]  # by cost: the indices of the weights of one output that have it


def cost_of(mask: Tensor, cost: Tensor) -> Tensor:
    """Return the summed cost of a mask; `cost` broadcasts to its shape."""
    if cost.numel() == 1:
        return mask.sum() * cost.sum()
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
    groups: Sequence[Groups] = (),
) -> list[Tensor]:
    """Return the masks of the highest scores over all layers that the budget pays for.

    The masks have all scores above the highest level at which scores cost more than the budget.
    What is left buys the highest absent scores: with `groups` of each cost in turn, from the most
    expensive to the cheapest, so that in the end no absent weight fits; without, of those equal to
    the level, layer by layer.

    Args:
        scores: one tensor per layer.
        costs: what a weight costs, not negative; one tensor per layer, which broadcasts to its
            scores.
        budget: the cost of all masks together, at most; more only where the floors cost more.
        floors: least number of weights per layer, those of highest score.
        groups: for each layer its weights by their cost, where costs are whole numbers: the
            positions in the last dimensions of the layer, flattened from the third on.

    Returns:
        One bool mask per layer.
    """
    dtype = torch.promote_types(torch.float32, scores[0].dtype)
    wide = [score.detach().to(dtype, copy=True) for score in scores]
    least = [top_k_mask(score, floor) for score, floor in zip(wide, floors, strict=True)]
    for score, kept in zip(wide, least, strict=True):
        score.masked_fill_(kept, torch.inf)
    total = _total(least, costs)
    room = torch.maximum(budget.to(total.dtype), total)
    return _buy_by_cost(wide, groups, room) if groups else _buy_in_order(wide, costs, room)


def _total(masks: Sequence[Tensor], costs: Sequence[Tensor]) -> Tensor:
    return torch.stack([cost_of(m, c) for m, c in zip(masks, costs, strict=True)]).sum()


# ------------------------------------------------------------------------------ whole numbers


def _buy_by_cost(scores: Sequence[Tensor], groups: Sequence[Groups], room: Tensor) -> list[Tensor]:
    """Return the masks where weights are grouped by their costs."""
    values = sorted({value for own in groups for value in own}, reverse=True)
    members = {v: [i for i, own in enumerate(groups) if v in own] for v in values}
    parts = {v: [_part(scores[i], groups[i][v]) for i in members[v]] for v in values}
    flat = {v: torch.cat([part.flatten() for part in parts[v]]) for v in values}
    level = level_within([flat[v] for v in values], values, room)
    above = {v: (flat[v] > level).sum() for v in values}
    room = room - torch.stack([v * above[v] for v in values]).sum()
    masks = [torch.zeros(x.shape, dtype=torch.bool, device=x.device) for x in scores]
    for v in values:
        count = (above[v] + (room // v if v else 0)).clamp(max=flat[v].numel())
        room = room - v * (count - above[v])
        found = top_k_mask(flat[v], count).split([part.numel() for part in parts[v]])
        for i, part, own in zip(members[v], parts[v], found, strict=True):
            _write_(masks[i], groups[i][v], own.view_as(part))
    return masks


def _part(tensor: Tensor, where: Tensor) -> Tensor:
    """Return the weights of one cost: all, or those at some positions of the kernel."""
    return tensor.flatten(2)[..., where] if where.numel() else tensor


def _write_(mask: Tensor, where: Tensor, values: Tensor) -> None:
    if where.numel():
        mask.view(*mask.shape[:2], -1)[..., where] = values
    else:
        mask.copy_(values)


def level_within(scores: Sequence[Tensor], costs: Sequence[int], budget: Tensor) -> Tensor:
    """Return the highest score such that it and all above cost more than the budget.

    Args:
        scores: flat tensors of the same type.
        costs: the cost of each score of a tensor.
        budget: a 0-d tensor.

    Returns:
        A 0-d tensor; NaN or below all scores where there is none.
    """
    if all(map(same_layout, scores)):
        from spikewire.kernels import selection  # imports Triton, which is optional

        return selection.level_within(scores, costs, budget)
    keys = [ordered(bit_view(score)) for score in scores]

    def over(step: Tensor) -> Tensor:
        counts = [(key >= step).sum() * cost for key, cost in zip(keys, costs, strict=True)]
        return torch.stack(counts).sum() > budget

    return ordered(highest_key(keys[0], over)).view(scores[0].dtype)


# ------------------------------------------------------------------------------ any numbers


def _buy_in_order(scores: Sequence[Tensor], costs: Sequence[Tensor], room: Tensor) -> list[Tensor]:
    """Return the masks above the highest level that is too expensive, and the first equal to it."""
    keys = [ordered(bit_view(score)) for score in scores]
    level = highest_key(keys[0], lambda step: _total([key >= step for key in keys], costs) > room)
    masks = [key > level for key in keys]
    room = room - _total(masks, costs)
    for key, mask, cost in zip(keys, masks, costs, strict=True):
        tied = _first_within(key == level, cost, room)
        room = room - cost_of(tied, cost)
        mask |= tied
    return masks


def _first_within(tied: Tensor, cost: Tensor, room: Tensor) -> Tensor:
    """Return the first of the tied weights whose summed cost is within the room."""
    if cost.numel() == 1:
        fits = tied.flatten().cumsum(0, dtype=torch.int32) <= (room.double() / cost).flatten()
    else:
        fits = (tied * cost).flatten().cumsum(0) <= room
    return tied & fits.view_as(tied)
