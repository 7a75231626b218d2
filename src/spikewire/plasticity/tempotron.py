"""Tempotron with a gate per synapse that STDP learns: Qi, Shen, Wang, Tang, Yu, Pan, IJCAI 2018.

https://doi.org/10.24963/ijcai.2018/221. Tempotron: Gütig & Sompolinsky, Nature Neuroscience 2006,
doi:10.1038/nn1643. The equation of the gates is not known to us; it is ours.
"""

from dataclasses import dataclass
from math import exp, log, prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from spikewire.errors import check
from spikewire.fields import setting, validate
from spikewire.plasticity.local_rule import LocalRule
from spikewire.plasticity.network import Plastic, Sizes
from spikewire.plasticity.spikes import latency, trace


@dataclass(frozen=True, kw_only=True)
class TempotronConstants:
    """Constants of `Tempotron`; times in ms."""

    dt: float = setting(2.5, "length of a time step, ms", within="(0, 100]")
    tau: float = setting(
        15.0, "time constant of the membrane, 4 times the synapse's", within="(0, inf)"
    )
    threshold: float = setting(1.0, "potential at which a neuron spikes", within="(0, inf)")
    window: float = setting(0.4, "fraction of the time in which inputs spike", within="(0, 1]")
    dark: float = setting(0.1, "pixels up to this value do not spike", within="[0, 1)")
    start: float = setting(0.01, "mean and deviation of the first weights", within="(0, inf)")
    period: int = setting(
        2,
        "batches from one that moves the gates to the next; 0: gates do not move",
        within="[0, inf)",
    )
    gate_rate: float = setting(0.3, "size of a gate's move per spike", within="[0, inf)")
    tau_gate: float = setting(20.0, "time constant of the gates' STDP", within="(0, inf)")
    offset: float = setting(2e-4, "trace of an input below which a gate falls", within="[0, 1]")

    def __post_init__(self) -> None:
        validate(self)

    def decay(self, tau: float) -> float:
        """Return the factor per time step of a time constant."""
        return exp(-self.dt / tau)

    @property
    def kernel_scale(self) -> float:
        """V0, which makes the peak of the kernel 1."""
        fast = self.tau / 4
        peak = self.tau * fast * log(self.tau / fast) / (self.tau - fast)
        return 1 / (exp(-peak / self.tau) - exp(-peak / fast))

    def filtered(self, current: Tensor) -> Tensor:
        """Return ``sum_s K(t - s) current[s]``, ``[time, ...]``: the kernel is two exponentials."""
        slow, fast = torch.zeros_like(current[0]), torch.zeros_like(current[0])
        found = torch.empty_like(current)
        for now, out in zip(current, found, strict=True):
            slow.mul_(self.decay(self.tau)).add_(now)
            fast.mul_(self.decay(self.tau / 4)).add_(now)
            torch.sub(slow, fast, out=out)
        return found.mul_(self.kernel_scale)


class Tempotron(Plastic):
    """Inputs that spike once, early where a pixel is bright, and neurons that spike for a class.

        V(t) = sum_i w_i K(t - t_i),    K(t) = V0 (exp(-t / tau) - exp(-4 t / tau)) for t >= 0

    A neuron spikes for an image if V reaches the threshold. Where it should and does not, or does
    and should not, its weights change (the Tempotron rule)::

        dw_i = +- K(t_max - t_i),    t_max = argmax V

    Every `period`-th batch moves the gates instead. At the first time t at which a neuron spikes::

        dg_i = gate_rate (exp(-(t - t_i) / tau_gate) - offset) if t_i <= t, else -gate_rate offset

    g stays in [0, 1] and begins at 1. What a gate does is decided by the method: with `gated` a
    synapse whose gate is below 1/2 is absent; with any other gates have no effect.

    Neuron j is of class ``j mod classes``. The score of a class is the mean of the largest V of its
    neurons.

    Args:
        constants: see `TempotronConstants`.
        sizes: see `Sizes`; `hidden` is the number of neurons, at least one per class.

    Raises:
        SpikewireError: there are fewer neurons than classes.

    Example:
        >>> network = build("tempotron", input_shape=(1, 28, 28), classes=10, time_steps=20)
        >>> optimizer = network.optimizer(lr=1e-3)
        >>> network.learn(images, labels); optimizer.step()
    """

    Constants = TempotronConstants
    default_hidden = 10
    batches: Tensor

    def __init__(self, constants: TempotronConstants, sizes: Sizes) -> None:
        check(sizes.hidden >= sizes.classes, "hidden", sizes.hidden, f"at least {sizes.classes}")
        super().__init__(constants, sizes)
        self.fc1 = nn.Linear(prod(sizes.input_shape), sizes.hidden, bias=False)
        nn.init.normal_(self.fc1.weight, constants.start, constants.start)
        self.fc1.register_buffer("gate", torch.ones_like(self.fc1.weight))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def optimizer(self, lr: float) -> LocalRule:
        """Return the optimizer of the weights, which have no bounds."""
        return LocalRule([self.fc1.weight], lr)

    @torch.no_grad()
    def learn(self, images: Tensor, labels: Tensor) -> Tensor:
        """Show the images; leave the update of the weights, or move the gates."""
        spikes, potential = self.show(images)
        self.fc1.weight.grad = torch.zeros_like(self.fc1.weight)
        self.batches += 1
        period = self.constants.period
        if period and self.batches % period == 0:
            self.move_gates_(spikes, potential)
        else:
            self.fc1.weight.grad.sub_(self.update(spikes, potential, labels))
        return self.scores(potential)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return the score of each class ``[1, batch, classes]``."""
        return self.scores(self.show(images)[1])

    def show(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the spikes of the inputs and V of the neurons, ``[time, batch, ...]``."""
        c = self.constants
        spikes = latency(images, self.time_steps, c.window, c.dark)
        return spikes, c.filtered(self.fc1(spikes))

    def update(self, spikes: Tensor, potential: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the Tempotron rule over the errors of a batch."""
        inputs = self.constants.filtered(spikes)
        highest, when = potential.max(0)
        spiked = highest >= self.constants.threshold
        wanted = self.class_of_neurons() == labels.unsqueeze(1)
        errors = wanted.to(inputs.dtype) - spiked.to(inputs.dtype)
        at = torch.zeros_like(potential).scatter_(0, when.unsqueeze(0), errors.unsqueeze(0))
        return at.flatten(0, 1).T @ inputs.flatten(0, 1)

    def move_gates_(self, spikes: Tensor, potential: Tensor) -> None:
        """Move the gates of the neurons that spike, each by its first spike."""
        c = self.constants
        above = (potential >= c.threshold).to(spikes.dtype)
        first = above * (above.cumsum(0) == 1)
        caused = first.flatten(0, 1).T @ trace(spikes, c.decay(c.tau_gate)).flatten(0, 1)
        caused -= c.offset * first.sum((0, 1)).unsqueeze(1)
        gate = self.fc1.get_buffer("gate")
        gate.add_(caused, alpha=c.gate_rate).clamp_(0, 1)

    def class_of_neurons(self) -> Tensor:
        """Return the class of each neuron."""
        return torch.arange(self.hidden, device=self.fc1.weight.device) % self.classes

    def scores(self, potential: Tensor) -> Tensor:
        """Return the softmax of the mean of the largest potentials, ``[1, batch, classes]``."""
        own = functional.one_hot(self.class_of_neurons(), self.classes).to(potential.dtype)
        return (potential.amax(0) @ (own / own.sum(0))).softmax(1).unsqueeze(0)
