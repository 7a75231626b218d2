"""Spike trains: encoding of images by rate or latency, and the exponential traces of spikes."""

import torch
from torch import Tensor

from spikewire.kernels import same_layout


def poisson(
    images: Tensor, time_steps: int, probability: float, generator: torch.Generator | None = None
) -> Tensor:
    """Return spikes ``[time, batch, pixels]``: one per step with ``probability * pixel``.

    Args:
        images: pixels in [0, 1], ``[batch, ...]``; others are clipped.
        time_steps: number of steps.
        probability: probability of a spike of a pixel of 1 in a step.
        generator: where random numbers come from; None: torch's own.
    """
    chance = images.flatten(1).clamp(0, 1) * probability
    shape = (time_steps, *chance.shape)
    drawn = torch.rand(shape, generator=generator, device=chance.device, dtype=chance.dtype)
    return drawn.lt_(chance)


def latency(images: Tensor, time_steps: int, window: float, dark: float) -> Tensor:
    """Return spikes ``[time, batch, pixels]``: one per pixel, the brighter the earlier.

    A pixel x spikes at step ``round((1 - x) window (time_steps - 1))``.

    Args:
        images: pixels in [0, 1], ``[batch, ...]``; others are clipped.
        time_steps: number of steps.
        window: fraction of the time that pixels of 1 to 0 are spread over.
        dark: pixels up to this value do not spike.
    """
    pixels = images.flatten(1).clamp(0, 1)
    step = ((1 - pixels) * (window * (time_steps - 1))).round().long()
    spikes = pixels.new_zeros(time_steps, *pixels.shape)
    return spikes.scatter_(0, step.unsqueeze(0), (pixels > dark).to(pixels.dtype).unsqueeze(0))


def trace(spikes: Tensor, decay: float) -> Tensor:
    """Return ``x[t] = 1 where there is a spike, else decay x[t-1]``; ``x[-1] = 0``.

    Args:
        spikes: 0 or 1, ``[time, ...]``.
        decay: factor per step, in [0, 1).
    """
    if same_layout(spikes):
        from spikewire.kernels import competition  # imports Triton, which is optional

        return competition.trace(spikes, decay)
    traces = torch.empty_like(spikes)
    before = torch.zeros_like(spikes[0])
    for now, spike in zip(traces, spikes, strict=True):
        before = torch.maximum(torch.mul(before, decay, out=now), spike, out=now)
    return traces


def following(spikes: Tensor, decay: float) -> Tensor:
    """Return ``x[t] = spikes[t+1] + decay x[t+1]``; 0 at the last step.

    Args:
        spikes: ``[time, ...]``.
        decay: factor per step, in [0, 1).
    """
    sums = torch.zeros_like(spikes)
    for t in range(len(spikes) - 2, -1, -1):
        torch.add(spikes[t + 1], sums[t + 1], alpha=decay, out=sums[t])
    return sums


def previous(traces: Tensor) -> Tensor:
    """Return the traces one step before, 0 at the first step."""
    return torch.cat([torch.zeros_like(traces[:1]), traces[:-1]])
