"""Networks with local rules on a GPU: the same neurons as on a CPU, and they learn."""

import pytest
import torch

from spikewire import plasticity
from spikewire.config import resolve
from spikewire.plasticity.diehl_cook import Excitatory
from spikewire.train.loop import fit

pytestmark = pytest.mark.gpu
FLAGS = {
    "diehl": {"lr": "0.3", "plasticity": "adaptation:2"},
    "wta": {"lr": "0.02", "plasticity": "sharpness:3,balance:20"},
    "rbm": {"lr": "0.05", "plasticity": "label_units:1", "batch_size": "32"},
    "ecd": {"lr": "0.4", "time_steps": "140", "plasticity": "dt:1,offset:1.1", "batch_size": "20"},
}


def test_excitatory_neurons_spike_as_on_a_cpu():
    neurons = Excitatory(50, plasticity.DiehlCook.Constants()).double()
    current = 8 * torch.rand(40, 16, 50, dtype=torch.float64)
    expected = neurons(current.clone())
    assert expected.sum() > 100
    assert torch.equal(neurons.cuda()(current.cuda()).cpu(), expected)


@pytest.mark.parametrize("name", FLAGS)
def test_it_learns_digits_on_a_gpu(name):
    flags = {"dataset": "digits", "hidden": "100", "epochs": "6", "device": "cuda"} | FLAGS[name]
    options = {"method": "magnitude", "connectivity": "0.5", "gradual": "true", "begin": "0.1"}
    result = fit(resolve(f"mnist-{name}", flags=flags | options))
    assert result.accuracy > 0.75
    assert result.connectivity == 0.5
