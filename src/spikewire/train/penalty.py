"""A penalty on synaptic operations, which lowers firing where a spike reaches many synapses."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.metrics.links import apply_weight, fan_out, feature_dims
from spikewire.nn.synapses import synaptic_layers
from spikewire.pruning.costs.passes import in_backward


class SynOpsPenalty:
    """The mean number of spikes that a synapse gets per time step, as a term of the loss.

    ``sum over layers of operations per frame / sum over layers of synapses``

    Operations are spikes times the synapses they reach: weights that are not 0, times positions. A
    frame is one image at one time step. The term is in [0, 1] for spikes, whatever the size and
    the connectivity of the network, and its gradient is that of the operations per image. Inputs
    without a gradient, such as images, make multiply-accumulates and do not count; of inputs that
    are not spikes, the magnitude of the mean over frames counts.

    Forward passes in training mode are seen from construction on, so construct it before the first
    call of a compiled model. Calls of one layer since the last `take` are averaged: time steps of a
    loop, but also two calls in one time step. Layers inside reentrant activation checkpoints, which
    run without gradients, are not seen.

    Args:
        model: a network of any library; its linear and convolutional layers are looked at.

    Raises:
        SpikewireError: it has no such layers.

    Warns:
        UserWarning: a loss was differentiated without the term, or `take` found nothing.

    Example:
        >>> penalty = spikewire.SynOpsPenalty(model)
        >>> loss = loss_of(model(images), labels) + 2.0 * penalty.take()
        >>> penalty.remove()  # after training
    """

    def __init__(self, model: nn.Module) -> None:
        layers = synaptic_layers(model).values()
        if not layers:
            raise SpikewireError("SynOpsPenalty: the model has no linear or convolutional layers")
        self._seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
        hook = _Hook(self._see)
        self._handles = [x.register_forward_pre_hook(hook, with_kwargs=True) for x in layers]

    def take(self) -> Tensor | float:
        """Return the term of the forward passes since the last call; 0.0 where nothing was seen."""
        pairs = [_mean(calls) for calls in self._seen.values()]
        self._seen = {}
        if not pairs:
            warnings.warn(
                "SynOpsPenalty: no layer has received spikes since the last take(); call it once "
                "per step, after the forward pass in training mode",
                stacklevel=2,
            )
            return 0.0
        operations, synapses = (torch.stack(found).sum() for found in zip(*pairs, strict=True))
        return operations / synapses.clamp(min=1.0)

    def remove(self) -> None:
        """Stop looking at the model."""
        for handle in self._handles:
            handle.remove()
        self._seen = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave what belongs to this model out of copies."""
        return {"_seen": {}, "_handles": []}

    def _missed(self, grad: Tensor) -> None:
        """Forget calls whose loss is differentiated without the term."""
        if self._seen:
            self._seen = {}
            warnings.warn(
                "SynOpsPenalty: a loss was differentiated without the penalty; add take() to the "
                "loss of each step, or remove() the penalty",
                stacklevel=2,
            )

    def _see(self, module: nn.Module, x: Tensor) -> None:
        """Keep operations per frame, with their gradient, and synapses of one call of a layer."""
        weight: Any = module.weight
        frames = x.reshape(-1, *x.shape[x.dim() - feature_dims(module) :])
        with torch.autocast(x.device.type, enabled=False):
            fan = fan_out(module, weight.detach() != 0).float()
            mean = frames.mean(0, dtype=torch.float32)
            activity = torch.where(mean < 0, -mean, mean)  # unlike abs, with a gradient at 0
            operations = apply_weight(module, activity, fan).sum()
            synapses = apply_weight(module, torch.ones_like(activity), fan).sum().detach()
        if not in_backward():  # a checkpoint computes this again, and must find the same
            if not torch.compiler.is_compiling():
                x.register_hook(self._missed)
            self._seen.setdefault(module, []).append((operations, synapses))


def _mean(calls: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the mean operations and synapses of the calls of one layer."""
    operations, synapses = (torch.stack(found).mean() for found in zip(*calls, strict=True))
    return operations, synapses


class _Hook:
    """The hook before a layer; a CUDA graph repeats what it computes. On a copy it does nothing."""

    capturable = True

    def __init__(self, see: Any) -> None:
        self.see = see

    def __getstate__(self) -> dict[str, Any]:
        return {"see": None}

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        x = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        learns = module.training and torch.is_grad_enabled()
        if self.see and learns and x is not None and x.requires_grad:
            self.see(module, x)
