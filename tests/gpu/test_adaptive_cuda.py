"""The LSNN layer at its real size on a GPU: 840 steps, 80 inputs, 220 neurons, delays 0 to 9."""

import pytest
import torch
from adaptive_reference import Forced

from spikewire import DeepR, kernels
from spikewire.nn.adaptive import AdaptiveRecurrent, Dynamics

pytestmark = pytest.mark.gpu
EXACT = Dynamics(tau=1e-3, tau_adaptation=1e-3, threshold=0.5, adaptation=1.0, refractory=5)


@pytest.fixture(autouse=True)
def _full_precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def make(dynamics=None, batch=256, rate=0.03, time=840):
    torch.manual_seed(0)
    layer = AdaptiveRecurrent(80, 220, adaptive=100, inhibitory=0.25, dynamics=dynamics).cuda()
    return layer, (torch.rand(time, batch, 80, device="cuda") < rate).float()


def run(layer, x, cost):
    layer.zero_grad()
    spikes = layer(x)
    (spikes * cost).sum().backward()
    return spikes.detach(), layer.inputs.weight.grad, layer.synapses.weight.grad


def relative_error(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def test_spikes_are_exact_where_all_sums_are():
    layer, x = make(EXACT)
    for module in (layer.inputs, layer.synapses):
        values = torch.randint(-8, 9, module.weight.shape, device="cuda") / 16
        module.weight.data.copy_(values * (module.delays >= 0))
    spikes = layer(x).detach()
    assert 0.002 < spikes.mean() < 0.2
    assert torch.equal(spikes.bool(), Forced(layer, x, spikes).fires())
    kernels.use("torch")
    assert torch.equal(layer(x), spikes)


@pytest.mark.parametrize("batch", [256, 7])
def test_spikes_and_gradients_are_those_of_the_equations(batch):
    layer, x = make(batch=batch)
    cost = torch.randn(840, batch, 220, device="cuda") / 100
    spikes, *found = run(layer, x, cost)
    assert 0.002 < spikes.mean() < 0.2
    forced = Forced(layer, x, spikes)
    far = forced.margin() > 1e-3
    assert far.float().mean() > 0.99
    assert torch.equal(spikes.bool()[far], forced.fires()[far])
    for a, b in zip(found, forced.gradients(cost), strict=True):
        assert relative_error(a, b) < 1e-3


def test_results_are_equal_bit_for_bit():
    layer, x = make()
    cost = torch.randn(840, 256, 220, device="cuda") / 100
    first = [result.clone() for result in run(layer, x, cost)]
    for again in (run(layer, x, cost) for _ in range(3)):
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


def test_gradients_are_those_of_plain_torch_where_spikes_are_equal():
    """Short sequences: spikes that rounding flips would change all later ones.

    The backward kernel keeps delays in the lowest bits of weights: 1e-6 of a weight, 1e-5 of a sum.
    """
    layer, x = make(time=40, batch=32, rate=0.1)
    cost = torch.randn(40, 32, 220, device="cuda")
    found = run(layer, x, cost)
    kernels.use("torch")
    expected = run(layer, x, cost)
    same = (found[0] == expected[0]).all(2).all(0)
    assert same.float().mean() > 0.9
    x, cost = x[:, same], cost[:, same]
    kernels.use("auto")
    found = run(layer, x, cost)
    kernels.use("torch")
    for a, b in zip(found, run(layer, x, cost), strict=True):
        assert relative_error(a, b) < 3e-5


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("constraint", ["global", "layer"])
def test_deep_r_keeps_its_counts_without_waiting_for_the_device(constraint):
    layer, x = make(time=30, batch=8, rate=0.1)
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2, fused=True)
    method = DeepR(connectivity=0.12, constraint=constraint, alpha=1e-2, temperature=0.0)
    pruner = method.attach(layer, optimizer, total_steps=31)
    before = pruner.masks()
    try:
        for step in range(31):
            if step == 17:  # checksums of the first 16 steps are waited for, then that of step 32
                torch.cuda.set_sync_debug_mode("error")
            layer.zero_grad()
            layer(x).sum().backward()
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    after = pruner.masks()
    assert all(bool((after[name] != before[name]).any()) for name in before)
    sums = [[int(mask.sum()) for mask in masks.values()] for masks in (before, after)]
    assert sum(sums[0]) == sum(sums[1]) == round(0.12 * (80 + 220) * 220)
    assert constraint == "global" or sums[0] == sums[1]
