"""Residual networks with spiking neurons: SEW-ResNet-18 and ResNet-19.

SEW-ResNet-18 (Fang et al., NeurIPS 2021) adds spikes to spikes (ADD) after the neurons; ResNet-19
(Zheng et al., AAAI 2021) adds currents before them. For small images the first convolution is 3 x 3
without stride and pooling; "imagenet" is the published 7 x 7 with stride 2 and pooling.
"""

from torch import nn

from spikewire.errors import check
from spikewire.nn.layers import Layers, NeuronFactory, conv, linear
from spikewire.nn.models.vgg import Shape, scaled
from spikewire.nn.sequence import Dropout, Residual

SEW18 = ((64, 2, 1), (128, 2, 2), (256, 2, 2), (512, 2, 2))  # channels, blocks, first stride
RESNET19 = ((128, 3, 1), (256, 3, 2), (512, 2, 2))


def sew_resnet18(
    shape: Shape, classes: int, width: float, neuron: NeuronFactory, dropout: float
) -> Layers:
    """Return SEW-ResNet-18 for small images; the arguments are those of `vgg.make_layers`."""
    layers, channels = _stem(shape, scaled(64, width), neuron)
    layers |= _blocks(SEW18, channels, width, neuron, add_spikes=True)
    return layers | _head(scaled(512, width), classes, neuron, dropout)


def sew_resnet18_imagenet(
    shape: Shape, classes: int, width: float, neuron: NeuronFactory, dropout: float
) -> Layers:
    """Return SEW-ResNet-18 for large images, with a strided first convolution and pooling."""
    channels = scaled(64, width)
    layers: Layers = {
        "conv1": conv(_image_channels(shape), channels, 7, padding=3, stride=2),
        "bn1": nn.BatchNorm2d(channels),
        "lif1": neuron(),
        "pool1": nn.MaxPool2d(3, 2, 1),
    }
    layers |= _blocks(SEW18, channels, width, neuron, add_spikes=True)
    return layers | _head(scaled(512, width), classes, neuron, dropout)


def resnet19(
    shape: Shape, classes: int, width: float, neuron: NeuronFactory, dropout: float
) -> Layers:
    """Return ResNet-19, with a hidden fully connected layer of 256 neurons."""
    layers, channels = _stem(shape, scaled(128, width), neuron)
    layers |= _blocks(RESNET19, channels, width, neuron, add_spikes=False)
    hidden = scaled(256, width)
    layers |= _head(scaled(512, width), hidden, neuron, dropout)
    return layers | {"fc2": linear(hidden, classes), "lif3": neuron()}


def _image_channels(shape: Shape) -> int:
    check(len(shape) == 3, "images", shape, "[channels, height, width]")
    return shape[0]


def _stem(shape: Shape, channels: int, neuron: NeuronFactory) -> tuple[Layers, int]:
    """Return the first convolution for small images, and its channels."""
    first = conv(_image_channels(shape), channels, 3, padding=1)
    return {"conv1": first, "bn1": nn.BatchNorm2d(channels), "lif1": neuron()}, channels


def _blocks(
    plan: tuple[tuple[int, int, int], ...],
    inputs: int,
    width: float,
    neuron: NeuronFactory,
    *,
    add_spikes: bool,
) -> Layers:
    layers: Layers = {}
    for count, blocks, first_stride in plan:
        outputs = scaled(count, width)
        for number in range(blocks):
            stride = first_stride if number == 0 else 1
            block = _block(inputs, outputs, stride, neuron, add_spikes=add_spikes)
            layers[f"block{len(layers) + 1}"] = block
            inputs = outputs
    return layers


def _block(
    inputs: int, outputs: int, stride: int, neuron: NeuronFactory, *, add_spikes: bool
) -> Residual:
    """Return two convolutions with a shortcut, which is strided where the image shrinks."""
    branch: Layers = {
        "conv1": conv(inputs, outputs, 3, padding=1, stride=stride),
        "bn1": nn.BatchNorm2d(outputs),
        "neuron1": neuron(),
        "conv2": conv(outputs, outputs, 3, padding=1),
        "bn2": nn.BatchNorm2d(outputs),
    }
    shortcut: Layers = {}
    if stride != 1 or inputs != outputs:
        shortcut = {
            "conv": conv(inputs, outputs, 1, padding=0, stride=stride),
            "bn": nn.BatchNorm2d(outputs),
        }
    if not add_spikes:
        return Residual(branch, shortcut, neuron())
    branch["neuron2"] = neuron()
    return Residual(branch, shortcut | ({"neuron": neuron()} if shortcut else {}))


def _head(inputs: int, outputs: int, neuron: NeuronFactory, dropout: float) -> Layers:
    """Return the mean over each channel and fully connected neurons."""
    return {
        "mean": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "drop1": Dropout(dropout),
        "fc1": linear(inputs, outputs),
        "lif2": neuron(),
    }
