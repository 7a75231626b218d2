"""Put a wiring on a model, and hold it there while other hands go on training."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikewire.errors import SpikewireError
from spikewire.pruning.layers import managed


class Held:
    """Keeps absent synapses absent: gradients masked before each step, weights after it."""

    def __init__(self, optimizer: Optimizer, masks: dict[nn.Parameter, Tensor]):
        self.absent = {weight: ~mask for weight, mask in masks.items()}
        for weight in masks:
            managed[weight] = True
        self.hooks = [
            optimizer.register_step_pre_hook(self._mask_gradients),
            optimizer.register_step_post_hook(self._mask_weights),
        ]

    @torch.no_grad()
    def _mask_gradients(self, *_: object) -> None:
        for weight, absent in self.absent.items():
            if weight.grad is not None:
                weight.grad.masked_fill_(absent, 0.0)

    @torch.no_grad()
    def _mask_weights(self, *_: object) -> None:
        for weight, absent in self.absent.items():
            weight.masked_fill_(absent, 0.0)

    def remove(self) -> None:
        """Let go: from now on the weights may fill again."""
        for hook in self.hooks:
            hook.remove()
        for weight in self.absent:
            managed.pop(weight, None)


@torch.no_grad()
def apply_masks(
    model: nn.Module, masks: Mapping[str, Tensor], *optimizers: Optimizer
) -> list[Held]:
    """Set absent synapses of `model` to exactly 0; with `optimizers`, keep them there.

    Returns one handle an optimizer; ``handle.remove()`` ends the holding.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, mask in masks.items():
        if name not in parameters:
            raise SpikewireError(f"{name}: a mask for a parameter this model does not have")
        if parameters[name].shape != mask.shape:
            shapes = f"{tuple(mask.shape)}, the parameter {tuple(parameters[name].shape)}"
            raise SpikewireError(f"{name}: the mask has shape {shapes}")
    placed = {parameters[name]: mask.to(parameters[name].device) for name, mask in masks.items()}
    for weight, mask in placed.items():
        weight.masked_fill_(~mask, 0.0)
    return [Held(optimizer, placed) for optimizer in optimizers]
