"""Weight averaging over the run's end, and BatchNorm statistics to go with the averaged weights."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spikewire.pruning.masks import apply_masks


class Average:
    """An exponential mean of every parameter: ``a <- decay a + (1 - decay) w``.

    It averages what the network sees. `install` puts it into the model under the final masks, so
    the wiring is exactly the method's own.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """Take one step of the mean."""
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]
            list(self.values.values()),
            [p.detach() for p in self.model.parameters()],
            1 - self.decay,
        )

    @torch.no_grad()
    def install(self, masks: Mapping[str, Tensor]) -> None:
        """Give the model the mean weights, absent synapses exactly 0."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(self.values[name])
        apply_masks(self.model, masks)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the mean so far."""
        return dict(self.values)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved mean."""
        for name, value in self.values.items():
            value.copy_(state[name])


@torch.no_grad()
def reestimate_(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace BatchNorm's running statistics by the plain mean over `batches` of images."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean
    was_training = model.training
    model.train()
    for images in batches:
        model(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(was_training)
