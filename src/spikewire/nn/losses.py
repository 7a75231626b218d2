"""Losses of an output ``[time, batch, classes]``; its mean over time is the firing rate.

Labels are class numbers ``[batch]``, or fractions of the classes ``[batch, classes]`` where images
are mixed.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor, float, float], Tensor]


def mse_rate(
    output: Tensor, labels: Tensor, rate_scale: float = 10.0, smoothing: float = 0.0
) -> Tensor:
    """Return the paper's loss, ``mean((rate - onehot)²)``.

    Args:
        output: spikes or currents ``[time, batch, classes]``.
        labels: class numbers, or fractions of the classes.
        rate_scale: not used; present so that all losses have the same signature.
        smoothing: label smoothing in [0, 1].

    Returns:
        The loss, a scalar.
    """
    rate = output.float().mean(0)
    target = functional.one_hot(labels, rate.shape[1]) if labels.ndim == 1 else labels
    target = target.to(rate.dtype)
    smooth = torch.lerp(target, target.mean(1, keepdim=True), smoothing)
    return functional.mse_loss(rate, smooth)


def logits(output: Tensor, rate_scale: float) -> Tensor:
    """Return ``rate_scale · rate``, whose softmax are the class probabilities."""
    return rate_scale * output.float().mean(0)


def ce_rate(
    output: Tensor, labels: Tensor, rate_scale: float = 10.0, smoothing: float = 0.0
) -> Tensor:
    """Return the cross-entropy of the rates, ``CE(rate_scale · rate, label)``.

    Args:
        output: spikes or currents ``[time, batch, classes]``.
        labels: class numbers, or fractions of the classes.
        rate_scale: factor from rates, which are in [0, 1] for spikes, to logits.
        smoothing: label smoothing in [0, 1].

    Returns:
        The loss, a scalar.
    """
    return functional.cross_entropy(logits(output, rate_scale), labels, label_smoothing=smoothing)


def ce_per_step(
    output: Tensor, labels: Tensor, rate_scale: float = 10.0, smoothing: float = 0.0
) -> Tensor:
    """Return the mean over time of the cross-entropy, ``CE(rate_scale · output[t], label)``.

    Args:
        output: spikes or currents ``[time, batch, classes]``.
        labels: class numbers, or fractions of the classes.
        rate_scale: factor from outputs to logits.
        smoothing: label smoothing in [0, 1].

    Returns:
        The loss, a scalar.
    """
    steps = output.float().flatten(0, 1)
    labels = torch.cat([labels] * len(output))
    return functional.cross_entropy(rate_scale * steps, labels, label_smoothing=smoothing)


def predict(output: Tensor) -> Tensor:
    """Return the class of the highest rate per image; among equal rates the first one.

    Args:
        output: spikes or currents ``[time, batch, classes]``.

    Returns:
        Class numbers ``[batch]``.
    """
    return output.float().mean(0).argmax(1)


def count_correct(output: Tensor, labels: Tensor) -> Tensor:
    """Return how many images of the batch are classified correctly, as a tensor.

    The predicted class is that of `predict`.

    Args:
        output: spikes or currents ``[time, batch, classes]``.
        labels: class numbers ``[batch]``.

    Returns:
        The count, a scalar on the device of `output`.
    """
    return torch.sum(predict(output) == labels)


LOSSES: dict[str, Loss] = {"mse-rate": mse_rate, "ce-rate": ce_rate, "ce-per-step": ce_per_step}
