"""VGG networks with spiking neurons and BatchNorm, for photographs and for event frames.

VGG-11 and VGG-16 (Simonyan and Zisserman, 2015) have maximum pooling and, as usual for 32 x 32
images, one fully connected layer. VGGSNN (Deng et al., ICLR 2022) has average pooling and is for
event frames of 48 x 48 pixels and two polarities.
"""

from torch import nn

from spikewire.errors import check
from spikewire.nn.layers import Dropout, Layers, NeuronFactory, conv, linear

Shape = tuple[int, ...]
POOL = 0  # among the numbers of channels
VGG11 = (64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)
VGG16 = (64, 64, POOL, 128, 128, POOL, *(256,) * 3, POOL, *(512,) * 3, POOL, *(512,) * 3, POOL)
VGGSNN = (64, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512, POOL)


def make_layers(
    plan: tuple[int, ...],
    pool: type[nn.MaxPool2d] | type[nn.AvgPool2d],
    shape: Shape,
    classes: int,
    width: float,
    neuron: NeuronFactory,
    dropout: float,
) -> Layers:
    """Return convolutions with BatchNorm, neurons and pooling, and one fully connected layer.

    Args:
        plan: numbers of channels, with `POOL` where the image is halved.
        pool: kind of pooling.
        shape: channels, height and width of the images.
        classes: number of classes.
        width: factor on the numbers of channels.
        neuron: makes neurons.
        dropout: probability before the fully connected layer.
    """
    layers, (channels, *sides) = convolutions(plan, pool, shape, width, neuron)
    number = len([count for count in plan if count != POOL]) + 1
    return layers | {
        "flatten": nn.Flatten(),
        "drop1": Dropout(dropout),
        "fc1": linear(channels * sides[0] * sides[1], classes),
        f"lif{number}": neuron(),
    }


def convolutions(
    plan: tuple[int, ...],
    pool: type[nn.MaxPool2d] | type[nn.AvgPool2d],
    shape: Shape,
    width: float,
    neuron: NeuronFactory,
) -> tuple[Layers, Shape]:
    """Return the convolutional layers of a plan, and the shape of their output."""
    smallest = 2 ** plan.count(POOL)
    fits = len(shape) == 3 and min(shape[1:]) >= smallest
    check(fits, "images", shape, f"[channels, height, width], {smallest} x {smallest} or larger")
    channels, height, columns = shape
    layers: Layers = {}
    i = pools = 0
    for count in plan:
        if count == POOL:
            pools += 1
            layers[f"pool{pools}"] = pool(2)
            height, columns = height // 2, columns // 2
            continue
        i += 1
        outputs = scaled(count, width)
        layers[f"conv{i}"] = conv(channels, outputs, 3, padding=1)
        layers[f"bn{i}"] = nn.BatchNorm2d(outputs)
        layers[f"lif{i}"] = neuron()
        channels = outputs
    return layers, (channels, height, columns)


def scaled(channels: int, width: float) -> int:
    """Return a number of channels times a width, at least 1."""
    return max(1, round(channels * width))
