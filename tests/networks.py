"""Small spiking networks of many shapes, for the tests of what exports and runs them."""

import torch
from torch import Tensor, nn

from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.layers import Spiking
from spikewire.nn.models import build
from spikewire.nn.neurons import IF, LIF, Neuron

TIME_STEPS = 5


def neuron(kind: str) -> Neuron:
    """A neuron of each kind of arithmetic: exact inverse, division, rest, no leak, soft reset."""
    return {
        "half": lambda: LIF(tau=2.0),
        "third": lambda: LIF(tau=3.0, threshold=0.9),
        "rest": lambda: LIF(tau=2.5, threshold=0.5, rest=-0.25),
        "if": lambda: IF(threshold=1.5),
        "soft": lambda: LIF(tau=2.5, threshold=0.7, rest=-0.1, reset="soft"),
        "soft if": lambda: IF(threshold=0.9, reset="soft"),
    }[kind]()


@torch.no_grad()
def sparse_(model: Spiking, connectivity: float) -> Spiking:
    """Mask at random, settle BatchNorm, and scale what feeds neurons until many of them fire."""
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.mul_(torch.rand_like(parameter) < connectivity)
    model.train()
    x = torch.randn(16, *(model.input_shape or ())).unsqueeze(0)
    before = nn.Module()
    for layer in model:
        if isinstance(layer, Neuron) and (spread := x.std()) > 0:
            scale = 3 * (layer.threshold - layer.rest) / spread
            before.get_parameter("weight").mul_(scale)
            x = x * scale
        x, before = model.advance(layer, x), layer
    return model.eval()


def conv_net(
    height: int = 9,
    width: int = 21,
    *,
    channels: tuple[int, int, int] = (2, 5, 4),
    kernel: int = 3,
    padding: int = 1,
    pool: str = "max",
    kind: str = "half",
    readout: str = "spikes",
    connectivity: float = 0.4,
    seed: int = 0,
) -> Spiking:
    """Two convolutions with BatchNorm, a pool between, a fully connected end that votes."""
    torch.manual_seed(seed)
    a, b, c = channels
    rows, columns = (n + 2 * padding - kernel + 1 for n in (height, width))
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(a, b, kernel, padding=padding, bias=False),
        "bn1": nn.BatchNorm2d(b, momentum=1.0),
        "lif1": neuron(kind),
    }
    if pool != "none":
        layers["pool1"] = nn.MaxPool2d(2) if pool == "max" else nn.AvgPool2d(2)
        rows, columns = rows // 2, columns // 2
    layers |= {"conv2": nn.Conv2d(b, c, kernel, padding=padding), "lif2": neuron(kind)}
    rows, columns = (n + 2 * padding - kernel + 1 for n in (rows, columns))
    layers |= {"flatten": nn.Flatten(), "fc": nn.Linear(c * rows * columns, 6)}
    if readout == "spikes":
        layers |= {"lif3": neuron(kind), "vote": nn.AvgPool1d(2)}
    model = Spiking(layers, time_steps=TIME_STEPS, input_shape=(a, height, width))
    return sparse_(model, connectivity)


def small(name: str, images: Tensor, connectivity: float = 0.2) -> Spiking:
    """One of the package's networks, masked at random, with neurons that fire."""
    torch.manual_seed(0)
    model = build(name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(torch.rand_like(parameter) < connectivity)
    scale_to_fire_(model, images)
    return model
