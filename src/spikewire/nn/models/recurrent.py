"""A recurrent network for input over time."""

from torch import nn

from spikewire.nn.layers import Dropout, Layers, NeuronFactory, linear
from spikewire.nn.recurrent import Recurrent


def make_layers(
    inputs: int, hidden: int, neuron: NeuronFactory, dropout: float, classes: int
) -> Layers:
    """Return one recurrent layer between two fully connected ones: inputs-hidden-classes."""
    return {
        "flatten": nn.Flatten(),
        "fc1": linear(inputs, hidden),
        "rec1": Recurrent(hidden, neuron()),
        "drop1": Dropout(dropout),
        "fc2": linear(hidden, classes),
        "lif2": neuron(),
    }
