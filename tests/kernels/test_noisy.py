"""The kernel of noisy neurons against plain torch, whose equations tests/plasticity checks."""

import torch
from comparison import DEVICE, on_torch

from spikewire.plasticity import ECD
from spikewire.plasticity.ecd import Layer


def test_spikes_and_traces_are_the_same_on_both_paths():
    inputs = torch.randn(20, 7, 93, generator=torch.Generator().manual_seed(0)).to(DEVICE)

    def run():
        torch.manual_seed(1)
        layer = Layer(torch.zeros(7, 93, device=DEVICE), ECD.Constants())
        return torch.stack([layer.step(x) for x in inputs]), layer.trace, layer.blind

    found, expected = run(), on_torch(run)
    assert 0.02 < expected[0].mean() < 0.125  # at most one spike in 8 steps
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1:], expected[1:])
