"""`LocalRule`: the optimizer that applies what a local learning rule has accumulated."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

TINY = 1e-12  # below any sum of weights that matters; a neuron without inputs stays at 0


class LocalRule(Optimizer):
    """Apply an update that a rule left as a negative gradient, then bounds, then row sums.

    ``w <- clip(w - lr grad, low, high)``; then, with `total`, the weights of each neuron are scaled
    so that their sum is `total`: synapses of a neuron compete for it.

    Args:
        params: the weights ``[neurons, inputs]``, or groups of them.
        lr: learning rate.
        low: lowest weight.
        high: highest weight.
        total: sum of the weights of a neuron; 0: any.
        difference: for an update that depends on the weight: called with the weight that is moved,
            returns its gradient minus that of the weight the network used. A pruning method may
            move a latent weight where the network sees 0, and the update must be the latent's.

    Example:
        >>> optimizer = LocalRule(model.parameters(), lr=0.03, total=78.4)
        >>> model.learn(images, labels)
        >>> optimizer.step()
    """

    follows_gradient = False  # an update of 0 is no sign of a layer that cannot learn

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        low: float = -math.inf,
        high: float = math.inf,
        total: float = 0.0,
        difference: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.difference = difference
        super().__init__(params, {"lr": lr, "low": low, "high": high, "total": total})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Apply the update of each weight that has one.

        Args:
            closure: computes the update again and returns a value, as for any torch optimizer.
        """
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.sub_(self.gradient(weight) * group["lr"])
                    weight.clamp_(group["low"], group["high"])
                    if group["total"]:
                        weight.mul_(row_scale(weight, group["total"]))
        return value

    def gradient(self, weight: Tensor) -> Tensor:
        """Return minus the update of a weight, as it is now."""
        assert weight.grad is not None
        return weight.grad if self.difference is None else weight.grad + self.difference(weight)


def row_scale(weight: Tensor, total: float) -> Tensor:
    """Return the factor of each row ``[neurons, 1]`` that makes its sum `total`."""
    return total / weight.sum(1, keepdim=True).clamp(min=TINY)
