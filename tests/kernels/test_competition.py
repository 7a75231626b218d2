"""The kernels of competing neurons and traces against plain torch, checked in tests/plasticity."""

import torch
from comparison import DEVICE, on_torch

from spikewire.plasticity import DiehlCook
from spikewire.plasticity.diehl_cook import Excitatory
from spikewire.plasticity.spikes import trace


def test_the_same_neurons_spike_on_both_paths():
    torch.manual_seed(5)
    neurons = Excitatory(37, DiehlCook.Constants(inhibition=4.0)).to(DEVICE)
    neurons.theta.data.uniform_(0, 3)
    current = 6 * torch.rand(25, 9, 37, device=DEVICE)
    found = neurons(current.clone())
    expected = on_torch(neurons, current.clone())
    assert 100 < expected.sum() < 200  # spikes and pauses, some by neurons that were refractory
    assert expected.sum(2).max() == 1
    assert torch.equal(found, expected)


def test_traces_are_the_same_on_both_paths():
    spikes = (torch.rand(30, 3, 101, device=DEVICE) < 0.1).float()
    torch.testing.assert_close(trace(spikes, 0.9), on_torch(trace, spikes, 0.9))
