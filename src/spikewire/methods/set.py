"""SET, sparse evolutionary training: Mocanu et al., Nature Communications 2018, https://arxiv.org/abs/1707.04780."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spikewire.methods.rigl import RigL
from spikewire.pruning.layers import Layer


@dataclass(kw_only=True)
class Set(RigL):
    """A fixed count: drop the weakest synapses, grow at random places.

    RigL with a blind eye: an absent synapse's promise is a random number. As published, the share
    replaced does not shrink over the run; here it does, which settles the wiring.
    """

    name = "set"

    def promise(self, layer: Layer) -> Tensor:
        """Return uniform noise in [0, 1)."""
        return torch.rand(
            layer.weight.shape,
            generator=self.draws(layer.weight.device),
            device=layer.weight.device,
            dtype=layer.weight.dtype,
        )
