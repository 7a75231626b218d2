"""Optimizer state of regrown synapses, and weight decay of absent ones.

RigL and jaxpruner start a regrown synapse with all moments at 0; here its first moment is 0 and its
second the median of the present ones, so that its first move is as large as theirs.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from spikewire.pruning.layers import Layer
from spikewire.pruning.selection import kth_largest

_FIRST_MOMENTS = ("exp_avg", "momentum_buffer", "grad_avg", "mu_product")
_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "exp_inf", "sum", "acc_delta")
_DECOUPLED = tuple(
    getattr(optim, name) for name in ("AdamW", "Adafactor", "Muon") if hasattr(optim, name)
)


def reset_moments_(optimizer: Optimizer, weight: Tensor, regrown: Tensor, present: Tensor) -> None:
    """Reset the optimizer state of regrown synapses: first moment 0, second the median.

    Zeroing both would make the first move of a late regrowth several times the learning rate.

    Args:
        optimizer: the optimizer that moves `weight`.
        weight: the parameter.
        regrown: mask of the synapses that have just been added.
        present: mask of the synapses whose median second moment is taken.
    """
    for key, value in optimizer.state.get(weight, {}).items():
        if not isinstance(value, Tensor) or value.shape != weight.shape:
            continue
        if key in _FIRST_MOMENTS:
            value.masked_fill_(regrown, 0.0)
        elif key in _SECOND_MOMENTS:
            value.copy_(torch.where(regrown, masked_median(value, present), value))


def masked_median(values: Tensor, where: Tensor, at_most: int = 65_536) -> Tensor:
    """Return the median of ``values[where]``; on a CPU of an even sample if there are very many."""
    if values.is_cuda:
        return median_at(values, where)
    chosen = values[where]
    if not chosen.numel():
        return values.new_zeros(())
    return chosen[:: max(1, chosen.numel() // at_most)].median()


def median_at(values: Tensor, where: Tensor) -> Tensor:
    """Return the median of ``values[where]``, 0 if there are none; a GPU is not waited for."""
    count = where.sum()
    middle = kth_largest(values.where(where, -torch.inf), count - (count - 1) // 2)
    return middle.where(count > 0, 0.0)


def cancel_weight_decay_(layer: Layer, absent: Tensor) -> None:
    """Cancel in advance what the optimizer's weight decay will do to absent synapses.

    Decoupled: ``u <- u (1 - lr decay)``, so divide. Coupled: ``g <- g + decay u``, so subtract.
    """
    weight, options = layer.weight, layer.options
    decay = options["weight_decay"]
    if options.get("decoupled_weight_decay", isinstance(layer.optimizer, _DECOUPLED)):
        weight.copy_(torch.where(absent, weight / (1 - layer.lr * decay), weight))
        return
    assert weight.grad is not None
    scale = getattr(layer.optimizer, "grad_scale", None)
    factor = decay * (-1.0 if options.get("maximize") else 1.0)
    correction = absent * weight * factor
    weight.grad.sub_(correction if scale is None else correction * scale)


def warn_of_weight_decay(method: str, layers: Sequence[Layer]) -> None:
    """Warn when weight decay is on for a method that was published without it."""
    names = [layer.name for layer in layers if layer.options.get("weight_decay")]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warnings.warn(
            f"{method}: weight decay is on for {names[0]}{more}; "
            "published without it (AdamW's default is 0.01), and it acts on present synapses only",
            stacklevel=6,
        )
