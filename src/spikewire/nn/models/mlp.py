"""Multilayer perceptrons: the paper's MNIST network and the small one for the digits."""

from torch import nn

from spikewire.nn.layers import Dropout, Layers, NeuronFactory, linear


def make_layers(inputs: int, hidden: int, neuron: NeuronFactory, dropout: float) -> Layers:
    """Return two fully connected layers: inputs-hidden-LIF-10-LIF."""
    return {
        "flatten": nn.Flatten(),
        "fc1": linear(inputs, hidden),
        "lif1": neuron(),
        "drop1": Dropout(dropout),
        "fc2": linear(hidden, 10),
        "lif2": neuron(),
    }
