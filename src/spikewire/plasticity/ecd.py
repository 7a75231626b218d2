"""Event-driven contrastive divergence: a restricted Boltzmann machine of noisy spiking neurons.

Neftci, Das, Pedroni, Kreutz-Delgado, Cauwenberghs, Front. Neurosci. 2014,
doi:10.3389/fnins.2013.00272.
"""

from dataclasses import dataclass
from math import exp, sqrt

import torch
from torch import Tensor
from torch.nn import functional

from spikewire.errors import check
from spikewire.fields import setting
from spikewire.kernels import same_layout
from spikewire.plasticity.boltzmann import Boltzmann, BoltzmannConstants

DATA, MODEL = (0.1, 0.49), (0.6, 0.99)  # parts of a presentation in which weights change, + and -
CLAMPED = 0.5  # part of a presentation in which the data drive the visible neurons
FEWEST = 3  # time steps, with one in each of these parts
CERTAINTY = 1e-3  # distance that a pixel keeps from 0 and 1, so that its log odds are finite


@dataclass(frozen=True, kw_only=True)
class ECDConstants(BoltzmannConstants):
    """Constants of `ECD`; potentials in log odds, which are 0.49 nA / 1 nS = 0.49 V of theirs."""

    dt: float = setting(0.5, "length of a time step, ms", within="(0, 4]")
    tau: float = setting(1.0, "membrane time constant, ms", within="(0, inf)")
    tau_synapse: float = setting(
        4.0, "time constant of synapses and of STDP, ms", within="(0, inf)"
    )
    refractory: float = setting(4.0, "shortest time between two spikes, ms", within="(0, inf)")
    threshold: float = setting(0.204, "firing threshold", within="(0, inf)")
    noise: float = setting(1.94, "standard deviation of a free potential", within="(0, inf)")
    offset: float = setting(
        1.8, "taken from every input, so that 0 means half of the highest rate", within="[0, inf)"
    )


