"""Spiking networks: the paper's two, their small relatives, and a start that fires.

An image comes in without time. What lies before the first neuron is computed once; its current is
then fed at every time step. Neurons see ``[time, batch, ...]``, all other layers
``[time * batch, ...]``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spikewire.errors import check, unknown
from spikewire.kernels import fusible
from spikewire.nn.fusion import groups, run
from spikewire.nn.neurons import NEURONS, Neuron

SYNAPSES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Dropout(nn.Module):
    """Dropout over ``[time, batch, ...]`` whose mask is drawn once and kept over time."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        check(0 <= p < 1, "dropout", p, "in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x[t] * mask / (1 - p)`` in training, `x` in evaluation."""
        if not self.training or self.p == 0:
            return x
        keep = 1 - self.p
        # half precision would round the draws; bernoulli_ takes twice as long on a CPU
        mask = torch.rand_like(x[0], dtype=torch.float32).lt_(keep).div_(keep)
        return x * mask.to(x.dtype)

    def extra_repr(self) -> str:
        """Name the probability."""
        return f"p={self.p}"


class Spiking(nn.Sequential):
    """Named layers run over `time_steps`, an attribute that may be changed between calls."""

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        *,
        time_steps: int = 8,
        input_shape: tuple[int, ...] | None = None,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.time_steps, self.input_shape, self.classes = time_steps, input_shape, classes

    def forward(self, images: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Map images ``[batch, ...]`` to spikes or currents ``[time, batch, classes]``."""
        check(self.time_steps >= 1, "time_steps", self.time_steps, "at least 1")
        if self.input_shape is not None:
            shape = tuple(images.shape)
            check(shape[1:] == self.input_shape, "images", shape, f"[batch, *{self.input_shape}]")
        x = images.unsqueeze(0)
        for layer, *more in groups(self, fusible(x, self.time_steps)):
            x = run([layer, *more], x, self.time_steps) if more else self.advance(layer, x)
        return x.expand(self.time_steps, *x.shape[1:])

    def advance(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Run one layer on ``[time, batch, ...]``, where time is 1 up to the first neuron."""
        if isinstance(layer, Neuron):
            return layer(x.expand(self.time_steps, *x.shape[1:]))
        if isinstance(layer, Dropout):
            return layer(x)
        return layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


Layers = dict[str, nn.Module]
NeuronFactory = Callable[[], Neuron]


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Fully connected synapses without bias."""
    return nn.Linear(inputs, outputs, bias=False)


def conv(inputs: int, outputs: int, size: int, padding: int) -> nn.Conv2d:
    """Convolutional synapses without bias."""
    return nn.Conv2d(inputs, outputs, size, padding=padding, bias=False)


def mlp(inputs: int, hidden: int, neuron: NeuronFactory, dropout: float) -> Layers:
    """Two fully connected layers: inputs-hidden-LIF-10-LIF."""
    return {
        "flatten": nn.Flatten(),
        "fc1": linear(inputs, hidden),
        "lif1": neuron(),
        "drop1": Dropout(dropout),
        "fc2": linear(hidden, 10),
        "lif2": neuron(),
    }


def cifar10_conv(
    pool: type[nn.MaxPool2d] | type[nn.AvgPool2d], neuron: NeuronFactory, dropout: float
) -> Layers:
    """Six convolutions and two fully connected layers; ten neurons vote for each class."""
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


def lenet5(neuron: NeuronFactory, dropout: float) -> Layers:
    """LeNet-5 with average pooling: 6C5-AP2-16C5-AP2-120-84-10, neurons after every synapse."""
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


class Model(NamedTuple):
    """How to build a network, the images it takes, and its published dropout."""

    layers: Callable[[NeuronFactory, float], Layers]
    input_shape: tuple[int, ...]
    classes: int = 10
    dropout: float = 0.0


MODELS = {
    "mnist-mlp": Model(partial(mlp, 784, 800), (1, 28, 28)),
    "cifar10-conv": Model(partial(cifar10_conv, nn.MaxPool2d), (3, 32, 32), dropout=0.5),
    "cifar10-conv-avg": Model(partial(cifar10_conv, nn.AvgPool2d), (3, 32, 32), dropout=0.5),
    "digits-mlp": Model(partial(mlp, 64, 256), (1, 8, 8)),
    "lenet5": Model(lenet5, (1, 28, 28)),
}
READOUTS = ("spikes", "current")


def build(
    name: str,
    *,
    time_steps: int = 8,
    readout: str = "spikes",
    neuron: str = "lif",
    tau: float = 2.0,
    threshold: float = 1.0,
    surrogate: str = "atan",
    reset: str = "hard",
    dropout: float | None = None,
) -> Spiking:
    """Return the named network; readout "current" leaves out the last neurons.

    `tau` is for "lif" only; `dropout` None takes the network's published value.
    """
    for field, word, allowed in (
        ("model", name, MODELS),
        ("readout", readout, READOUTS),
        ("neuron", neuron, NEURONS),
    ):
        if word not in allowed:
            raise unknown(field, word, allowed)
    check(time_steps >= 1, "time_steps", time_steps, "at least 1")
    model = MODELS[name]
    constants = {"threshold": threshold, "surrogate": surrogate, "reset": reset}
    factory = partial(NEURONS[neuron], **constants, **({"tau": tau} if neuron == "lif" else {}))
    layers = model.layers(factory, model.dropout if dropout is None else dropout)
    if readout == "current":
        del layers[[key for key, layer in layers.items() if isinstance(layer, Neuron)][-1]]
    return Spiking(
        {key.replace("lif", neuron): layer for key, layer in layers.items()},
        time_steps=time_steps,
        input_shape=model.input_shape,
        classes=model.classes,
    )


@contextmanager
def _rehearsal(model: nn.Module) -> Iterator[None]:
    """Use batch statistics and no dropout inside; leave modes and buffers as they were."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        for module, _ in modes:
            module.training = not isinstance(module, Dropout)
        yield
    finally:
        for module, training in modes:
            module.training = training
        for buffer, saved in buffers:
            buffer.copy_(saved)


@torch.no_grad()
def scale_to_fire_(model: Spiking, images: Tensor) -> None:
    """Rescale, in order, every synaptic layer that feeds neurons directly, so that they fire.

    ``W <- W * (threshold - rest) / std(I)``, the std of its current over batch, units and time.
    PyTorch's default leaves fully connected neurons silent; BatchNorm already sets its own scale.
    """
    x = images.unsqueeze(0)
    with _rehearsal(model):
        for (name, layer), (_, neuron) in pairwise(model.named_children()):
            x = model.advance(layer, x)
            if isinstance(layer, SYNAPSES) and isinstance(neuron, Neuron):
                spread = x.std(correction=0)
                check(bool(spread > 0), f"images: std of the current of {name}", 0.0, "above 0")
                scale = (neuron.threshold - neuron.rest) / spread
                for parameter in layer.parameters():
                    parameter.mul_(scale)
                x = x * scale
