"""Which synapses are present at first: random ones, or the largest weights."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spikewire.pruning.allocation import largest_weights
from spikewire.pruning.selection import random_mask

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner

INITIAL = ("random", "largest")


def first_masks(
    pruner: "Pruner", connectivity: float, allocation: str, initial: str
) -> list[Tensor]:
    """Return the masks of the first synapses, for `Method.init`.

    Args:
        pruner: the pruner being attached.
        connectivity: fraction of weights present; a layer may have one of its own.
        allocation: how many per layer: ``"uniform"``, ``"erk"`` or ``"global"``.
        initial: ``"largest"``: the largest weights; ``"random"``: as many per layer, at random.

    Returns:
        One bool mask per layer.
    """
    masks = largest_weights(pruner.layers, connectivity, allocation)
    if initial == "largest":
        return masks
    return [
        random_mask(torch.ones_like(mask), int(mask.sum()), pruner.device_generator(mask.device))
        for mask in masks
    ]
