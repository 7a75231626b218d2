"""Multilayer perceptrons: the paper's MNIST network, the small one for the digits, any other."""

from torch import nn

from spikewire.nn.layers import Dropout, Layers, NeuronFactory, linear


def make_layers(
    inputs: int, hidden: int, neuron: NeuronFactory, dropout: float, classes: int = 10
) -> Layers:
    """Return two fully connected layers: inputs-hidden-LIF-classes-LIF."""
    return {
        "flatten": nn.Flatten(),
        "fc1": linear(inputs, hidden),
        "lif1": neuron(),
        "drop1": Dropout(dropout),
        "fc2": linear(hidden, classes),
        "lif2": neuron(),
    }
