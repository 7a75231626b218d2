"""Stages computed densely by torch, where looking for spikes costs more.

Work is synapses x maps, a convolution's weight counted at each of its positions. In nanoseconds a
sparse stage takes ``work connectivity (planes lane + density event)``, where `density` is the share
of inputs that are not 0, and a dense one ``call + LOAD weights + MATMUL work``. The figures are of
one core and only their ratios count. The choice follows from what arrives and never from a clock,
so that the same images give the same answer again.
"""

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from spikewire.formats.network import Geometry, Stage

MATMUL, LOAD = 0.02, 0.4


class Cost(NamedTuple):
    """Of sparse work: `lane` for a weight that is there, `event` where its input is not 0 as well.

    `call` is what dense work takes more, be there ever so little of it.
    """

    lane: float
    event: float
    call: float = 1e5


SPIKES = {
    "avx512": (Cost(0.0, 0.45), Cost(0.021, 0.0)),
    "avx2": (Cost(0.0, 0.45), Cost(0.044, 0.0)),
    "portable": (Cost(0.0, 0.45), Cost(0.13, 0.0)),
    "torch": (Cost(0.0, 15.0, 0.0), Cost(1.0, 0.0, 0.0)),
}  # fully connected, convolution
PIXELS = {**dict.fromkeys(SPIKES, (Cost(0.0, 0.65), Cost(0.15, 0.0))), "torch": SPIKES["torch"]}


class Dense:
    """The weights of a stage with their zeros, made when first used."""

    def __init__(self, stage: Stage, place: Geometry, kernels: str) -> None:
        self.stage, self.kernels = stage, kernels
        self.is_conv = len(stage.shape) == 4
        self.positions = math.prod(place.neurons[1:])

    @cached_property
    def weight(self) -> Tensor:
        """All weights."""
        return torch.from_numpy(self.stage.dense())

    def wins(self, maps: int, density: float, *, planes: int = 1, pixels: bool = False) -> bool:
        """Whether dense work on `maps` inputs is expected to be quicker."""
        lane, event, call = (PIXELS if pixels else SPIKES)[self.kernels][self.is_conv]
        weights = math.prod(self.stage.shape)
        work = weights * self.positions * maps
        load = 0.0 if self.is_conv else LOAD * weights  # a convolution's stay in the cache
        sparse = work * self.stage.connectivity * (planes * lane + density * event)
        return sparse > call + load + MATMUL * work

    def __call__(self, x: Tensor) -> Tensor:
        """Return the currents of ``[maps, planes, *inputs]``; planes add up."""
        x = x.sum(1, dtype=torch.float32) if x.shape[1] > 1 else x[:, 0].float()
        bias = torch.from_numpy(self.stage.bias)
        if self.is_conv:
            return functional.conv2d(x, self.weight, bias, padding=self.stage.padding)
        return functional.linear(x.flatten(1), self.weight, bias)
