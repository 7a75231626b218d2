"""Restricted Boltzmann machine with blank-out synapses, learned by contrastive divergence.

Synaptic sampling machine: Neftci, Pedroni, Joshi, Al-Shedivat, Cauwenberghs, Front. Neurosci. 2016,
doi:10.3389/fnins.2016.00241; here its discrete form, in which all noise is in the synapses.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from spikewire.fields import setting, validate
from spikewire.plasticity.network import Plastic

TINY = 1e-6  # for a unit without inputs and bias
LOGIT = 1.702  # the normal distribution function of x is about the sigmoid of 1.702 x


@dataclass(frozen=True, kw_only=True)
class RBMConstants:
    """Constants of `RBM`."""

    keep: float = setting(0.5, "probability that a synapse transmits a spike", within="(0, 1)")
    label_units: int = setting(4, "visible units per class", within="[1, 1000]")
    momentum: float = setting(0.5, "momentum of the update", within="[0, 1)")
    start: float = setting(0.1, "standard deviation of the first weights", within="(0, inf)")

    def __post_init__(self) -> None:
        validate(self)


class RBM(Plastic):
    """Visible units (pixels and labels) and hidden units, symmetric synapses that blank out.

    A unit is 1 if ``sum_j xi_j w_j s_j >= 0``, where ``xi_j`` is 1 with probability `keep`, drawn
    for every synapse and sample; the bias is the weight of an input ``s_0 = 1``, and blanks out
    too. With many inputs the sum is normal, so the probability is

        P = Phi(z),   z = keep sum_j w_j s_j / sqrt(keep (1 - keep) sum_j (w_j s_j)^2)

    and a layer is sampled by two matrix products instead of one mask per sample. Contrastive
    divergence: from data v0 sample h0, from it v1, from it h1; ``dw = <h0 v0> - <h1 v1>``.

    The class is the one whose label units give the lowest free energy
    ``-b v - sum_i log(1 + exp(1.702 z_i))``; the factor turns z into the logit of P, and the
    deviation in z is that of the image alone, the same for all classes (both ours).

    Args:
        constants: see `RBMConstants`.
        input_shape: shape of an image.
        classes: number of classes.
        hidden: number of hidden units.
        time_steps: not used: a unit is sampled once.

    Example:
        >>> network = build("rbm", input_shape=(1, 28, 28), classes=10, hidden=500)
        >>> optimizer = network.optimizer(lr=0.1)
        >>> network.learn(images, labels); optimizer.step()
    """

    Constants = RBMConstants
    default_hidden = 500

    def __init__(
        self,
        constants: RBMConstants,
        *,
        input_shape: tuple[int, ...],
        classes: int,
        hidden: int,
        time_steps: int,
    ) -> None:
        super().__init__(
            constants,
            input_shape=input_shape,
            classes=classes,
            hidden=hidden,
            time_steps=time_steps,
        )
        self.pixels = prod(input_shape)
        visible = self.pixels + classes * constants.label_units
        self.fc1 = nn.Linear(visible, hidden)
        self.visible_bias = nn.Parameter(torch.zeros(visible))
        nn.init.normal_(self.fc1.weight, std=constants.start)
        nn.init.zeros_(self.fc1.bias)

    def optimizer(self, lr: float) -> SGD:
        """Return gradient descent with momentum: the rule's update needs no bounds."""
        return SGD(self.parameters(), lr, momentum=self.constants.momentum)

    @torch.no_grad()
    def learn(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take one step of contrastive divergence (CD-1), averaged over the batch."""
        scores = self(images)
        weight, bias = self.fc1.weight, self.fc1.bias
        v0 = self.visible(images, labels)
        h0 = torch.bernoulli(self.probability(v0, weight, bias))
        v1 = torch.bernoulli(self.probability(h0, weight.T, self.visible_bias))
        h1 = self.probability(v1, weight, bias)
        weight.grad = (h1.T @ v1 - h0.T @ v0) / len(images)
        bias.grad = (h1 - h0).mean(0)
        self.visible_bias.grad = (v1 - v0).mean(0)
        return scores

    def visible(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the visible units of data: pixels drawn by their value, and the label's units."""
        pixels = torch.bernoulli(images.flatten(1).clamp(0, 1))
        return torch.cat([pixels, self.label_units(labels, pixels.dtype)], 1)

    def label_units(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the label units of class numbers, ``[batch, classes * label_units]``."""
        units = functional.one_hot(labels, self.classes).to(dtype)
        return units.repeat_interleave(self.constants.label_units, 1)

    def probability(self, units: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the probability of each unit that `units` act on to be 1."""
        mean = self.constants.keep * (units @ weight.T + bias)
        return torch.special.ndtr(mean / self.deviation(units, weight, bias))

    def deviation(self, units: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the standard deviation of the sum of each unit that `units` act on."""
        keep = self.constants.keep
        square = units.square() @ weight.T.square() + bias.square()
        return (keep * (1 - keep) * square.clamp(min=TINY)).sqrt()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return the probability of each class by its free energy, ``[1, batch, classes]``."""
        pixels, weight = images.flatten(1).clamp(0, 1), self.fc1.weight
        units = self.label_units(torch.arange(self.classes, device=images.device), pixels.dtype)
        blank = functional.pad(pixels, (0, units.shape[1]))
        total = self.fc1(blank).unsqueeze(1) + units @ weight[:, self.pixels :].T
        deviation = self.deviation(blank, weight, self.fc1.bias).unsqueeze(1)
        z = self.constants.keep * total / deviation
        label_bias = self.visible_bias[self.pixels :] @ units.T
        return (functional.softplus(LOGIT * z).sum(2) + label_bias).softmax(1).unsqueeze(0)
