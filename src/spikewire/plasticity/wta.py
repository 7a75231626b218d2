"""A Bayesian winner-take-all layer with STDP that depends on the weight.

The rule is that of Shi, Nguyen, Oh, Liu, Kuzum, Front. Neurosci. 2019,
doi:10.3389/fnins.2019.00405, whose constants are not known to us; these are ours. Theory: Nessler,
Pfeiffer, Buesing, Maass, PLoS Comput. Biol. 2013, doi:10.1371/journal.pcbi.1003037.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from spikewire.fields import setting
from spikewire.plasticity.labels import Labelled, Voting
from spikewire.plasticity.local_rule import LocalRule
from spikewire.plasticity.network import Sizes
from spikewire.plasticity.spikes import poisson


@dataclass(frozen=True, kw_only=True)
class WTAConstants(Voting):
    """Constants of `WTA`."""

    active: float = setting(
        0.9, "probability that a white pixel spiked within the last 10 ms", within="(0, 1]"
    )
    slope: float = setting(4.0, "how fast potentiation falls with the weight", within="(0, 100]")
    sharpness: float = setting(0.3, "factor on the evidence of the neurons", within="(0, inf)")
    balance: float = setting(50.0, "strength with which firing is equalised", within="[0, inf)")


class WTA(Labelled):
    """At every step one output neuron spikes, drawn by its evidence for the inputs; STDP follows.

        u_k = sharpness sum_i (slope w_ki x_i - log(1 + exp(slope w_ki))) + b_k
        P(k spikes) = softmax(u)_k,    w in [-1, 1]
        after a spike of k:  dw_ki = exp(-slope w_ki) if x_i else -1

    x_i is 1 if input i spiked within the last 10 ms. Where learning rests, ``slope w_ki`` is the
    log odds of x_i given a spike of k, so u_k is the log likelihood of a mixture of prototypes,
    times `sharpness`. So that no neuron spikes too often, after a batch in which n_k of n spikes
    were those of k, ``b_k <- b_k - balance (n_k / n - 1 / K)``.

    What is stored is the strength ``r = w + 1`` in [0, 2]: an absent synapse has the lowest weight,
    as in the paper's conventional pruning, and the weakest are pruned first. An active input
    without a synapse is evidence against its neuron as a strength of 0 is. In ``slope w_ki x_i``
    the part ``-slope x_i`` is the same for all neurons; softmax ignores it, and it is left out:
    only present synapses are computed.

    Args:
        constants: see `WTAConstants`.
        sizes: see `Sizes`; every time step is a spike.

    Example:
        >>> network = build("wta", input_shape=(1, 28, 28), classes=10, time_steps=8)
        >>> optimizer = network.optimizer(lr=0.01)
        >>> network.learn(images, labels); optimizer.step()
    """

    Constants = WTAConstants
    default_hidden = 500
    bias: Tensor

    def __init__(self, constants: WTAConstants, sizes: Sizes) -> None:
        super().__init__(constants, sizes)
        self.fc1 = nn.Linear(prod(sizes.input_shape), sizes.hidden, bias=False)
        nn.init.uniform_(self.fc1.weight, 0.5, 0.7)
        self.register_buffer("bias", torch.zeros(sizes.hidden))

    def optimizer(self, lr: float) -> LocalRule:
        """Return the optimizer of the synapses, with strengths in [0, 2]."""
        return LocalRule([self.fc1.weight], lr, low=0.0, high=2.0, difference=self.difference)

    @torch.no_grad()
    def update_(self, pre: Tensor, post: Tensor) -> None:
        """Leave the sum of STDP over all spikes of the neurons, and equalise firing."""
        spikes = post.sum((0, 1))
        together = post.flatten(0, 1).T @ pre.flatten(0, 1)
        potentiation = self.potentiation(self.fc1.weight)
        self.fc1.weight.grad = spikes.unsqueeze(1) - together - together * potentiation
        self.used = (together, potentiation)
        self.bias.sub_(self.constants.balance * (spikes / spikes.sum() - 1 / self.hidden))

    def potentiation(self, strength: Tensor) -> Tensor:
        """Return ``exp(-slope w)``, how much an active input adds."""
        return torch.exp(self.constants.slope * (1 - strength))

    def difference(self, strength: Tensor) -> Tensor:
        """Return the gradient of other strengths than those used, minus that of the latter."""
        together, potentiation = self.used
        return together * (potentiation - self.potentiation(strength))

    @torch.no_grad()
    def show(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and output spikes ``[time, batch, ...]`` while images are shown."""
        fixed = self.random(images)
        pre = poisson(images, self.time_steps, self.constants.active, fixed)
        evidence = self.evidence(pre)
        noise = torch.rand(evidence.shape, generator=fixed, device=evidence.device)
        # the largest of u plus Gumbel noise is k with probability softmax(u)_k
        winner = (evidence - torch.log(-torch.log(noise.clamp(1e-20, 1 - 1e-7)))).argmax(-1)
        return pre, functional.one_hot(winner, self.hidden).to(pre.dtype)

    def evidence(self, pre: Tensor) -> Tensor:
        """Return u for inputs ``[time, batch, inputs]``."""
        c = self.constants
        partition = functional.softplus(c.slope * (self.fc1.weight - 1)).sum(1)
        return c.sharpness * (c.slope * self.fc1(pre) - partition) + self.bias
