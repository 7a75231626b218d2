"""Networks by name, one file per family, and `build`."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

from torch import nn

from spikewire.errors import check, check_word
from spikewire.nn.batchnorm import BATCHNORMS, per_step
from spikewire.nn.layers import Layers, Spiking
from spikewire.nn.models import (
    admm,
    cifar10_conv,
    dpap,
    lenet5,
    lsnn,
    mlp,
    recurrent,
    resnet,
    vgg,
)
from spikewire.nn.neurons import NEURONS, Neuron
from spikewire.nn.recurrent import LeakyIntegrator

__all__ = ["MODELS", "READOUTS", "Model", "build"]


class Model(NamedTuple):
    """An entry of `MODELS`.

    Args:
        layers: function of (neuron factory, dropout probability) that returns the layers by name;
            for a network of any size, of (inputs, hidden, neuron factory, dropout, classes); for a
            scalable one, of (input shape, classes, width, neuron factory, dropout).
        input_shape: shape of the images it takes, without the batch; None: any.
        classes: number of classes; for a network of any size, not used.
        dropout: published dropout probability.
        hidden: hidden neurons of a network of any size, where no other number is given.
        scalable: whether it also takes other shapes of images and numbers of classes than its own,
            and a width, which multiplies its numbers of channels.
        own_neurons: whether its neurons and first weights are its own, and take no settings.
    """

    layers: Callable[..., Layers]
    input_shape: tuple[int, ...] | None
    classes: int = 10
    dropout: float = 0.0
    hidden: int = 0
    scalable: bool = False
    own_neurons: bool = False


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
    "mnist-admm": Model(admm.make_mnist_layers, (1, 28, 28)),
    "cifar10-admm": Model(admm.make_cifar10_layers, (3, 32, 32), dropout=0.5),
    "mlp": Model(mlp.make_layers, None, hidden=256),
    "recurrent": Model(recurrent.make_layers, None, hidden=128),
    "lsnn": Model(partial(lsnn.make_layers, 40, 700.0), None, hidden=220, own_neurons=True),
    "lsnn-short": Model(partial(lsnn.make_layers, 16, 60.0), None, hidden=100, own_neurons=True),
    "vgg11": Model(partial(vgg.make_layers, vgg.VGG11, nn.MaxPool2d), (3, 32, 32), scalable=True),
    "vgg16": Model(partial(vgg.make_layers, vgg.VGG16, nn.MaxPool2d), (3, 32, 32), scalable=True),
    "vggsnn": Model(partial(vgg.make_layers, vgg.VGGSNN, nn.AvgPool2d), (2, 48, 48), scalable=True),
    "dpap": Model(dpap.make_layers, (3, 32, 32), scalable=True),
    "sew-resnet18": Model(resnet.sew_resnet18, (3, 32, 32), scalable=True),
    "sew-resnet18-imagenet": Model(
        resnet.sew_resnet18_imagenet, (3, 224, 224), 1000, scalable=True
    ),
    "resnet19": Model(resnet.resnet19, (3, 32, 32), scalable=True),
}
READOUTS = ("spikes", "current", "leaky")
OF_NEURONS = ("neuron", "tau", "threshold", "surrogate", "reset", "dropout")  # arguments of `build`


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
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    hidden: int = 0,
    width: float = 1.0,
    temporal: bool = False,
    dale: bool = False,
) -> Spiking:
    """Return a network by name, with PyTorch's default initial weights.

    Args:
        name: one of `MODELS`, for example "mnist-mlp" or "cifar10-conv".
        time_steps: how many time steps it runs, at least 1.
        readout: "spikes"; "current" to leave out the last neurons; "leaky" to replace them by
            leaky integrators of the same `tau`, which do not fire.
        neuron: "lif", "if", or "plif", which learns its time constant.
        tau: membrane time constant in time steps, at least 1; not used by "if", and the first
            value, above 1, for "plif".
        threshold: membrane potential at which a neuron fires, above 0.
        surrogate: "atan", "sigmoid", "triangle" or "rectangle": the gradient of a spike.
        reset: "hard" (to 0) or "soft" (lowered by `threshold`).
        dropout: probability in [0, 1); None: the network's published value.
        batchnorm: "joint": statistics over all time steps; "per-step": each time step its own, as
            in a network that runs step by step.
        input_shape: shape of the input, for "mlp" and "recurrent", which take any, and for the
            scalable networks (VGG, ResNet, DPAP) if it is not their own.
        classes: number of classes, at least 2, for the same networks.
        hidden: hidden neurons of "mlp" and "recurrent"; 0: their own number.
        width: factor on the numbers of channels of the scalable networks, in (0, 16].
        temporal: whether the input varies over time, ``[time, batch, *input_shape]``.
        dale: whether all first weights of an input or neuron of an LSNN have one sign; for methods
            that keep signs. Other networks start with random signs in any case.

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
    check(classes is None or classes >= 2, "classes", classes, "2 or more")
    check(0 < width <= 16, "width", width, "in (0, 16]")
    check(width == 1 or model.scalable, "width", width, f"1 for {name!r}, which has its own sizes")
    factory = partial(NEURONS[neuron], **constants, **({} if neuron == "if" else {"tau": tau}))
    given = dict(zip(OF_NEURONS, (neuron, tau, threshold, surrogate, reset, dropout), strict=True))
    dropout = model.dropout if dropout is None else dropout
    if model.input_shape is None:
        check(input_shape is not None, "input_shape", None, f"given for {name!r}")
        check(classes is not None, "classes", None, f"given for {name!r}")
        size = prod(input_shape or ())
        make = partial(model.layers, dale=dale) if model.own_neurons else model.layers
        layers = make(size, hidden or model.hidden, factory, dropout, classes)
    else:
        check(not hidden, "hidden", hidden, f"0 for {name!r}, which has its own number")
        shape = (input_shape if model.scalable else None) or model.input_shape
        classes = (classes if model.scalable else None) or model.classes
        sizes = (shape, classes, width) if model.scalable else ()
        input_shape, layers = shape, model.layers(*sizes, factory, dropout)
    for key, value in given.items() if model.own_neurons else ():
        usual = (build.__kwdefaults__ or {})[key]
        check(value == usual, key, value, f"{usual!r}, unused: {name!r} has neurons of its own")
    if batchnorm == "per-step":
        layers = {key: per_step(layer) for key, layer in layers.items()}
    return Spiking(
        {key.replace("lif", neuron): x for key, x in _read_out(layers, readout, tau).items()},
        time_steps=time_steps,
        input_shape=tuple(input_shape or ()),
        classes=classes,
        temporal=temporal,
    )


def _read_out(layers: Layers, readout: str, tau: float) -> Layers:
    """Return the layers with the last neurons left out, or replaced, as the readout needs it."""
    if any(isinstance(layer, LeakyIntegrator) for layer in layers.values()):
        check(readout == "leaky", "readout", readout, "leaky, the only one of this network")
        return layers
    last = [key for key, layer in layers.items() if isinstance(layer, Neuron)][-1]
    if readout == "leaky":
        return {("leaky" if k == last else k): v for k, v in layers.items()} | {
            "leaky": LeakyIntegrator(tau)
        }
    return {key: x for key, x in layers.items() if key != last or readout == "spikes"}
