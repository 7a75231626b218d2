"""Spike-timing-dependent plasticity: the update of all weights, summed over time and batch.

With traces ``x`` of the inputs and ``y`` of the neurons (`trace`), S the spikes of a neuron (post)
and P those of an input (pre), all at time t, and sums over t and all images of the batch:

    pair      dw = sum S x - depression sum P y[t-1]
    triplet   dw = sum S x z[t-1] - depression sum P y[t-1]      z: a slower trace of the neuron
    power     dw = (sum S (x - offset)) ((w_max - w)(w - 0))^exponent,     w_max = 1

Pair: Song, Miller, Abbott, Nature Neuroscience 2000, in the form with traces that are set to 1.
Triplet: Pfister & Gerstner, J. Neurosci. 2006, as used by Diehl & Cook, Front. Comput. Neurosci.
2015. Power law: Querlioz et al. 2013, as used by Rathi, Panda, Roy, https://arxiv.org/abs/1710.04734.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

from torch import Tensor

from spikewire.fields import setting, validate
from spikewire.plasticity.spikes import following, previous, trace


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Constants of the rules; times in ms."""

    rule: str = setting("pair", "form of STDP", choices=("spikewire.plasticity.stdp:RULES",))
    dt: float = setting(2.0, "length of a time step, ms", within="(0, 100]")
    tau_pre: float = setting(20.0, "time constant of input traces, ms", within="(0, inf)")
    tau_post: float = setting(20.0, "time constant of neuron traces, ms", within="(0, inf)")
    tau_slow: float = setting(40.0, "the slower one, of triplet, ms", within="(0, inf)")
    depression: float = setting(
        0.01, "pair, triplet: size of a depression relative to a potentiation", within="[0, inf)"
    )
    offset: float = setting(0.3, "power: trace below which a synapse is depressed", within="[0, 1]")
    exponent: float = setting(0.9, "power: dependence on the weight", within="[0, 10]")

    def __post_init__(self) -> None:
        validate(self)

    def decay(self, tau: float) -> float:
        """Return the factor per time step of a time constant."""
        return exp(-self.dt / tau)


def pair(pre: Tensor, post: Tensor, weight: Tensor, c: Timing) -> Tensor:
    """Return the update of pair STDP.

    Args:
        pre: spikes of the inputs ``[time, batch, inputs]``.
        post: spikes of the neurons ``[time, batch, neurons]``.
        weight: ``[neurons, inputs]``; not used.
        c: the constants.
    """
    return _correlation(post, trace(pre, c.decay(c.tau_pre))) - _depression(pre, post, c)


def triplet(pre: Tensor, post: Tensor, weight: Tensor, c: Timing) -> Tensor:
    """Return the update of triplet STDP: a neuron's first spike does not potentiate."""
    slow = previous(trace(post, c.decay(c.tau_slow)))
    return _correlation(post * slow, trace(pre, c.decay(c.tau_pre))) - _depression(pre, post, c)


def power(pre: Tensor, post: Tensor, weight: Tensor, c: Timing) -> Tensor:
    """Return the update of power-law STDP, which stops at weights of 0 and 1."""
    return power_events(pre, post, c) * power_room(weight, c)


def power_events(pre: Tensor, post: Tensor, c: Timing) -> Tensor:
    """Return ``sum S (x - offset)``, the part of the power law that spikes decide."""
    caused = _correlation(post, trace(pre, c.decay(c.tau_pre)))
    return caused - c.offset * post.sum((0, 1)).unsqueeze(1)


def power_room(weight: Tensor, c: Timing) -> Tensor:
    """Return ``((1 - w) w)^exponent``, the part of the power law that the weight decides."""
    return ((1 - weight) * weight).clamp(min=0).pow(c.exponent)


def _depression(pre: Tensor, post: Tensor, c: Timing) -> Tensor:
    """Return what is subtracted: inputs that spike after the neuron.

    On a CPU as a sum over the few spikes S of neurons instead of the many P of inputs: a spike
    stands for all P that follow until the neuron spikes again, ``S (1 - decay y[t-1]) F`` with
    ``F[t] = P[t+1] + decay F[t+1]``.
    """
    if not c.depression:
        return pre.new_zeros(())
    decay = c.decay(c.tau_post)
    before = previous(trace(post, decay))
    if not post.is_cpu:
        return c.depression * _correlation(before, pre)
    return c.depression * _correlation(post * (1 - decay * before), following(pre, decay))


def _correlation(post: Tensor, pre: Tensor) -> Tensor:
    """Return the sum over time and batch of ``post preᵀ``, ``[neurons, inputs]``.

    On a CPU, where at most one neuron spikes per image and time step, spike by spike.
    """
    post, pre = post.flatten(0, 1), pre.flatten(0, 1)
    if post.is_cpu:
        at, neurons = post.nonzero(as_tuple=True)
        if len(at) <= len(post):
            rows = pre[at] * post[at, neurons].unsqueeze(1)
            return pre.new_zeros(post.shape[1], pre.shape[1]).index_add_(0, neurons, rows)
    return post.T @ pre


RULES: dict[str, Callable[[Tensor, Tensor, Tensor, Timing], Tensor]] = {
    "pair": pair,
    "triplet": triplet,
    "power": power,
}
