"""STDP: each rule against its equation, spike by spike, and by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spikewire.plasticity import RULES
from spikewire.plasticity.spikes import poisson, trace
from spikewire.plasticity.stdp import Timing


def last_spike(train, t):
    """Return the time of the last spike at or before t, None where there is none."""
    return next((s for s in range(t, -1, -1) if train[s]), None)


def since(train, t, dt, tau):
    """The trace by its definition: exp(-(time since the last spike) / tau)."""
    last = last_spike(train, t) if t >= 0 else None
    return 0.0 if last is None else math.exp(-(t - last) * dt / tau)


def slow(rule, pre, post, weight, c):
    """The update of every synapse by itself, from the spikes of its input and its neuron."""
    time, batch, inputs = pre.shape
    update = [[0.0] * inputs for _ in range(post.shape[2])]
    for j, row in enumerate(update):
        for i in range(inputs):
            for b in range(batch):
                x, y = pre[:, b, i].tolist(), post[:, b, j].tolist()
                for t in range(time):
                    if y[t] and rule == "power":
                        row[i] += since(x, t, c.dt, c.tau_pre) - c.offset
                    elif y[t]:
                        slow_trace = since(y, t - 1, c.dt, c.tau_slow)
                        factor = slow_trace if rule == "triplet" else 1.0
                        row[i] += since(x, t, c.dt, c.tau_pre) * factor
                    if x[t] and rule != "power":
                        row[i] -= c.depression * since(y, t - 1, c.dt, c.tau_post)
            if rule == "power":
                w = float(weight[j, i])
                row[i] *= ((1 - w) * w) ** c.exponent
    return torch.tensor(update, dtype=torch.float64)


@given(seed=st.integers(0, 999), rule=st.sampled_from(sorted(RULES)))
@settings(deadline=None, max_examples=20)
def test_a_rule_is_its_equation_for_every_synapse(seed, rule):
    generator = torch.Generator().manual_seed(seed)
    pre = (torch.rand(9, 2, 3, generator=generator) < 0.4).double()
    post = (torch.rand(9, 2, 2, generator=generator) < 0.3).double()
    weight = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    c = Timing(rule=rule, dt=3.0, tau_post=11.0, tau_slow=50.0, depression=0.2, exponent=0.7)
    found = RULES[rule](pre, post, weight, c)
    torch.testing.assert_close(found, slow(rule, pre, post, weight, c))


def test_pair_stdp_by_hand():
    # the input spikes at 0 and 3, the neuron at 1: 1 step after and 2 steps before an input spike
    pre = torch.tensor([1.0, 0, 0, 1]).view(4, 1, 1)
    post = torch.tensor([0.0, 1, 0, 0]).view(4, 1, 1)
    c = Timing(dt=10.0, tau_pre=20.0, tau_post=40.0, depression=0.5)
    found = RULES["pair"](pre, post, torch.zeros(1, 1), c)
    # the trace of the neuron that depresses is that of one step before: 1 step old
    assert float(found) == pytest.approx(math.exp(-10 / 20) - 0.5 * math.exp(-10 / 40))


def test_a_trace_is_one_at_a_spike_and_decays():
    spikes = torch.tensor([0.0, 1, 0, 1, 1, 0, 0])
    assert trace(spikes, 0.5).tolist() == [0, 1, 0.5, 1, 1, 0.5, 0.25]


def test_the_rate_of_spikes_is_proportional_to_the_pixel():
    images = torch.tensor([[0.0, 0.25, 1.0, 7.0]])  # above 1 is clipped
    spikes = poisson(images, 20_000, 0.2, torch.Generator().manual_seed(0))
    assert set(spikes.unique().tolist()) == {0.0, 1.0}
    assert spikes.mean((0, 1)).tolist() == pytest.approx([0, 0.05, 0.2, 0.2], abs=0.01)
