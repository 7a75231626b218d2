"""Exact top-k masks, in one layer or across layers, without a sort.

On a GPU only `require_finite` waits for the device. Scores must not be NaN.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spikewire.errors import TrainingFailed
from spikewire.kernels import same_layout
from spikewire.pruning.integrity import bit_view
from spikewire.pruning.layers import Layer

SCOPES = ("global", "layer")


def target_count(connectivity: float, total: int) -> int:
    """Return how many of `total` synapses a connectivity means: rounded, at least one."""
    return min(total, max(1, round(connectivity * total)))


def kth_largest(values: Tensor, k: int | Tensor) -> Tensor:
    """Return the k-th largest of `values` (k from 1), as a 0-d tensor."""
    flat = values.detach().flatten()
    if same_layout(flat):
        from spikewire.kernels import selection  # imports Triton, which is optional

        return selection.kth_largest(flat, k)
    return bisect(flat, k) if flat.is_cuda or isinstance(k, Tensor) else select(flat, k)


def select(flat: Tensor, k: int) -> Tensor:
    """Return the k-th largest by partition, the fastest way on a CPU."""
    return flat.kthvalue(flat.numel() - k + 1).values


def bisect(flat: Tensor, k: int | Tensor) -> Tensor:
    """Return the k-th largest by bisecting the bit pattern, whose integer order is the floats'.

    One counting pass per bit; no result is read back, so a GPU is not waited for.
    """
    wide = flat if flat.dtype in (torch.float64, torch.float32) else flat.float()
    keys = ordered(bit_view(wide))
    low = highest_key(keys, lambda step: (keys >= step).sum() >= k)
    return ordered(low).view(wide.dtype).to(flat.dtype)


def highest_key(like: Tensor, holds: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the highest integer key for which a condition holds that holds for all below it.

    Args:
        like: a tensor of the dtype and device of the keys.
        holds: returns for a 0-d key a 0-d bool; never called with the lowest of all keys.
    """
    limits = torch.iinfo(like.dtype)
    top = limits.bits - 1
    low = torch.full((), limits.min, dtype=like.dtype, device=like.device)
    for bit in range(top, -1, -1):
        # the first step, from the minimum by 2^top, is to 0: written out, it would overflow
        step = torch.zeros_like(low) if bit == top else low + (1 << bit)
        low = torch.where(holds(step), step, low)
    return low


