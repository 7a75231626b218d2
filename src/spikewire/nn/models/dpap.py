"""The network of DPAP (Han et al., TPAMI 2024), also that of SD-SNN and CH-SNN.

Six convolutions and two fully connected layers, 128-128-256-256-512-512-512, which the papers call
6Conv2FC. It is published with neurons that learn their time constant (``neuron="plif"``) and a
threshold of 0.5.
"""

from torch import nn

from spikewire.nn.layers import Dropout, Layers, NeuronFactory, linear
from spikewire.nn.models.vgg import POOL, Shape, convolutions, scaled

PLAN = (128, 128, POOL, 256, 256, POOL, 512, 512)
HIDDEN = 512


def make_layers(
    shape: Shape, classes: int, width: float, neuron: NeuronFactory, dropout: float
) -> Layers:
    """Return the layers for images of a shape; the arguments are those of `vgg.make_layers`."""
    layers, (channels, height, columns) = convolutions(PLAN, nn.MaxPool2d, shape, width, neuron)
    hidden = scaled(HIDDEN, width)
    return layers | {
        "flatten": nn.Flatten(),
        "drop1": Dropout(dropout),
        "fc1": linear(channels * height * columns, hidden),
        "lif7": neuron(),
        "fc2": linear(hidden, classes),
        "lif8": neuron(),
    }
