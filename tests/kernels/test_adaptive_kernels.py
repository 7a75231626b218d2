"""The kernels of adaptive neurons against plain torch, whose equations tests/nn checks."""

import torch
from comparison import DEVICE, on_torch, relative_error

from spikewire.nn.adaptive import AdaptiveRecurrent, Dynamics


def test_spikes_and_gradients_are_the_same_on_both_paths():
    torch.manual_seed(3)
    dynamics = Dynamics(tau=6.0, tau_adaptation=9.0, refractory=2)
    layer = AdaptiveRecurrent(6, 11, adaptive=5, span=3, dynamics=dynamics).to(DEVICE)
    x = (torch.rand(14, 5, 6, device=DEVICE) < 0.3).float().requires_grad_()
    cost = torch.randn(14, 5, 11, device=DEVICE)

    def run():
        layer.zero_grad()
        x.grad = None
        spikes = layer(x)
        (spikes * cost).sum().backward()
        return spikes, x.grad, layer.inputs.weight.grad, layer.synapses.weight.grad

    found, expected = run(), on_torch(run)
    assert 0.05 < found[0].mean() < 0.5
    assert torch.equal(found[0], expected[0])
    for a, b in zip(found[1:], expected[1:], strict=True):
        assert relative_error(a, b) < 1e-5
