"""Synaptic layers and neurons of any library."""

import warnings

import pytest
import snntorch
from spikingjelly.activation_based import neuron as spikingjelly
from torch import nn

from spikewire.nn.models import build
from spikewire.nn.neurons import IF, LIF
from spikewire.nn.synapses import is_spiking, synaptic_layers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses torch.jit.script, which is deprecated
    import norse.torch as norse


class OwnLeaky(snntorch.Leaky):
    """A user's subclass, defined outside the library."""


@pytest.mark.parametrize(
    "module",
    [
        LIF(),
        IF(),
        spikingjelly.LIFNode(),
        spikingjelly.IFNode(),
        snntorch.Leaky(beta=0.9),
        OwnLeaky(beta=0.9),
        norse.LIFCell(),
    ],
    ids=lambda module: f"{type(module).__module__}.{type(module).__name__}",
)
def test_neurons_of_four_libraries(module):
    assert is_spiking(module)


@pytest.mark.parametrize("module", [nn.Linear(2, 2), nn.ReLU(), nn.Sequential(LIF())], ids=repr)
def test_other_modules_are_no_neurons(module):
    assert not is_spiking(module)


def test_synaptic_layers_by_the_names_of_their_weights():
    names = ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert list(synaptic_layers(build("lenet5"))) == [f"{name}.weight" for name in names]
    single = nn.Linear(2, 2)
    assert synaptic_layers(single) == {"weight": single}


def test_transposed_convolutions_count_and_embeddings_do_not():
    up, table = nn.ConvTranspose2d(1, 1, 2), nn.Embedding(3, 2)
    assert synaptic_layers(nn.Sequential(up, table, nn.BatchNorm2d(1))) == {"0.weight": up}