def ordered(bits: Tensor) -> Tensor:
    """Map float bits to integers of the same order; its own inverse."""
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def require_finite(scores: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the scores; a selection would hide that training has failed.

    Raises:
        TrainingFailed: if one of them is infinite or NaN.
    """
    if not all(bool(score.isfinite().all()) for score in scores):
        raise TrainingFailed("weights are not finite any more; try a lower lr")
    return scores


def random_mask(allowed: Tensor, count: int | Tensor, generator: torch.Generator) -> Tensor:
    """Return a mask of `count` places drawn at random, without repetition, where `allowed`.

    A number that a GPU has computed may be given as a 0-d tensor: it is not waited for.
    """
    if isinstance(count, Tensor):
        keys = torch.rand(allowed.shape, generator=generator, device=allowed.device)
        return top_k_mask(keys.where(allowed, -1.0), count)
    places = allowed.flatten().nonzero().flatten()
    order = torch.randperm(places.numel(), generator=generator, device=allowed.device)
    chosen = torch.zeros(allowed.numel(), dtype=torch.bool, device=allowed.device)
    chosen[places[order[:count]]] = True
    return chosen.view_as(allowed)


def top_k_mask(scores: Tensor, count: int | Tensor) -> Tensor:
    """Return the mask of the `count` highest scores of one tensor.

    Args:
        scores: one score per synapse, any shape.
        count: how many to keep; 0 or less keeps none, the size or more keeps all. A number that a
            GPU has computed may be given as a 0-d tensor: it is not waited for.

    Returns:
        A bool tensor of the same shape with exactly `count` True; ties go to the lower index.
    """
    if isinstance(count, Tensor) and not count.is_cuda:
        count = int(count)
    if isinstance(count, int) and (count <= 0 or count >= scores.numel()):
        return torch.full_like(scores, count > 0, dtype=torch.bool)
    flat = scores.detach().flatten()
    return mask_from_threshold(flat, kth_largest(flat, count), count).view_as(scores)


def mask_from_threshold(flat: Tensor, threshold: Tensor, count: int | Tensor) -> Tensor:
    """Return the mask of scores above `threshold` and the first equal to it, `count` in total."""
    if same_layout(flat):
        from spikewire.kernels import selection

        return selection.mask_from_threshold(flat, threshold, count)
    above, tied = flat > threshold, flat == threshold
    return above | (tied & (tied.cumsum(0, dtype=torch.int32) <= count - above.sum()))


def top_k_parts(
    flat: Tensor, sizes: Sequence[int], counts: Sequence[int | Tensor] | Tensor
) -> Tensor:
    """Return the mask of the highest values of every part of a flat tensor.

    Args:
        flat: the parts, one after the other.
        sizes: of the parts.
        counts: how many of each part to keep, from 0 to its size, as for `top_k_mask`.

    Returns:
        A flat bool tensor; ties go to the lower index.
    """
    if same_layout(flat):
        from spikewire.kernels import selection

        return selection.top_k_parts(flat, sizes, counts)
    pairs = zip(flat.split(list(sizes)), counts, strict=True)
    return torch.cat([top_k_mask(part, count) for part, count in pairs])


def top_k_masks(scores: Sequence[Tensor], count: int, floors: Sequence[int]) -> list[Tensor]:
    """Return the masks of the `count` highest scores over all layers together.

    Args:
        scores: one tensor per layer.
        count: how many to keep in total; at least the sum of the floors.
        floors: least number of synapses per layer.
    """
    flat = torch.cat([score.detach().flatten() for score in scores])
    sizes = [score.numel() for score in scores]
    count = max(count, sum(floors))
    parts = None if flat.is_cuda else top_k_mask(flat, count).split(sizes)
    if parts is None or any(int(part.sum()) < n for part, n in zip(parts, floors, strict=True)):
        flat.masked_fill_(top_k_parts(flat, sizes, floors), torch.inf)
        parts = top_k_mask(flat, count).split(sizes)
    return [part.view_as(score) for part, score in zip(parts, scores, strict=True)]


def highest_absent(scores: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
    """Return for each layer the highest score that its mask leaves out, 0 where none is.

    ``score - highest_absent > 0`` is then the mask again, except for ties.
    """
    highest = [
        torch.where(mask, -torch.inf, score).amax()
        for score, mask in zip(scores, masks, strict=True)
    ]
    return [torch.where(level.isfinite(), level, 0.0) for level in highest]


def select_masks(
    layers: Sequence[Layer],
    scores: Sequence[Tensor],
    connectivity: Callable[[Layer], float],
    scope: str = "global",
    floor: float = 0.1,
) -> list[Tensor]:
    """Return exact masks of the highest scores, in each layer or across layers.

    Args:
        layers: the pruned layers.
        scores: one tensor per layer, of the shape of its weight.
        connectivity: the fraction of a layer's synapses to keep, often ``pruner.target_of``.
        scope: ``"global"``: layers compete for one budget, except those with a connectivity of
            their own; ``"layer"``: each keeps its own fraction.
        floor: in the competition no layer falls below this part of its even fraction, nor below one
            synapse.

    Returns:
        One bool mask per layer; the total is exact.

    Example:
        >>> masks = select_masks(layers, [x.weight.abs() for x in layers], pruner.target_of)
    """
    masks: dict[int, Tensor] = {}
    rivals = []
    for i, (layer, score) in enumerate(zip(layers, scores, strict=True)):
        if scope == "global" and layer.connectivity is None:
            rivals.append(i)
        else:
            masks[i] = top_k_mask(score, target_count(connectivity(layer), score.numel()))
    if rivals:
        even = [connectivity(layers[i]) * scores[i].numel() for i in rivals]
        floors = [max(1, int(floor * count)) for count in even]
        chosen = top_k_masks([scores[i] for i in rivals], round(sum(even)), floors)
        masks.update(zip(rivals, chosen, strict=True))
    return [masks[i] for i in range(len(scores))]
