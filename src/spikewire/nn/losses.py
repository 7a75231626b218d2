"""Losses of an output ``[time, batch, classes]``; its mean over time is the firing rate.

Labels are class numbers, or shares of the classes ``[batch, classes]`` where images are mixed.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor, float, float], Tensor]


def mse_rate(
    output: Tensor, labels: Tensor, rate_scale: float = 10.0, smoothing: float = 0.0
) -> Tensor:
    """Return the paper's loss: ``mean((rate - onehot)²)``; `rate_scale` plays no part."""
    rate = output.float().mean(0)
    aim = functional.one_hot(labels, rate.shape[1]) if labels.ndim == 1 else labels
    aim = aim.to(rate.dtype)
    return functional.mse_loss(rate, torch.lerp(aim, aim.mean(1, keepdim=True), smoothing))


def logits(output: Tensor, rate_scale: float) -> Tensor:
    """Return ``rate_scale · rate``, whose softmax stands for probabilities."""
    return rate_scale * output.float().mean(0)


def ce_rate(
    output: Tensor, labels: Tensor, rate_scale: float = 10.0, smoothing: float = 0.0
) -> Tensor:
    """Return ``CE(rate_scale · rate, label)``."""
    return functional.cross_entropy(logits(output, rate_scale), labels, label_smoothing=smoothing)


def ce_per_step(
    output: Tensor, labels: Tensor, rate_scale: float = 10.0, smoothing: float = 0.0
) -> Tensor:
    """Return ``mean over time of CE(rate_scale · output[t], label)``."""
    steps = output.float().flatten(0, 1)
    labels = torch.cat([labels] * len(output))
    return functional.cross_entropy(rate_scale * steps, labels, label_smoothing=smoothing)


def correct(output: Tensor, labels: Tensor) -> Tensor:
    """Return how many of the batch are right; among equal rates the first class wins."""
    return torch.sum(output.float().mean(0).argmax(1) == labels)


LOSSES: dict[str, Loss] = {"mse-rate": mse_rate, "ce-rate": ce_rate, "ce-per-step": ce_per_step}
