"""SET, sparse evolutionary training: Mocanu et al., Nature Communications 2018, https://arxiv.org/abs/1707.04780."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spikewire.methods.rigl import RigL
from spikewire.pruning import Layer, Pruner, setting


@dataclass(frozen=True, kw_only=True)
class SET(RigL):
    """A fixed count: drop the weights nearest to 0 of each sign, grow at random places.

    As published, positive and negative weights are ranked apart, and the same fraction of each is
    dropped. New weights start at 0, or with `std` at ``std N(0, 1)``. As published, the fraction
    replaced does not shrink over the run (``decay="constant"``); by default it does, as in RigL,
    which lets the masks settle.
    """

    name = "set"

    std: float = setting(
        0.0, "standard deviation of new weights (published: 0.1); 0: they are 0", within="[0, inf)"
    )
    decay: str = setting("cosine", "fraction replaced over the run", choices=("cosine", "constant"))

    def init(self, pruner: Pruner) -> None:
        """Choose the first synapses; the noise has at least float32, which half would tie."""
        super().init(pruner)
        for layer in pruner.layers:
            layer.state["promise"] = layer.state["promise"].to(noise_dtype(layer))

    def replaced(self, done: float) -> float:
        """Return the fraction of the present synapses to replace."""
        return super().replaced(done) if self.decay == "cosine" else self.drop

    def growth_score(self, pruner: Pruner, layer: Layer) -> Tensor:
        """Return uniform noise in [0, 1)."""
        return torch.rand(
            layer.weight.shape,
            generator=pruner.device_generator(layer.weight.device),
            device=layer.weight.device,
            dtype=noise_dtype(layer),
        )

    def kept(self, mask: Tensor, weight: Tensor, count: int) -> Tensor:
        """Return the mask of the `count` synapses to keep: the largest of each sign.

        Each sign keeps its part of the nonzero weights; present weights of 0 are dropped first.
        """
        signs = mask & (weight > 0), mask & (weight < 0)
        positive, negative = (int(sign.sum()) for sign in signs)
        if count >= positive + negative:
            return super().kept(mask, weight, count)
        first = round(count * positive / (positive + negative))
        largest, lowest = (
            super(SET, self).kept(sign, weight, n)
            for sign, n in zip(signs, (first, count - first), strict=True)
        )
        return largest | lowest

    def grow_(self, pruner: Pruner, layer: Layer, grown: Tensor) -> None:
        """Add synapses, at weight 0 or at random weights."""
        super().grow_(pruner, layer, grown)
        if self.std:
            generator = pruner.device_generator(layer.weight.device)
            noise = torch.empty_like(layer.weight).normal_(std=self.std, generator=generator)
            layer.weight.copy_(torch.where(grown, noise, layer.weight))


def noise_dtype(layer: Layer) -> torch.dtype:
    """Return the type of a layer's noise: half precision has few values, and ties are no chance."""
    return torch.promote_types(layer.weight.dtype, torch.float32)
