"""A penalty on firing rates, as a layer between others."""

from typing import Any

import torch
from torch import Tensor, nn

from spikewire.errors import check


class RatePenalty(nn.Module):
    """Spikes ``[time, batch, neurons]`` pass unchanged; in training a penalty is added to the loss.

    ``strength * sum over neurons of (rate - target)²``

    The rate is the mean over time and batch. Only the gradient is added: the loss that is shown
    does not include the penalty.

    Args:
        strength: weight of the penalty, at least 0.
        target: rate of every neuron, in spikes per time step, from 0 to 1.

    Raises:
        SpikewireError: an argument is out of its range.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 9), spikewire.nn.LIF(), RatePenalty(0.1, 0.01))
    """

    def __init__(self, strength: float, target: float = 0.0) -> None:
        super().__init__()
        check(strength >= 0, "strength", strength, "at least 0")
        check(0 <= target <= 1, "target", target, "between 0 and 1")
        self.strength, self.target = strength, target

    def forward(self, spikes: Tensor) -> Tensor:
        """Return the spikes."""
        if not (self.training and self.strength and torch.is_grad_enabled()):
            return spikes
        return _AddPenalty.apply(spikes, self.strength, self.target)  # pyright: ignore

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"strength={self.strength}, target={self.target}"


class _AddPenalty(torch.autograd.Function):
    """The identity, and the gradient of the penalty."""

    @staticmethod
    def forward(ctx: Any, spikes: Tensor, strength: float, target: float) -> Tensor:
        rate = spikes.mean((0, 1), dtype=torch.promote_types(spikes.dtype, torch.float32))
        frames = spikes.shape[0] * spikes.shape[1]
        ctx.save_for_backward((rate - target) * (2 * strength / frames))
        return spikes.view_as(spikes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (change,) = ctx.saved_tensors
        return grads[0] + change.to(grads[0].dtype), None, None
