"""Surrogate gradients: smooth steps whose derivative replaces that of the spike's hard step."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SIGMOID_SLOPE = 4.0  # the derivative then peaks at 1, as those of the others do


class Surrogate(NamedTuple):
    """A smooth step and its derivative, both functions of ``membrane - threshold``."""

    primitive: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]


def atan(x: Tensor) -> Tensor:
    """Return ``atan(pi x) / pi + 1/2``."""
    return torch.atan(math.pi * x) / math.pi + 0.5


def atan_derivative(x: Tensor) -> Tensor:
    """Return ``1 / (1 + (pi x)^2)``."""
    return torch.addcmul(x.new_ones(()), x, x, value=math.pi**2).reciprocal_()


def sigmoid(x: Tensor) -> Tensor:
    """Return ``1 / (1 + exp(-4 x))``."""
    return torch.sigmoid(SIGMOID_SLOPE * x)


def sigmoid_derivative(x: Tensor) -> Tensor:
    """Return ``4 s (1 - s)`` with ``s = sigmoid(4 x)``."""
    s = sigmoid(x)
    return torch.addcmul(s, s, s, value=-1).mul_(SIGMOID_SLOPE)


def triangle(x: Tensor) -> Tensor:
    """Return ``1/2 + x - x |x| / 2`` with x clipped to [-1, 1]."""
    x = x.clamp(-1, 1)
    return 0.5 + x - 0.5 * x * x.abs()


def triangle_derivative(x: Tensor) -> Tensor:
    """Return ``max(0, 1 - |x|)``."""
    return x.abs().neg_().add_(1).clamp_(min=0)


def rectangle(x: Tensor) -> Tensor:
    """Return ``x + 1/2`` clipped to [0, 1]."""
    return (x + 0.5).clamp(0, 1)


def rectangle_derivative(x: Tensor) -> Tensor:
    """Return 1 where ``|x| < 1/2``, else 0."""
    return (x.abs() < 0.5).to(x.dtype)


SURROGATES = {
    "atan": Surrogate(atan, atan_derivative),
    "sigmoid": Surrogate(sigmoid, sigmoid_derivative),
    "triangle": Surrogate(triangle, triangle_derivative),
    "rectangle": Surrogate(rectangle, rectangle_derivative),
}
