"""`Boltzmann`: what restricted Boltzmann machines with label units share."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from spikewire.fields import setting, validate
from spikewire.plasticity.network import Plastic, Sizes


@dataclass(frozen=True, kw_only=True)
class BoltzmannConstants:
    """Constants of every `Boltzmann`."""

    label_units: int = setting(4, "visible units per class", within="[1, 1000]")
    momentum: float = setting(0.5, "momentum of the update", within="[0, 1)")
    decay: float = setting(2e-4, "weight decay of the synapses", within="[0, inf)")
    start: float = setting(0.04, "standard deviation of the first weights", within="(0, inf)")
    rest: float = setting(-1.0, "first bias of the visible units", within="(-inf, inf)")

    def __post_init__(self) -> None:
        validate(self)


class Boltzmann(Plastic):
    """Visible units, which are pixels and labels, hidden units, and symmetric synapses.

    The class of an image is the one whose label units, beside the image, have the lowest free
    energy F: its probability is ``exp(-F) / sum exp(-F)``. A subclass writes `free_energy` and
    `learn`.

    Args:
        constants: a `BoltzmannConstants`.
        sizes: see `Sizes`.
    """

    default_hidden = 500

    def __init__(self, constants: BoltzmannConstants, sizes: Sizes) -> None:
        super().__init__(constants, sizes)
        self.pixels = prod(sizes.input_shape)
        visible = self.pixels + sizes.classes * constants.label_units
        self.fc1 = nn.Linear(visible, sizes.hidden)
        self.visible_bias = nn.Parameter(torch.full((visible,), constants.rest))
        nn.init.normal_(self.fc1.weight, std=constants.start)
        nn.init.zeros_(self.fc1.bias)

    def optimizer(self, lr: float) -> SGD:
        """Return gradient descent with momentum; the weights of synapses decay, biases do not."""
        c, biases = self.constants, [self.fc1.bias, self.visible_bias]
        groups = [{"params": [self.fc1.weight], "weight_decay": c.decay}, {"params": biases}]
        return SGD(groups, lr, momentum=c.momentum)

    def label_units(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the label units of class numbers, ``[batch, classes * label_units]``."""
        units = functional.one_hot(labels, self.classes).to(dtype)
        return units.repeat_interleave(self.constants.label_units, 1)

    def units_of_classes(self, images: Tensor) -> Tensor:
        """Return the label units of every class, on the images' device."""
        return self.label_units(torch.arange(self.classes, device=images.device), images.dtype)

    def free_energy(self, images: Tensor) -> Tensor:
        """Return F of each image with each class ``[batch, classes]``, without ``-b.v`` of pixels.

        Args:
            images: pixels in [0, 1], ``[batch, ...]``; others are clipped.
        """
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Return softmax of minus the free energy of each class, ``[1, batch, classes]``."""
        return self.free_energy(images).neg_().softmax(1).unsqueeze(0)
