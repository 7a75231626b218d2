"""Networks by name, one file per family, and `build`."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import nn

from spikewire.errors import check, check_word
from spikewire.nn.batchnorm import BATCHNORMS, per_step
from spikewire.nn.layers import Layers, NeuronFactory, Spiking
from spikewire.nn.models import cifar10_conv, lenet5, mlp
from spikewire.nn.neurons import NEURONS, Neuron

__all__ = ["MODELS", "READOUTS", "Model", "build"]


class Model(NamedTuple):
    """An entry of `MODELS`.

    Args:
        layers: function of (neuron factory, dropout probability) that returns the layers by name.
        input_shape: shape of the images it takes, without the batch.
        classes: number of classes.
        dropout: published dropout probability.
    """

    layers: Callable[[NeuronFactory, float], Layers]
    input_shape: tuple[int, ...]
    classes: int = 10
    dropout: float = 0.0


MODELS = {
    "mnist-mlp": Model(partial(mlp.make_layers, 784, 800), (1, 28, 28)),
    "cifar10-conv": Model(
        partial(cifar10_conv.make_layers, nn.MaxPool2d), (3, 32, 32), dropout=0.5
    ),
    "cifar10-conv-avg": Model(
        partial(cifar10_conv.make_layers, nn.AvgPool2d), (3, 32, 32), dropout=0.5
    ),
    "digits-mlp": Model(partial(mlp.make_layers, 64, 256), (1, 8, 8)),
    "lenet5": Model(lenet5.make_layers, (1, 28, 28)),
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
    batchnorm: str = "joint",
) -> Spiking:
    """Return a network by name, with PyTorch's default initial weights.

    Args:
        name: one of `MODELS`, for example "mnist-mlp" or "cifar10-conv".
        time_steps: how many time steps it runs, at least 1.
        readout: "spikes", or "current" to leave out the last neurons.
        neuron: "lif" or "if".
        tau: membrane time constant in time steps, at least 1; used by "lif" only.
        threshold: membrane potential at which a neuron fires, above 0.
        surrogate: "atan", "sigmoid" or "triangle": the gradient of a spike.
        reset: "hard" (to 0) or "soft" (lowered by `threshold`).
        dropout: probability in [0, 1); None: the network's published value.
        batchnorm: "joint": statistics over all time steps; "per-step": each time step its own, as
            in a network that runs step by step.

    Returns:
        The network; it maps images ``[batch, ...]`` to ``[time, batch, classes]``.

    Raises:
        SpikewireError: a name is unknown or a number is out of its range.

    Example:
        >>> model = build("mnist-mlp", time_steps=4)
        >>> model(torch.rand(2, 1, 28, 28)).shape
        torch.Size([4, 2, 10])
    """
    check_word("model", name, MODELS)
    check_word("readout", readout, READOUTS)
    check_word("neuron", neuron, NEURONS)
    check_word("batchnorm", batchnorm, BATCHNORMS)
    check(time_steps >= 1, "time_steps", time_steps, "at least 1")
    model = MODELS[name]
    constants = {"threshold": threshold, "surrogate": surrogate, "reset": reset}
    factory = partial(NEURONS[neuron], **constants, **({"tau": tau} if neuron == "lif" else {}))
    layers = model.layers(factory, model.dropout if dropout is None else dropout)
    if batchnorm == "per-step":
        layers = {key: per_step(layer) for key, layer in layers.items()}
    if readout == "current":
        del layers[[key for key, layer in layers.items() if isinstance(layer, Neuron)][-1]]
    return Spiking(
        {key.replace("lif", neuron): layer for key, layer in layers.items()},
        time_steps=time_steps,
        input_shape=model.input_shape,
        classes=model.classes,
    )
