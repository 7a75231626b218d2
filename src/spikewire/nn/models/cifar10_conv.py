"""The paper's convolutional network for CIFAR-10."""

from torch import nn

from spikewire.nn.layers import Dropout, Layers, NeuronFactory, conv, linear


def make_layers(
    pool: type[nn.MaxPool2d] | type[nn.AvgPool2d], neuron: NeuronFactory, dropout: float
) -> Layers:
    """Return six convolutions and two fully connected layers; ten neurons vote per class."""
    layers: Layers = {}
    for i in range(1, 7):
        layers[f"conv{i}"] = conv(3 if i == 1 else 256, 256, 3, padding=1)
        layers[f"bn{i}"] = nn.BatchNorm2d(256)
        layers[f"lif{i}"] = neuron()
        if i % 3 == 0:
            layers[f"pool{i // 3}"] = pool(2)
    return layers | {
        "flatten": nn.Flatten(),
        "drop1": Dropout(dropout),
        "fc1": linear(256 * 8 * 8, 2048),
        "lif7": neuron(),
        "fc2": linear(2048, 100),
        "lif8": neuron(),
        "vote": nn.AvgPool1d(10),
    }
