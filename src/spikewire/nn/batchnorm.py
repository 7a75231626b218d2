"""BatchNorm with separate statistics for each time step."""

import torch
from torch import Tensor, nn

from spikewire.errors import check

BATCHNORMS = ("joint", "per-step")


class BatchNormPerStep(nn.BatchNorm2d):
    """BatchNorm as a network computes it that runs one time step after the other.

    For every time step t, over batch and positions of that step::

        y[t] = gamma (x[t] - mean(x[t])) / sqrt(var(x[t]) + eps) + beta
        running <- (1 - momentum) running + momentum (mean(x[t]), var(x[t]))

    `nn.BatchNorm2d` over ``[time * batch, ...]`` has one mean and variance over all time steps, and
    updates the running statistics once. In evaluation mode the two are the same. It is not fused.

    Args:
        num_features: number of channels; further arguments as those of `nn.BatchNorm2d`.

    Example:
        >>> norm = BatchNormPerStep(16)
        >>> norm(torch.rand(8, 2, 16, 4, 4)).shape  # time, batch, channels, height, width
        torch.Size([8, 2, 16, 4, 4])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``[time, batch, channels, height, width]``."""
        normalise = super().forward
        if not self.training:
            return normalise(input.flatten(0, 1)).unflatten(0, input.shape[:2])
        return torch.stack([normalise(x) for x in input])


def per_step(layer: nn.Module) -> nn.Module:
    """Return a BatchNorm per time step in place of a fresh `nn.BatchNorm2d`, also within layers.

    Raises:
        SpikewireError: there is a BatchNorm after a fully connected layer.
    """
    flat = isinstance(layer, nn.BatchNorm1d)
    check(not flat, "batchnorm", "per-step", "joint for a network with BatchNorm1d")
    if type(layer) is nn.BatchNorm2d:
        return BatchNormPerStep(layer.num_features, layer.eps, layer.momentum)
    for name, child in layer.named_children():
        setattr(layer, name, per_step(child))
    return layer
