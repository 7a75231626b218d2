"""The networks on which Deng et al. prune with ADMM, https://arxiv.org/abs/1911.00822.

Their neuron is ``m[t] = decay u[t-1] + I[t]`` with decay 0.2 and threshold 0.5. `LIF` of ``tau =
1.25`` has ``m[t] = 0.2 u[t-1] + 0.8 I[t]``: the same network with all weights and biases times
1.25, which is how they start here.
"""

import torch
from torch import nn

from spikewire.nn.encoding import Bernoulli
from spikewire.nn.layers import Dropout, Layers, NeuronFactory, linear

GAIN = 1.25  # of weights and biases: 1 / (1 - decay)
CHANNELS = ((3, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))
CHANNELS += ((512, 1024, 1), (1024, 2048, 2))  # inputs, outputs, stride of each convolution


def make_mnist_layers(neuron: NeuronFactory, dropout: float) -> Layers:
    """Return 32C3-AP2-32C3-AP2-128-10 with biases, after a random encoding of the pixels."""
    return {
        "encode": Bernoulli(),
        "conv1": _gained(nn.Conv2d(1, 32, 3, padding=1)),
        "lif1": neuron(),
        "pool1": nn.AvgPool2d(2),
        "conv2": _gained(nn.Conv2d(32, 32, 3, padding=1)),
        "lif2": neuron(),
        "pool2": nn.AvgPool2d(2),
        "flatten": nn.Flatten(),
        "drop1": Dropout(dropout),
        "fc1": _gained(nn.Linear(32 * 7 * 7, 128)),
        "lif3": neuron(),
        "fc2": _gained(nn.Linear(128, 10)),
        "lif4": neuron(),
    }


def make_cifar10_layers(neuron: NeuronFactory, dropout: float) -> Layers:
    """Return seven convolutions and 1024-512-100, ten neurons per class; BatchNorm is ours.

    The first fully connected layer has 32,768 inputs: without BatchNorm, one step of Adam moves its
    currents by several thresholds, to where the rectangular surrogate is 0 for good.
    """
    layers: Layers = {}
    for i, (inputs, outputs, stride) in enumerate(CHANNELS, 1):
        layers[f"conv{i}"] = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        layers[f"bn{i}"] = nn.BatchNorm2d(outputs)
        layers[f"lif{i}"] = neuron()
    return layers | {
        "flatten": nn.Flatten(),
        "drop1": Dropout(dropout),
        "fc1": linear(2048 * 4 * 4, 1024),
        "bn8": nn.BatchNorm1d(1024),
        "lif8": neuron(),
        "fc2": linear(1024, 512),
        "bn9": nn.BatchNorm1d(512),
        "lif9": neuron(),
        "fc3": linear(512, 100),
        "lif10": neuron(),
        "vote": nn.AvgPool1d(10),
    }


@torch.no_grad()
def _gained(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    """Return the layer with its initial weights and biases multiplied by `GAIN`."""
    for parameter in layer.parameters():
        parameter.mul_(GAIN)
    return layer
