"""Stages computed by dense torch, and the rule for when that is faster than the sparse kernels.

Work is weights x positions x maps, where a map is one time step of one sample. In nanoseconds, a
sparse stage takes ``work * connectivity * (planes * lane + density * event)``, where `density` is
the fraction of inputs that are not 0, and a dense stage ``call + LOAD * weights + MATMUL * work``.
The constants were measured on one core, and only their ratios matter. The choice depends on the
input and never on a clock, so that the same images always give the same outputs.
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
    """Nanoseconds of sparse work, and the constant part of dense work.

    Args:
        lane: Per non-zero weight and map.
        event: In addition, where the input of the weight is not 0.
        call: Constant time of a dense stage, however small it is.
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
    """A stage with dense weights, which are created when first used.

    Args:
        stage: The stage.
        geometry: Its shapes.
        kernels: Name of the sparse kernels to compare with.
    """

    def __init__(self, stage: Stage, geometry: Geometry, kernels: str) -> None:
        self.stage, self.kernels = stage, kernels
        self.positions = math.prod(geometry.currents[1:])

    @cached_property
    def weight(self) -> Tensor:
        """The weights with their zeros."""
        return torch.from_numpy(self.stage.to_dense())

    def is_faster(
        self, maps: int, density: float, *, planes: int = 1, pixels: bool = False
    ) -> bool:
        """Return whether dense torch is expected to be faster than the sparse kernels.

        Args:
            maps: Number of input maps.
            density: Fraction of inputs that are not 0, summed over the planes.
            planes: Planes per map, as left by sum pooling.
            pixels: Whether the inputs are real numbers, not spikes.
        """
        lane, event, call = (PIXELS if pixels else SPIKES)[self.kernels][self.stage.is_conv]
        work = self.stage.size * self.positions * maps
        load = 0.0 if self.stage.is_conv else LOAD * self.stage.size  # a kernel stays in the cache
        sparse = work * self.stage.connectivity * (planes * lane + density * event)
        return sparse > call + load + MATMUL * work

    def __call__(self, x: Tensor) -> Tensor:
        """Return the currents of ``[maps, planes, *inputs]``, where planes are added up."""
        x = x.sum(1, dtype=torch.float32) if x.shape[1] > 1 else x[:, 0].float()
        bias = torch.from_numpy(self.stage.bias)
        if self.stage.is_conv:
            stage = self.stage
            sizes = (stage.stride, stage.padding, stage.dilation, stage.groups)
            return functional.conv2d(x, self.weight, bias, *sizes)
        return functional.linear(x.flatten(1), self.weight, bias)
