"""LeNet-5 with spiking neurons and average pooling."""

from torch import nn

from spikewire.nn.layers import Dropout, Layers, NeuronFactory, conv, linear


def make_layers(neuron: NeuronFactory, dropout: float) -> Layers:
    """Return 6C5-AP2-16C5-AP2-120-84-10, with neurons after every synaptic layer."""
    return {
        "conv1": conv(1, 6, 5, padding=2),
        "lif1": neuron(),
        "pool1": nn.AvgPool2d(2),
        "conv2": conv(6, 16, 5, padding=0),
        "lif2": neuron(),
        "pool2": nn.AvgPool2d(2),
        "flatten": nn.Flatten(),
        "drop1": Dropout(dropout),
        "fc1": linear(16 * 5 * 5, 120),
        "lif3": neuron(),
        "fc2": linear(120, 84),
        "lif4": neuron(),
        "fc3": linear(84, 10),
        "lif5": neuron(),
    }