class ECD(Boltzmann):
    """A Boltzmann machine sampled by leaky neurons with noise, and learned by STDP with a gate.

    A neuron is a unit of the machine: 1 during its refractory period, else 0. Each time step::

        k[t] = exp(-dt / tau_synapse) k[t-1] + S[t]                  trace of its spikes S
        x_h = c + W k_v,   x_v = b + W' k_h, or the log odds of the data while these are shown
        u[t] = a u[t-1] + (1 - a) (x - offset) + noise sqrt(1 - a^2) N(0, 1),  a = exp(-dt / tau)
        S[t] = 1 if u[t] >= threshold; then u = 0 for the refractory period

    Symmetric STDP with a global gate g: ``dW = g (S_h k_v + k_h S_v)``, traces before the spikes;
    g is +1 in 10 to 49 % of a presentation, whose first half shows the data, -1 in 60 to 99 %,
    while the network runs freely, and else 0. The sum is divided by what two neurons that always
    spike would have, so that it compares with the product of two probabilities.

    Neurons, synapses, gate and lengths are those of the paper, but for the step of 50 us; the
    normalisation, the biases (``db = g S``), clamping without the network's own input, and
    weights that are constant within a batch are ours. Classification is by the free energy of
    logistic units, ``F(v) = -b.v - sum_i log(1 + exp(c_i + sum_j w_ij v_j))``.

    Args:
        constants: see `ECDConstants`.
        sizes: see `Sizes`; `time_steps` of `dt` are one presentation, 280 are 140 ms.

    Example:
        >>> network = build("ecd", input_shape=(1, 28, 28), classes=10, time_steps=280)
        >>> optimizer = network.optimizer(lr=0.05)
        >>> network.learn(images, labels); optimizer.step()
    """

    Constants = ECDConstants

    @torch.no_grad()
    def learn(self, images: Tensor, labels: Tensor) -> Tensor:
        """Show the images, let the network run freely, leave the gated sum of STDP."""
        scores = self(images)
        seen = torch.cat([images.flatten(1).clamp(0, 1), self.label_units(labels, images.dtype)], 1)
        change = [torch.zeros_like(x) for x in (self.fc1.weight, self.fc1.bias, self.visible_bias)]
        for gate, spikes in zip((1, -1), self.present(seen.logit(CERTAINTY)), strict=True):
            for total, part in zip(change, self.correlations(*spikes), strict=True):
                total.sub_(part, alpha=gate / len(images))
        self.fc1.weight.grad, self.fc1.bias.grad, self.visible_bias.grad = change
        return scores

    def present(self, drive: Tensor) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Return spikes and earlier traces, hidden then visible, of both phases of learning.

        Args:
            drive: log odds of the data ``[batch, visible]``.
        """
        weight, steps = self.fc1.weight, self.time_steps
        check(steps >= FEWEST, "time_steps", steps, f"at least {FEWEST} for 'ecd'")
        hidden = Layer(drive.new_zeros(len(drive), self.hidden), self.constants)
        visible = Layer(torch.zeros_like(drive), self.constants)
        phases: list[list[tuple[Tensor, ...]]] = [[], []]
        for t in range(steps):
            k_h, k_v = hidden.trace, visible.trace
            x_h = torch.addmm(self.fc1.bias, k_v, weight.T)
            x_v = drive if t < CLAMPED * steps else torch.addmm(self.visible_bias, k_h, weight)
            row = (hidden.step(x_h), k_h, visible.step(x_v), k_v)
            for phase, (begin, end) in zip(phases, (DATA, MODEL), strict=True):
                if begin * steps <= t < end * steps:
                    phase.append(row)
        return [tuple(map(torch.stack, zip(*phase, strict=True))) for phase in phases]  # pyright: ignore[reportReturnType]

    def correlations(
        self, s_h: Tensor, k_h: Tensor, s_v: Tensor, k_v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums over time and batch of STDP and of spikes, 1 per image at most."""
        most = len(s_h) * self.constants.dt / self.constants.refractory  # spikes in this time
        pairs = s_h.flatten(0, 1).T @ k_v.flatten(0, 1)
        pairs.addmm_(k_h.flatten(0, 1).T, s_v.flatten(0, 1))
        return pairs / (2 * most), s_h.sum((0, 1)) / most, s_v.sum((0, 1)) / most

    @torch.no_grad()
    def free_energy(self, images: Tensor) -> Tensor:
        """Return F of each image with each class, without ``-b.v`` of pixels."""
        pixels, labels = self.fc1.weight.tensor_split([self.pixels], 1)
        units = self.units_of_classes(images)
        seen = torch.addmm(self.fc1.bias, images.flatten(1).clamp(0, 1), pixels.T)
        hidden = functional.softplus(seen.unsqueeze(1) + units @ labels.T).sum(2)
        return -hidden - units @ self.visible_bias[self.pixels :]


class Layer:
    """Potentials, traces and refractory periods of neurons ``[batch, neurons]``, step by step."""

    def __init__(self, at_rest: Tensor, constants: ECDConstants) -> None:
        self.u, self.trace = at_rest.clone(), at_rest.clone()
        self.blind = at_rest.clone()  # steps until the end of the refractory period
        c, self.c = constants, constants
        self.leak, self.fading = exp(-c.dt / c.tau), exp(-c.dt / c.tau_synapse)
        self.pause = max(0, round(c.refractory / c.dt) - 1)

    def step(self, x: Tensor) -> Tensor:
        """Advance by one time step with the input x; return the spikes."""
        c, a = self.c, self.leak
        fresh = torch.randn_like(self.u).mul_(c.noise * sqrt(1 - a * a))
        if same_layout(x, self.u):
            from spikewire.kernels.noisy import step_  # Triton is optional

            constants = {"leak": a, "offset": c.offset, "threshold": c.threshold}
            constants |= {"pause": float(self.pause), "fading": self.fading}
            spikes, self.trace = step_(x, fresh, self.u, self.blind, self.trace, **constants)
            return spikes
        self.u.mul_(a).add_(x - c.offset, alpha=1 - a).add_(fresh).mul_(self.blind <= 0)
        spikes = (self.u >= c.threshold).to(x.dtype)
        self.u.mul_(1 - spikes)
        self.blind.sub_(1).add_(spikes * (self.pause - self.blind))
        self.trace = torch.add(spikes, self.trace, alpha=self.fading)
        return spikes
