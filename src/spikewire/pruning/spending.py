"""Masks of the highest scores that a budget pays for, where weights differ in what they cost.

One threshold over all layers, found without a sort: every pass over the scores decides a part of
it, and no result is read back, so a GPU is not waited for. Scores must not be NaN.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from spikewire.kernels import same_layout
from spikewire.pruning.integrity import bit_view
from spikewire.pruning.selection import highest_key, ordered, top_k_parts

ONE = 2**20  # costs that are no whole numbers are counted in units of 1 / ONE
LEFT = 1000  # of a budget a part below one of so many is not spent on single weights
FEW = 2**20  # weights in all; among more, one weight is too cheap to matter

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
    in_order: bool = False,
    single: int = 0,
) -> list[Tensor]:
    """Return the masks of the highest scores over all layers that the budget pays for.

    The masks have all scores above the highest level at which scores cost more than the budget.
    What is left buys the highest absent scores: with `groups` of each cost in turn, from the most
    expensive to the cheapest, so that in the end no absent weight fits; without, of those equal to
    the level, layer by layer, and then `single` weights at most.

    Args:
        scores: one tensor per layer; with `groups`, minus infinity is not for sale.
        costs: what a weight costs, not negative; one tensor per layer, which broadcasts to its
            scores.
        budget: the cost of all masks together, at most; more only where the floors cost more.
        floors: least number of weights per layer, those of highest score.
        groups: for each layer its weights by their cost, where costs are whole numbers: the
            positions in the last dimensions of the layer, flattened from the third on.
        in_order: whether a layer must keep its highest scores, whatever they cost: what is left
            then buys only in layers whose weights all cost the same, or the next of a layer.
        single: how many single weights what is left buys at most, where there are no `groups` or
            with `in_order`.

    Returns:
        One bool mask per layer.
    """
    dtype = torch.promote_types(torch.float32, scores[0].dtype)
    sizes = [score.numel() for score in scores]
    flat = torch.cat([score.detach().flatten().to(dtype) for score in scores])
    least = top_k_parts(flat, sizes, floors)
    flat.masked_fill_(least, torch.inf)
    shapes = [score.shape for score in scores]
    if not groups:
        costs, budget = _whole_numbers(shapes, costs, budget)
    total = _total(_shaped(least, shapes), costs)
    room = torch.maximum(budget.to(total.dtype), total)
    scores = _shaped(flat, shapes)
    if groups:
        masks = _buy_by_cost(scores, groups, room, in_order)
    else:
        masks = _buy_in_order(flat, shapes, costs, room)
    if groups and not in_order:
        return masks
    return _buy_single_(masks, scores, costs, room, single, in_order)


def _shaped(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Return the parts of a flat tensor in their shapes."""
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _total(masks: Sequence[Tensor], costs: Sequence[Tensor]) -> Tensor:
    return torch.stack([cost_of(m, c) for m, c in zip(masks, costs, strict=True)]).sum()


# ------------------------------------------------------------------------------ by groups of costs


def _buy_by_cost(
    scores: Sequence[Tensor], groups: Sequence[Groups], room: Tensor, in_order: bool
) -> list[Tensor]:
    """Return the masks where weights are grouped by their costs."""
    buys = [len(own) == 1 or not in_order for own in groups]  # with what is left
    kinds = sorted({(v, b) for own, b in zip(groups, buys, strict=True) for v in own}, reverse=True)
    values = [value for value, _ in kinds]
    members = [[i for i, own in enumerate(groups) if v in own and buys[i] == b] for v, b in kinds]
    places = [(i, v) for v, own in zip(values, members, strict=True) for i in own]
    parts = [_part(scores[i], groups[i][v]) for i, v in places]
    flat = torch.cat([part.flatten() for part in parts])
    size = {place: part.numel() for place, part in zip(places, parts, strict=True)}
    sizes = [sum(size[i, v] for i in own) for v, own in zip(values, members, strict=True)]
    level = _or_lowest(level_within(flat, sizes, values, room))
    prices = [value * buying for value, buying in kinds]  # 0 buys nothing
    if prices != values:
        above = [part.sum() for part in (flat > level).split(sizes)]
        paid = [(v - p) * n for v, p, n in zip(values, prices, above, strict=True)]
        room = room - torch.stack(paid).sum()
    for_sale = torch.stack([(part > -torch.inf).sum() for part in flat.split(sizes)])
    found = top_k_parts(flat, sizes, counts_within(flat, sizes, prices, level, room, for_sale))
    masks = [torch.empty(x.shape, dtype=torch.bool, device=x.device) for x in scores]
    for (i, v), part, own in zip(places, parts, found.split([*size.values()]), strict=True):
        _write_(masks[i], groups[i][v], own.view_as(part))
    return masks


def _or_lowest(level: Tensor) -> Tensor:
    """Return a level; minus infinity where all scores are within the budget."""
    return level.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _part(tensor: Tensor, where: Tensor) -> Tensor:
    """Return the weights of one cost: all, or those at some positions of the kernel."""
    return tensor.flatten(2)[..., where] if where.numel() else tensor


def _write_(mask: Tensor, where: Tensor, values: Tensor) -> None:
    if where.numel():
        mask.view(*mask.shape[:2], -1)[..., where] = values
    else:
        mask.copy_(values)


