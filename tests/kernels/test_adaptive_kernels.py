"""The kernels of the LSNN layer against plain torch, whose equations tests/nn checks."""

import pytest
import torch
from adaptive_reference import Forced, delayed, gradient
from comparison import DEVICE, on_torch, relative_error
from hypothesis import given, settings
from hypothesis import strategies as st

from spikewire.kernels import delays as kernel
from spikewire.nn.adaptive import AdaptiveRecurrent, Dynamics
from spikewire.nn.delays import DelayedLinear

EXACT = Dynamics(tau=1e-3, tau_adaptation=1e-3, threshold=0.5, adaptation=1.0, refractory=2)


def make(inputs=6, neurons=11, span=3, dynamics=None, time=14, batch=5, rate=0.3):
    """Return a layer that fires, and spikes for it."""
    dynamics = dynamics or Dynamics(tau=6.0, tau_adaptation=9.0, refractory=2)
    layer = AdaptiveRecurrent(inputs, neurons, adaptive=5, span=span, dynamics=dynamics).to(DEVICE)
    return layer, (torch.rand(time, batch, inputs, device=DEVICE) < rate).float()


def run(layer, x, cost):
    """Return spikes and all gradients."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    spikes = layer(x)
    (spikes * cost).sum().backward()
    return spikes.detach(), x.grad, layer.inputs.weight.grad, layer.synapses.weight.grad


@pytest.mark.parametrize(
    ("neurons", "span", "refractory", "batch", "time"),
    [
        (11, 3, 2, 3, 12), (33, 1, 0, 2, 5), (8, 10, 5, 1, 6), (16, 31, 1, 1, 36),
        (130, 5, 2, 3, 7), (260, 5, 2, 1, 4),
    ],
)  # fmt: skip
def test_spikes_and_gradients_are_the_same_on_both_paths(neurons, span, refractory, batch, time):
    torch.manual_seed(3)
    dynamics = Dynamics(tau=6.0, tau_adaptation=9.0, refractory=refractory)
    layer, x = make(7, neurons, span, dynamics, time, batch)
    cost = torch.randn(time, batch, neurons, device=DEVICE)
    found, expected = run(layer, x, cost), on_torch(run, layer, x, cost)
    assert 0.02 < found[0].mean() < 0.9
    assert torch.equal(found[0], expected[0])
    for a, b in zip(found[1:], expected[1:], strict=True):
        assert relative_error(a, b) < 1e-5
    assert not found[3].diagonal().any()
    if DEVICE == "cuda":  # the interpreter has no threads that could meet
        assert all(torch.equal(a, b) for a, b in zip(run(layer, x, cost), found, strict=True))


@pytest.mark.parametrize("time", [3, 20])
def test_spikes_are_exact_where_all_sums_are(time):
    """Without memory of the voltage, and with weights in eighths, no rounding happens."""
    torch.manual_seed(time)
    layer, x = make(9, 20, 10, EXACT, time, batch=3)
    for module in (layer.inputs, layer.synapses):
        values = torch.randint(-4, 9, module.weight.shape, device=DEVICE) / 8
        module.weight.data.copy_(values * (module.delays >= 0))
    spikes = layer(x).detach()
    forced = Forced(layer, x, spikes)
    assert torch.equal(spikes.bool(), forced.fires())
    assert spikes.mean() > 0.02


def test_gradients_are_those_of_the_equations_along_the_spikes():
    torch.manual_seed(5)
    layer, x = make(12, 40, 10, Dynamics(tau_adaptation=30.0), time=40, batch=2, rate=0.2)
    cost = torch.randn(40, 2, 40, device=DEVICE)
    spikes, _, *found = run(layer, x, cost)
    forced = Forced(layer, x, spikes)
    far = forced.margin() > 1e-4
    assert torch.equal(spikes.bool()[far], forced.fires()[far])
    assert far.float().mean() > 0.99
    for a, b in zip(found, forced.gradients(cost), strict=True):
        assert relative_error(a, b) < 1e-5


@given(
    sizes=st.tuples(*[st.integers(1, 34)] * 2),
    batch=st.integers(1, 2),
    time=st.integers(1, 66),
    span=st.integers(1, 12),
    seed=st.integers(0, 99),
)
@settings(max_examples=3, deadline=None)
def test_synapses_with_delays_take_any_numbers(sizes, batch, time, span, seed):
    torch.manual_seed(seed)
    layer = DelayedLinear(*sizes, span).to(DEVICE)
    x = torch.randn(time, batch, sizes[0], device=DEVICE)
    x *= torch.rand_like(x) < 0.2
    dy = torch.randn(time, batch, sizes[1], device=DEVICE)
    y = kernel.currents(x, layer.weight, layer.delays, span)
    exact = delayed(x.double(), layer.weight.double(), layer.delays)
    assert relative_error(y, exact) < 1e-6
    for shift in (0, 1):
        change = kernel.weight_gradient(x, dy, layer.delays, shift)
        expected = gradient(dy.double(), x.double(), layer.delays, shift)
        assert relative_error(change, expected) < 1e-5
        assert change.shape == layer.weight.shape


def test_under_autocast_states_stay_in_float32():
    torch.manual_seed(1)
    layer, x = make(time=8, batch=2)
    full = layer(x)
    with torch.autocast(DEVICE, torch.bfloat16):
        half = layer(x)
    assert half.dtype == torch.bfloat16
    assert (half != full).float().mean() < 0.2
    half.float().sum().backward()
    assert layer.synapses.weight.grad.dtype == torch.float32
    assert layer.synapses.weight.grad.isfinite().all()


def test_a_layer_that_the_kernels_do_not_support_runs_in_plain_torch():
    layer, x = make(dynamics=EXACT)
    layer, x = layer.double(), x.double()
    assert torch.equal(layer(x), on_torch(layer, x))
    assert AdaptiveRecurrent(2, 3, span=100).to(DEVICE)(x[:, :, :2].float()).shape == (14, 5, 3)
