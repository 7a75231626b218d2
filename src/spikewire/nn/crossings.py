"""Encoders: spikes from numbers that vary over time."""

import torch
from torch import Tensor, nn

from spikewire.errors import check

WHITE = 255.0


class Encoder(nn.Module):
    """A layer that turns numbers ``[time, batch, features]`` into spikes, without weights.

    Where synapses are counted, each of its outputs is an input of the network.
    """


class Crossings(Encoder):
    """A spike where a pixel value crosses a threshold, as in Bellec et al. (NeurIPS 2018).

    For each of the thresholds θ, spaced evenly from 0 to 1, one channel marks a rise and one a
    fall of the pixel y, scaled to 0..1::

        rise[t] = y[t] < θ <= y[t+1]        fall[t] = y[t] >= θ > y[t+1]

    For θ = 1 there is one channel only, which spikes wherever y is 1. The last channel is the cue.

    Args:
        levels: number of thresholds, at least 2; the layer has ``2 levels`` outputs.

    Raises:
        SpikewireError: there are too few levels, or the input is not ``[time, batch, 2]``.

    Example:
        >>> Crossings(40)(torch.zeros(840, 16, 2)).shape  # pixel and cue
        torch.Size([840, 16, 80])
    """

    thresholds: Tensor

    def __init__(self, levels: int = 40) -> None:
        super().__init__()
        check(levels >= 2, "levels", levels, "2 or more")
        self.levels = levels
        self.register_buffer("thresholds", torch.linspace(0, 1, levels)[:-1], persistent=False)

    @property
    def outputs(self) -> int:
        """How many channels of spikes it has."""
        return 2 * self.levels

    def forward(self, x: Tensor) -> Tensor:
        """Return the spikes ``[time, batch, 2 levels]``; a value after the last is not known."""
        shape = tuple(x.shape)
        check(len(shape) == 3 and shape[2] == 2, "input", shape, "[time, batch, 2]: pixel and cue")
        y = x[..., :1] / WHITE
        above = (y >= self.thresholds).to(x.dtype)
        change = above.diff(dim=0, append=above[-1:])
        return torch.cat([change > 0, change < 0, y >= 1, x[..., 1:] > 0], 2).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the number of levels."""
        return f"levels={self.levels}"
