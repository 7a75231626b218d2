"""The augmentation of data over time: each sample begins a few steps earlier or later."""

import torch
from torch import Generator, Tensor


def draw_steps(count: int, size: tuple[int, int], generator: Generator, steps: float) -> Tensor:
    """Draw the steps to move by, one row per sample, each in ``-steps .. steps``."""
    largest = int(steps)
    return torch.randint(-largest, largest + 1, (count, 1), generator=generator)


def time_shift(samples: Tensor, steps: Tensor) -> Tensor:
    """Delay samples ``[batch, time, ...]``: ``out[t] = in[t - steps]``; steps moved in are 0."""
    time = torch.arange(samples.shape[1], device=samples.device) - steps
    inside = (time >= 0) & (time < samples.shape[1])
    rows = torch.arange(len(samples), device=samples.device)[:, None]
    moved = samples[rows, time.clamp(0, samples.shape[1] - 1)]
    return moved * inside.view(*inside.shape, *[1] * (samples.ndim - 2)).to(moved.dtype)
