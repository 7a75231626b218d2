"""A penalty on firing rates, as a layer between others."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from spikewire.errors import check


class RatePenalty(nn.Module):
    """Spikes ``[time, batch, neurons]`` pass unchanged; in training their penalty is kept.

    ``strength * sum over neurons of (rate - target)²``

    The rate is the mean over time and batch; on several ranks, over each rank's part of the batch.
    `rate_penalty` returns the penalty of the last forward pass as a term of the loss:
    ``spikewire train`` adds it, your own loop has to. Use one module per place in a network: of two
    calls in one forward pass, only the last counts.

    Args:
        strength: weight of the penalty, at least 0.
        target: rate of every neuron, in spikes per time step, from 0 to 1.

    Raises:
        SpikewireError: an argument is out of its range.

    Warns:
        UserWarning: the penalty of the call before was not added to a loss.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 9), spikewire.nn.LIF(), RatePenalty(0.1, 0.01))
        >>> loss = F.mse_loss(model(x), y) + spikewire.nn.rate_penalty(model)
    """

    def __init__(self, strength: float, target: float = 0.0) -> None:
        super().__init__()
        check(strength >= 0, "strength", strength, "at least 0")
        check(0 <= target <= 1, "target", target, "between 0 and 1")
        self.strength, self.target = strength, target
        self._term: Tensor | None = None

    def forward(self, spikes: Tensor) -> Tensor:
        """Return the spikes."""
        if not (self.training and self.strength and torch.is_grad_enabled()):
            return spikes
        if self._term is not None:
            warnings.warn(
                "RatePenalty: the penalty of the call before was not added to a loss; add "
                "spikewire.nn.rate_penalty(model) to the loss of each forward pass",
                stacklevel=2,
            )
        self._term = _Penalty.apply(spikes, self.strength, self.target)  # pyright: ignore
        return spikes.view_as(spikes)  # the sum of its gradients, then the penalty's

    def take(self) -> Tensor | None:
        """Return the penalty of the last call in training, once; then None."""
        term, self._term = self._term, None
        return term

    def extra_repr(self) -> str:
        """Show the arguments."""
        return f"strength={self.strength}, target={self.target}"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the penalty out of copies and files: it belongs to one forward pass."""
        return {**self.__dict__, "_term": None}


def rate_penalty(model: nn.Module) -> Tensor | float:
    """Return the sum of the penalties of a model's last forward pass, to be added to the loss.

    Being a term of the loss, it is scaled with it: by a ``GradScaler``, a mean over ranks or
    accumulated steps.

    Args:
        model: a network with or without `RatePenalty` modules, wrapped or not.

    Returns:
        A scalar with a gradient, or 0.0 if nothing was penalised since the last call.

    Example:
        >>> loss = loss_of(model(images), labels) + spikewire.nn.rate_penalty(model)
        >>> scaler.scale(loss).backward()
    """
    penalties = [module.take() for module in model.modules() if isinstance(module, RatePenalty)]
    return sum((term for term in penalties if term is not None), 0.0)


class _Penalty(torch.autograd.Function):
    """The penalty, with a gradient that is rounded once."""

    @staticmethod
    def forward(ctx: Any, spikes: Tensor, strength: float, target: float) -> Tensor:
        rate = spikes.mean((0, 1), dtype=torch.promote_types(spikes.dtype, torch.float32))
        excess = rate - target
        frames = spikes.shape[0] * spikes.shape[1]
        ctx.save_for_backward(excess * (2 * strength / frames))
        ctx.like = spikes.shape, spikes.dtype
        return strength * excess.square().sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (change,), (shape, dtype) = ctx.saved_tensors, ctx.like
        return (grads[0] * change).to(dtype).expand(shape), None, None
