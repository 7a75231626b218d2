"""SET, sparse evolutionary training: Mocanu et al., Nature Communications 2018, https://arxiv.org/abs/1707.04780."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spikewire.methods.rigl import RigL
from spikewire.pruning import Layer, Pruner


@dataclass(frozen=True, kw_only=True)
class SET(RigL):
    """A fixed count: drop the smallest weights, grow at random places.

    RigL with random growth scores. As published, the fraction replaced does not shrink over the
    run; here it does, which lets the masks settle.
    """

    name = "set"

    def growth_score(self, pruner: Pruner, layer: Layer) -> Tensor:
        """Return uniform noise in [0, 1)."""
        return torch.rand(
            layer.weight.shape,
            generator=pruner.device_generator(layer.weight.device),
            device=layer.weight.device,
            dtype=layer.weight.dtype,
        )
