"""Where to cut: exact selection over one tensor or over all layers at once, without a sort.

On a GPU only `sound` waits for the device. Scores must not be NaN.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spikewire.errors import TrainingFailed
from spikewire.kernels import same_layout
from spikewire.pruning.layers import Layer

SCOPES = ("global", "layer")

_BITS = {torch.float64: torch.int64, torch.float32: torch.int32}


def target_count(connectivity: float, total: int) -> int:
    """Return the synapses that `connectivity` asks of `total`, never none."""
    return min(total, max(1, round(connectivity * total)))


def kth_largest(values: Tensor, k: int) -> Tensor:
    """Return the k-th largest of `values` (k from 1), as a 0-d tensor."""
    flat = values.detach().flatten()
    if same_layout(flat):
        from spikewire.kernels import weights  # needs Triton, which need not be there

        return weights.kth_largest(flat, k)
    return bisect(flat, k) if flat.is_cuda else select(flat, k)


def select(flat: Tensor, k: int) -> Tensor:
    """Partition, as the CPU does best."""
    return flat.kthvalue(flat.numel() - k + 1).values


def bisect(flat: Tensor, k: int) -> Tensor:
    """Bisect the bit pattern, whose integer order is the order of the floats.

    One counting pass a bit, and no answer is read back: a GPU is not waited for.
    """
    wide = flat if flat.dtype in _BITS else flat.float()
    kind = _BITS[wide.dtype]
    keys = _ordered(wide.view(kind))
    top = torch.iinfo(kind).bits - 1
    low = torch.full((), torch.iinfo(kind).min, dtype=kind, device=flat.device)
    for bit in range(top, -1, -1):
        # the first step, from the minimum by 2^top, is to 0: written out, it would overflow
        step = torch.zeros_like(low) if bit == top else low + (1 << bit)
        low = torch.where((keys >= step).sum() >= k, step, low)
    return _ordered(low).view(wide.dtype).to(flat.dtype)


def _ordered(bits: Tensor) -> Tensor:
    """Map float bits to integers of the same order; its own inverse."""
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)


def require_finite(scores: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the scores; raise where one is not finite: a cut would hide that training failed."""
    if not all(bool(score.isfinite().all()) for score in scores):
        raise TrainingFailed("weights are not finite any more; try a lower lr")
    return scores


def top_k_mask(scores: Tensor, count: int) -> Tensor:
    """Return the mask of the `count` highest scores, exactly; ties go to the lower index."""
    if count <= 0 or count >= scores.numel():
        return torch.full_like(scores, count > 0, dtype=torch.bool)
    flat = scores.detach().flatten()
    return mask_from_threshold(flat, kth_largest(flat, count), count).view_as(scores)


def mask_from_threshold(flat: Tensor, least: Tensor, count: int) -> Tensor:
    """Return the mask of all above `least` and the first that equal it, `count` altogether."""
    if same_layout(flat):
        from spikewire.kernels import weights

        return weights.mask_from_threshold(flat, least, count)
    above, tied = flat > least, flat == least
    return above | (tied & (tied.cumsum(0, dtype=torch.int32) <= count - above.sum()))


def choose(scores: Sequence[Tensor], count: int, floors: Sequence[int]) -> list[Tensor]:
    """Return masks of the `count` highest scores over all layers, each layer at least its floor."""
    flat = torch.cat([score.detach().flatten() for score in scores])
    sizes = [score.numel() for score in scores]
    count = max(count, sum(floors))
    parts = None if flat.is_cuda else top_k_mask(flat, count).split(sizes)
    if parts is None or any(int(part.sum()) < n for part, n in zip(parts, floors, strict=True)):
        for part, floor in zip(flat.split(sizes), floors, strict=True):
            part.masked_fill_(top_k_mask(part, floor), torch.inf)
        parts = top_k_mask(flat, count).split(sizes)
    return [part.view_as(score) for part, score in zip(parts, scores, strict=True)]


def levels(scores: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
    """Return for each layer the highest score left out, 0 where none is.

    ``score - level > 0`` is then the mask again, ties apart.
    """
    highest = [
        torch.where(mask, -torch.inf, score).amax()
        for score, mask in zip(scores, masks, strict=True)
    ]
    return [torch.where(level.isfinite(), level, 0.0) for level in highest]


def wire(
    layers: Sequence[Layer],
    scores: Sequence[Tensor],
    share: Callable[[Layer], float],
    scope: str = "global",
    floor: float = 0.1,
) -> list[Tensor]:
    """Return exact masks of the highest scores.

    Layers compete for one budget (scope ``global``), except those given a connectivity of their
    own; with scope ``layer`` every layer keeps its share. In the competition no layer falls under
    `floor` of its even share, nor under one synapse.
    """
    masks: dict[int, Tensor] = {}
    rivals = []
    for i, (layer, score) in enumerate(zip(layers, scores, strict=True)):
        if scope == "global" and layer.connectivity is None:
            rivals.append(i)
        else:
            masks[i] = top_k_mask(score, target_count(share(layer), score.numel()))
    if rivals:
        even = [share(layers[i]) * scores[i].numel() for i in rivals]
        floors = [max(1, int(floor * count)) for count in even]
        chosen = choose([scores[i] for i in rivals], round(sum(even)), floors)
        masks.update(zip(rivals, chosen, strict=True))
    return [masks[i] for i in range(len(scores))]
