"""Stages computed densely by torch, for batches in which looking for spikes costs more.

Per weight and map a sparse stage takes ``connectivity (lane + density event)`` nanoseconds, where
`density` is the share of inputs that are not 0; a dense one takes ``MATMUL + LOAD / maps``. The
figures are of one core and only their ratios count. The choice follows from what arrives and never
from a clock, so that the same images give the same answer again.
"""

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rewire.export.structure import Stage

MATMUL, LOAD = 0.02, 0.4


class Cost(NamedTuple):
    """Nanoseconds: `lane` for a weight that is there, `event` where its input is not 0 as well."""

    lane: float
    event: float


SPIKES = {
    "avx512": (Cost(0.0, 0.45), Cost(0.027, 0.0)),
    "avx2": (Cost(0.0, 0.45), Cost(0.053, 0.0)),
    "portable": (Cost(0.0, 0.45), Cost(0.05, 2.7)),
    "torch": (Cost(0.0, 15.0), Cost(1.0, 0.0)),
}  # fully connected, convolution
PIXELS = {**dict.fromkeys(SPIKES, (Cost(0.0, 0.65), Cost(0.15, 0.0))), "torch": SPIKES["torch"]}


class Dense:
    """The weights of a stage with their zeros, made when first used."""

    def __init__(self, stage: Stage, kernels: str) -> None:
        self.stage, self.kernels = stage, kernels
        self.is_conv = len(stage.shape) == 4

    @cached_property
    def weight(self) -> Tensor:
        """All weights."""
        return torch.from_numpy(self.stage.dense())

    def wins(self, maps: int, density: float, pixels: bool = False) -> bool:
        """Whether dense work on `maps` inputs is expected to be quicker."""
        cost = (PIXELS if pixels else SPIKES)[self.kernels][self.is_conv]
        load = 0.0 if self.is_conv else LOAD / maps  # a convolution's weights stay in the cache
        return self.stage.connectivity * (cost.lane + density * cost.event) > MATMUL + load

    def __call__(self, x: Tensor) -> Tensor:
        """Return the currents of ``[maps, planes, *inputs]``; planes add up."""
        x, bias = x.sum(1, dtype=torch.float32), torch.from_numpy(self.stage.bias)
        if self.is_conv:
            return functional.conv2d(x, self.weight, bias, padding=self.stage.padding)
        return functional.linear(x.flatten(1), self.weight, bias)