def level_within(
    flat: Tensor, sizes: Sequence[int], costs: Sequence[int | Tensor], budget: Tensor
) -> Tensor:
    """Return the highest score such that it and all above cost more than the budget.

    Args:
        flat: the scores of all parts, one part after the other.
        sizes: of the parts.
        costs: for each part a number, or a tensor of m whole numbers of which score i costs the
            one at i modulo m.
        budget: a 0-d tensor, int64.

    Returns:
        A 0-d tensor; NaN or below all scores where there is none.
    """
    if same_layout(flat):
        from spikewire.kernels import selection  # imports Triton, which is optional

        return selection.level_within(flat, sizes, costs, budget)
    keys = ordered(bit_view(flat))
    rows = [
        part.view(-1, cost.numel() if isinstance(cost, Tensor) else 1)
        for part, cost in zip(keys.split(list(sizes)), costs, strict=True)
    ]

    def over(step: Tensor) -> Tensor:
        counts = [
            ((key >= step).sum(0) * cost).sum() for key, cost in zip(rows, costs, strict=True)
        ]
        return torch.stack(counts).sum() > budget

    return ordered(highest_key(keys, over)).view(flat.dtype)


def counts_within(
    flat: Tensor,
    sizes: Sequence[int],
    costs: Sequence[int],
    level: Tensor,
    room: Tensor,
    most: Tensor,
) -> Tensor:
    """Return how many scores of each part to keep: those above the level, and what is left buys.

    Args:
        flat: the scores of all parts, one part after the other.
        sizes: of the parts.
        costs: of the scores of each part; what is left is spent in this order.
        level: a 0-d tensor.
        room: what is paid for all scores together, a 0-d tensor.
        most: how many scores of each part may be kept, int64.

    Returns:
        One number per part, int64.
    """
    if same_layout(flat):
        from spikewire.kernels import selection

        return selection.counts_within(flat, sizes, costs, level, room, most)
    above = [part.sum() for part in (flat > level).split(list(sizes))]
    room = room - torch.stack([v * n for v, n in zip(costs, above, strict=True)]).sum()
    counts = []
    for cost, n, limit in zip(costs, above, most, strict=True):
        counts.append((n + (room // cost if cost else 0)).clamp(max=limit))
        room = room - cost * (counts[-1] - n)
    return torch.stack(counts)


# ------------------------------------------------------------------------------ any numbers


def _buy_in_order(
    flat: Tensor, shapes: Sequence[torch.Size], costs: Sequence[Tensor], room: Tensor
) -> list[Tensor]:
    """Return the masks above the highest level that is too expensive, and the first equal to it."""
    periods = [_repeated(cost, shape) for cost, shape in zip(costs, shapes, strict=True)]
    level = _or_lowest(level_within(flat, [shape.numel() for shape in shapes], periods, room))
    masks, ties = _shaped(flat > level, shapes), _shaped(flat == level, shapes)
    room = room - _total(masks, costs)
    for mask, equal, cost in zip(masks, ties, costs, strict=True):
        tied = _first_within(equal, cost, room)
        room = room - cost_of(tied, cost)
        mask |= tied
    return masks


def _buy_single_(
    masks: list[Tensor],
    scores: Sequence[Tensor],
    costs: Sequence[Tensor],
    budget: Tensor,
    number: int,
    in_order: bool,
) -> list[Tensor]:
    """Add single weights to masks that leave more than a thousandth of the budget.

    Each is the highest absent score of all that fit and cost at least half as much as the most
    expensive one that fits. Only networks of at most `FEW` weights need it.
    """
    if sum(score.numel() for score in scores) > FEW:
        return masks
    for _ in range(number):
        room = budget - _total(masks, costs)
        room = torch.where(room * LEFT > budget, room, 0)
        if not room.is_cuda and not room:
            break
        fits = [~mask & (c > 0) & (c <= room) for mask, c in zip(masks, costs, strict=True)]
        if in_order:
            absent = [torch.where(m, -torch.inf, s) for m, s in zip(masks, scores, strict=True)]
            fits = [fit & (score == score.amax()) for fit, score in zip(fits, absent, strict=True)]
        pairs = [*zip(fits, costs, strict=True)]
        most = torch.stack([torch.where(fit, cost, 0).amax() for fit, cost in pairs]).amax()
        dear = [fit & (2 * cost >= most) for fit, cost in pairs]
        flat = [torch.where(d, s, -torch.inf).flatten() for d, s in zip(dear, scores, strict=True)]
        every = torch.cat(flat)
        best = torch.zeros_like(every, dtype=torch.bool).scatter_(0, every.argmax(0, True), True)
        for mask, d, one in zip(masks, dear, _shaped(best, [x.shape for x in masks]), strict=True):
            mask |= d & one  # nothing where none fits
    return masks


def _whole_numbers(
    shapes: Sequence[torch.Size], costs: Sequence[Tensor], budget: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Return costs and budget in units of 1 / ONE: such sums do not depend on their order.

    A budget of all weights still pays for all of them after rounding.
    """
    whole = [(cost.double() * ONE).round().long() for cost in costs]
    every, rounded = (
        torch.stack([c.sum() * (n.numel() // c.numel()) for n, c in zip(shapes, each, strict=True)])
        for each in (costs, whole)
    )
    enough = budget >= every.sum() * (1 - 1e-9)
    return whole, torch.where(enough, rounded.sum(), (budget.double() * ONE).long())


def _repeated(cost: Tensor, shape: torch.Size) -> Tensor:
    """Return the costs that repeat over a flattened layer: one per input where outputs share it."""
    shared = 0
    while shared < cost.dim() and cost.shape[shared] == 1:
        shared += 1
    whole = cost.numel() > 1 and cost.shape[shared:] != shape[shared:]
    return (cost.expand(shape) if whole else cost).flatten()


def _first_within(tied: Tensor, cost: Tensor, room: Tensor) -> Tensor:
    """Return the first of the tied weights whose summed cost is within the room."""
    if cost.numel() == 1:
        fits = tied.flatten().cumsum(0, dtype=torch.int32) * cost.flatten() <= room
    else:
        fits = (tied * cost).flatten().cumsum(0) <= room
    return tied & fits.view_as(tied)
