"""Weight averaging: an exponential mean of what the network sees, under the final masks."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from spikewire.pruning import apply_masks


class WeightAverage:
    """An exponential mean of every parameter: ``a <- decay a + (1 - decay) w``.

    Args:
        model: the model in training.
        decay: fraction of the mean that is kept per step.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = model
        self.mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.update()  # the first update is a copy

    def update(self) -> None:
        """Take one step of the mean."""
        self.mean.update_parameters(self.model)

    @torch.no_grad()
    def install_(self, masks: Mapping[str, Tensor]) -> None:
        """Give the model the mean weights, absent synapses exactly 0."""
        values = self.state_dict()
        for name, parameter in self.model.named_parameters():
            parameter.copy_(values[name])
        apply_masks(self.model, masks)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the mean by name of parameter."""
        return {name: p.detach() for name, p in self.mean.module.named_parameters()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a saved mean."""
        for name, value in self.state_dict().items():
            value.copy_(state[name])
