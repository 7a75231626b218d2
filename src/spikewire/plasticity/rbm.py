"""Restricted Boltzmann machine with blank-out synapses, learned by contrastive divergence.

Synaptic sampling machine: Neftci, Pedroni, Joshi, Al-Shedivat, Cauwenberghs, Front. Neurosci. 2016,
doi:10.3389/fnins.2016.00241; here its discrete form, in which all noise is in the synapses.
"""

from dataclasses import dataclass
from math import pi, sqrt

import torch
from torch import Tensor

from spikewire.fields import setting
from spikewire.plasticity.boltzmann import Boltzmann, BoltzmannConstants

TINY = 1e-6  # variance of a unit without inputs


@dataclass(frozen=True, kw_only=True)
class RBMConstants(BoltzmannConstants):
    """Constants of `RBM`."""

    keep: float = setting(0.5, "probability that a synapse transmits a spike", within="(0, 1)")


class RBM(Boltzmann):
    """Visible units (pixels and labels) and hidden units, symmetric synapses that blank out.

    A unit is 1 if ``b + sum_j xi_j w_j s_j / keep >= 0``, where ``xi_j`` is 1 with probability
    `keep`, drawn for every synapse and sample; the bias b has no synapse and does not blank out.
    With many inputs the sum is normal, so the probability is

        P = Phi(z),   z = (b + sum_j w_j s_j) / sqrt((1 - keep) / keep sum_j (w_j s_j)^2)

    and a layer is sampled by two matrix products instead of one mask per sample.

    Contrastive divergence (CD-1): from data v0 sample h0, from it v1, and update by
    ``dw = <P(h | v0) v0> - <P(h | v1) v1>``.

    Classification by free energy: a hidden unit with the input ``x_i = c_i + sum_j xi_j w_ij v_j /
    keep`` is 1 where that lowers the energy, so the lowest energy of all h is ``-b.v - sum_i max(0,
    x_i)``. Its mean over the blank-out synapses, t being the mean and s the deviation of x, is

        F(v) = -b.v - sum_i (t_i Phi(t_i / s_i) + s_i phi(t_i / s_i))

    and the class is the one whose label units, beside the image, have the lowest F. (With a
    logistic unit in place of a noisy threshold the sum would be that of ``log(1 + exp(t_i))``.)

    Args:
        constants: see `RBMConstants`.
        sizes: see `Sizes`; `time_steps` is not used, since a unit is sampled once.

    Example:
        >>> network = build("rbm", input_shape=(1, 28, 28), classes=10, hidden=500)
        >>> optimizer = network.optimizer(lr=0.04)
        >>> network.learn(images, labels); optimizer.step()
    """

    Constants = RBMConstants

    @torch.no_grad()
    def learn(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take one step of contrastive divergence (CD-1), averaged over the batch.

        The classes that are returned are those of the drawn pixels, whose sums serve twice.
        """
        weight, bias = self.fc1.weight, self.fc1.bias
        squared, n = weight.square(), self.pixels
        v0 = self.visible(images, labels)
        seen = sums(v0[:, :n], weight[:, :n], squared[:, :n])
        named = sums(v0[:, n:], weight[:, n:], squared[:, n:])
        h0 = self.fires(seen[0] + named[0], seen[1] + named[1], bias)
        v1 = self.fires(*sums(torch.bernoulli(h0), weight.T, squared.T), self.visible_bias)
        v1 = torch.bernoulli(v1)
        h1 = self.fires(*sums(v1, weight, squared), bias)
        each = 1 / len(images)
        weight.grad = torch.addmm(h1.T @ v1, h0.T, v0, beta=each, alpha=-each)
        bias.grad = (h1 - h0).mean(0)
        self.visible_bias.grad = (v1 - v0).mean(0)
        return self.energies(seen, squared).neg_().softmax(1).unsqueeze(0)

    def visible(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the visible units of data: pixels drawn by their value, and the label's units."""
        pixels = torch.bernoulli(images.flatten(1).clamp(0, 1))
        return torch.cat([pixels, self.label_units(labels, pixels.dtype)], 1)

    def probability(self, units: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the probability of each unit that `units` act on to be 1."""
        return self.fires(*sums(units, weight, weight.square()), bias)

    def fires(self, total: Tensor, squares: Tensor, bias: Tensor) -> Tensor:
        """Return the probability of units to be 1, from the sums they receive."""
        return torch.special.ndtr((total + bias) / self.deviation(squares))

    def deviation(self, squares: Tensor) -> Tensor:
        """Return the standard deviation of a blanked-out sum, from its sum of squares."""
        return (squares * (1 / self.constants.keep - 1)).clamp(min=TINY).sqrt()

    @torch.no_grad()
    def free_energy(self, images: Tensor) -> Tensor:
        """Return F of each image with each class, without ``-b.v`` of pixels."""
        weight, squared = self.fc1.weight, self.fc1.weight.square()
        pixels = images.flatten(1).clamp(0, 1)
        seen = sums(pixels, weight[:, : self.pixels], squared[:, : self.pixels])
        return self.energies(seen, squared)

    def energies(self, seen: tuple[Tensor, Tensor], squared: Tensor) -> Tensor:
        """Return F with each class, from the sums that hidden units receive from the pixels."""
        n, units = self.pixels, self.units_of_classes(seen[0])
        named = sums(units, self.fc1.weight[:, n:], squared[:, n:])
        total, squares = (a.unsqueeze(1) + b for a, b in zip(seen, named, strict=True))
        hidden = mean_positive_part(total + self.fc1.bias, self.deviation(squares)).sum(2)
        return -hidden - units @ self.visible_bias[n:]


def mean_positive_part(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return ``E max(0, x)`` of a normal x: ``mean Phi(z) + deviation phi(z)``."""
    z = mean / deviation
    # beyond 9 deviations the density does not matter, and numbers near 0 are slow on a CPU
    density = z.square().clamp_(max=81).mul_(-0.5).exp_().mul_(1 / sqrt(2 * pi))
    return mean * torch.special.ndtr(z) + deviation * density


def sums(units: Tensor, weight: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of inputs ``w s`` that units receive, and the sums of their squares."""
    return units @ weight.T, units.square() @ squared.T
