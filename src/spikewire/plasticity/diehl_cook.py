"""The network of Diehl & Cook, Front. Comput. Neurosci. 2015, doi:10.3389/fncom.2015.00099."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from spikewire.fields import setting
from spikewire.kernels import same_layout
from spikewire.plasticity.labels import Labelled, Voting
from spikewire.plasticity.local_rule import LocalRule, row_scale
from spikewire.plasticity.network import Sizes
from spikewire.plasticity.spikes import poisson
from spikewire.plasticity.stdp import RULES, Timing, power_events, power_room


@dataclass(frozen=True, kw_only=True)
class DiehlCookConstants(Timing, Voting):
    """Constants of `DiehlCook`; potentials in mV above rest, times in ms."""

    rate: float = setting(128.0, "firing rate of a white pixel, Hz", within="(0, inf)")
    drive: float = setting(
        78.4, "sum of the weights of a neuron, before every image", within="(0, inf)"
    )
    tau: float = setting(100.0, "membrane time constant, ms", within="(0, inf)")
    base: float = setting(13.0, "threshold of a neuron that never spiked", within="(0, inf)")
    reset: float = setting(5.0, "potential after a spike", within="(-inf, inf)")
    refractory: float = setting(5.0, "time without input after a spike, ms", within="[0, inf)")
    adaptation: float = setting(
        30.0, "rise of the threshold per spike, times the learning rate", within="[0, inf)"
    )
    ceiling: float = setting(80.0, "highest mean of the rises of all thresholds", within="(0, inf)")
    inhibition: float = setting(
        120.0, "fall of the potential of all others at a spike", within="[0, inf)"
    )


class Excitatory(nn.Module):
    """Leaky neurons with adaptive thresholds that inhibit each other, over time.

        m[t] = exp(-dt/tau) u[t-1] + I[t]       (I = 0 while refractory)
        the neuron of the largest m - base - theta spikes, if that is 0 or more
        u[t] = reset for it, m[t] - inhibition for all others, m[t] where none spikes

    The inhibitory neurons of the paper, one per excitatory neuron, are folded into the direct
    inhibition, and one neuron spikes per step: the first of them silences the others.

    Args:
        neurons: number of neurons.
        constants: those of the network.
    """

    def __init__(self, neurons: int, constants: DiehlCookConstants) -> None:
        super().__init__()
        self.constants = constants
        self.theta = nn.Parameter(torch.zeros(neurons))

    @torch.no_grad()
    def forward(self, current: Tensor) -> Tensor:
        """Return spikes ``[time, batch, neurons]``; every call starts at rest.

        Args:
            current: input of the same shape; it may be changed.
        """
        c = self.constants
        limit, decay = c.base + self.theta, c.decay(c.tau)
        blind = round(c.refractory / c.dt)
        if same_layout(current):
            from spikewire.kernels.competition import compete  # Triton is optional

            constants = {"decay": decay, "reset": c.reset, "inhibition": c.inhibition}
            return compete(current, limit, blind=blind, **constants)
        spikes = torch.zeros_like(current)
        u = torch.zeros_like(current[0])
        for t, (now, out) in enumerate(zip(current, spikes, strict=True)):
            u.mul_(decay).add_(now)
            best, winner = (u - limit).max(1, keepdim=True)
            fired = (best >= 0).to(u.dtype)
            out.scatter_(1, winner, fired)
            stays = u.gather(1, winner) * (1 - fired)
            u.sub_(fired * c.inhibition).scatter_(1, winner, stays + fired * c.reset)
            later = current[t + 1 : t + 1 + blind]
            index = winner.expand(len(later), *winner.shape)
            later.scatter_(2, index, later.gather(2, index) * (1 - fired))
        return spikes

    def adapt_(self, spikes: Tensor) -> None:
        """Leave minus the rise of each threshold as its gradient: `adaptation` per spike."""
        self.theta.grad = spikes.sum((0, 1)).mul_(-self.constants.adaptation)

    @torch.no_grad()
    def limit_(self) -> None:
        """Lower all thresholds by the same amount where their mean is above `ceiling`.

        Without a limit long training ends in silence; the paper lets thresholds decay slowly.
        """
        excess = (self.theta.mean() - self.constants.ceiling).clamp(min=0)
        self.theta.sub_(excess).clamp_(min=0)


class DiehlCook(Labelled):
    """Inputs, all-to-all plastic synapses, excitatory neurons with lateral inhibition, labels.

    Pixels become Poisson spike trains. The weights of each neuron are scaled to the sum `drive`
    before every image: by the rule's optimizer in what is trained, and again in what the network
    uses, so that a neuron with few synapses gets as much input as one with many. In evaluation the
    spike trains come from a fixed seed and nothing adapts.

    Args:
        constants: see `DiehlCookConstants`.
        sizes: see `Sizes`; a time step is `dt`.

    Example:
        >>> network = build("diehl-cook", input_shape=(1, 28, 28), classes=10, hidden=400)
        >>> optimizer = network.optimizer(lr=0.03)
        >>> network.learn(images, labels); optimizer.step()
    """

    Constants = DiehlCookConstants
    default_hidden = 400

    def __init__(self, constants: DiehlCookConstants, sizes: Sizes) -> None:
        super().__init__(constants, sizes)
        self.fc1 = nn.Linear(prod(sizes.input_shape), sizes.hidden, bias=False)
        with torch.no_grad():
            self.fc1.weight.uniform_(0, 1)
            self.fc1.weight.mul_(self.stored / self.fc1.weight.sum(1, keepdim=True))
        self.excitatory = Excitatory(sizes.hidden, constants)

    @property
    def stored(self) -> float:
        """Sum of the weights of a neuron at the start; "power" needs weights far below 1."""
        c = self.constants
        return c.drive if c.rule != "power" else min(c.drive, self.fc1.in_features / 4)

    def optimizer(self, lr: float) -> LocalRule:
        """Return the optimizer of synapses and thresholds; "power" has bounds, no sums."""
        power = self.constants.rule == "power"
        bounds = {"high": 1.0} if power else {"total": self.stored}
        groups = [{"params": [self.fc1.weight], **bounds}, {"params": [self.excitatory.theta]}]
        return LocalRule(groups, lr, low=0.0, difference=self.difference if power else None)

    def learn(self, images: Tensor, labels: Tensor) -> Tensor:
        """Show the images; leave the update of the rule, thresholds and labels."""
        self.excitatory.limit_()
        return super().learn(images, labels)

    @torch.no_grad()
    def update_(self, pre: Tensor, post: Tensor) -> None:
        """Leave the update of synapses and thresholds."""
        weight, c = self.fc1.weight, self.constants
        if c.rule == "power":
            self.used = power_events(pre, post, c), power_room(weight, c)
            weight.grad = -(self.used[0] * self.used[1])
        else:
            weight.grad = RULES[c.rule](pre, post, weight, c).neg_()
        self.excitatory.adapt_(post)

    def difference(self, weight: Tensor) -> Tensor:
        """Return the gradient of another weight of a synapse than the one used, minus the latter's.

        The thresholds' update does not depend on them.
        """
        if weight is not self.fc1.weight:
            return torch.zeros_like(weight)
        events, room = self.used
        return events * (room - power_room(weight, self.constants))

    @torch.no_grad()
    def show(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the spikes of inputs and neurons ``[time, batch, ...]`` while images are shown."""
        c = self.constants
        pre = poisson(images, self.time_steps, c.rate * c.dt / 1000, self.random(images))
        current = self.fc1(pre).mul_(row_scale(self.fc1.weight, c.drive).squeeze(1))
        return pre, self.excitatory(current)
