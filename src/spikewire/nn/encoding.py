"""Random encoding of images as spikes."""

import torch
from torch import Tensor, nn


class Bernoulli(nn.Module):
    """Spikes over time from pixels: each is 1 with the probability of its pixel, at every step.

    In evaluation random numbers come from a fixed seed, so that a test can be repeated. The
    gradient of a spike is 1: its mean is the pixel.

    Example:
        >>> Bernoulli()(torch.tensor([[0.0, 1.0]]).expand(3, 1, 2))[:, 0].tolist()
        [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    """

    def forward(self, pixels: Tensor) -> Tensor:
        """Return spikes for pixels ``[time, batch, ...]``; those outside [0, 1] are clipped."""
        fixed = None if self.training else torch.Generator(pixels.device).manual_seed(0)
        drawn = torch.rand(pixels.shape, generator=fixed, device=pixels.device)
        spikes = (drawn < pixels.detach()).to(pixels.dtype)
        return spikes + (pixels - pixels.detach()) if pixels.requires_grad else spikes
