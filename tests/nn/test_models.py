"""The networks by name: their sizes, layers and options."""

import pytest
import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.layers import Spiking
from spikewire.nn.models import MODELS, build
from spikewire.nn.neurons import Neuron

PRUNABLE = {
    "mnist-mlp": 784 * 800 + 800 * 10,
    "cifar10-conv": 3 * 256 * 9 + 5 * 256 * 256 * 9 + 16384 * 2048 + 2048 * 100,
    "digits-mlp": 64 * 256 + 256 * 10,
    "lenet5": 6 * 25 + 6 * 16 * 25 + 400 * 120 + 120 * 84 + 84 * 10,
}
PRUNABLE["mlp"] = 18 * 256 + 256 * 10
PRUNABLE["recurrent"] = 18 * 128 + 128 * 128 + 128 * 10
PRUNABLE["mnist-admm"] = 9 * 32 + 9 * 32 * 32 + 32 * 49 * 128 + 128 * 10
PRUNABLE["cifar10-admm"] = (
    9 * (3 * 128 + 128 * 256 + 256**2 + 256 * 512 + 512**2 + 512 * 1024 + 1024 * 2048)
    + 2048 * 16 * 1024 + 1024 * 512 + 512 * 100
)  # fmt: skip
ANY_SIZE = ("mlp", "recurrent")
PRUNABLE["cifar10-conv-avg"] = PRUNABLE["cifar10-conv"]
SCALABLE = {name for name, model in MODELS.items() if model.scalable}  # in test_networks.py
LSNN = {"lsnn", "lsnn-short"}  # tests/nn/test_adaptive.py
LARGE = {"cifar10-conv", "cifar10-conv-avg", "cifar10-admm"}
SMALL = sorted(set(MODELS) - LARGE - SCALABLE - LSNN)


def make(name: str, **options) -> Spiking:
    sizes = {"input_shape": (2, 3, 3), "classes": 10} if name in ANY_SIZE else {}
    return build(name, **sizes, **options)


def images(model: Spiking, batch: int = 6, seed: int = 0) -> Tensor:
    assert model.input_shape is not None
    return torch.rand(batch, *model.input_shape, generator=torch.Generator().manual_seed(seed))


def test_every_model_is_counted():
    assert set(PRUNABLE) == set(MODELS) - SCALABLE - LSNN
    assert round(PRUNABLE["cifar10-conv"] / 1e6, 1) == 36.7


@pytest.mark.parametrize("name", sorted(PRUNABLE))
def test_counts_and_names(name):
    with torch.device("meta"):
        model = make(name)
    synapses = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert sum(m.weight.numel() for m in synapses) == PRUNABLE[name]
    assert all((m.bias is not None) == (name == "mnist-admm") for m in synapses)
    keys = {key for key in model.state_dict() if not (key.startswith("bn") or "bias" in key)}
    names = {f"{n}.weight" for n, _ in model.named_children() if n[:2] in ("fc", "co")}
    assert keys == names | ({"rec1.synapses.weight"} if name == "recurrent" else set())


def test_cifar10_layers_are_the_papers():
    with torch.device("meta"):
        model = build("cifar10-conv")
    block = lambda *numbers: [f"{kind}{i}" for i in numbers for kind in ("conv", "bn", "lif")]  # noqa: E731
    head = ["flatten", "drop1", "fc1", "lif7", "fc2", "lif8", "vote"]
    expected = [*block(1, 2, 3), "pool1", *block(4, 5, 6), "pool2", *head]
    assert [name for name, _ in model.named_children()] == expected
    assert model.get_submodule("drop1").p == 0.5


@pytest.mark.parametrize("readout", ["spikes", "current", "leaky"])
@pytest.mark.parametrize("name", SMALL)
def test_output_shape(name, readout):
    torch.manual_seed(0)
    model = make(name, time_steps=3, readout=readout, neuron="if")
    scale_to_fire_(model, images(model))
    out = model(images(model))
    assert out.shape == (3, 6, model.classes)
    assert (torch.unique(out).tolist() == [0, 1]) == (readout == "spikes")
    model.time_steps = 5
    assert model(images(model)).shape == (5, 6, 10)


def test_cifar10_output_shape():
    model = build("cifar10-conv", time_steps=1)
    out = model.eval()(images(model, batch=1))
    assert out.shape == (1, 1, 10)
    assert ((out * 10).round() == out * 10).all()  # ten neurons vote


# Dynamo itself makes an instance of the autograd function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_model_trains_under_compile():
    torch.manual_seed(0)
    model = build("digits-mlp", time_steps=3, dropout=0.2)
    x = images(model)
    scale_to_fire_(model, x)
    compiled = torch.compile(model.eval(), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))
    compiled(x).mean().backward()
    assert model.get_submodule("fc1").weight.grad.abs().sum() > 0


def test_options_reach_the_layers():
    model = build("lenet5", tau=3.0, threshold=0.5, surrogate="triangle", dropout=0.1)
    neurons = [m for m in model if isinstance(m, Neuron)]
    assert [(n.tau, n.threshold, n.surrogate) for n in neurons] == [(3.0, 0.5, "triangle")] * 5
    assert model.get_submodule("drop1").p == 0.1
    assert [n for n, _ in build("mnist-mlp", neuron="if").named_children()][2] == "if1"
    assert len(model[:3]) == 3


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("mnist-mpl", {}, "model: unknown 'mnist-mpl'; did you mean 'mnist-mlp'?"),
        ("lenet5", {"readout": "spike"}, "readout: unknown 'spike'; did you mean 'spikes'?"),
        ("lenet5", {"neuron": "lfi"}, "neuron: unknown 'lfi'; did you mean 'lif'?"),
        ("lenet5", {"surrogate": "atam"}, "surrogate: unknown 'atam'; did you mean 'atan'?"),
        ("lenet5", {"time_steps": 0}, "time_steps: 0"),
        ("lenet5", {"dropout": 1.0}, "dropout: 1.0"),
        ("lenet5", {"tau": 0.1}, "tau: 0.1"),
        ("lenet5", {"hidden": 7}, "hidden: 7"),
        ("lenet5", {"width": 0.5}, "width: 0.5"),
        ("lenet5", {"neuron": "plif", "tau": 1.0}, "tau: 1.0"),
        ("vgg16", {"input_shape": (1, 28, 28)}, "images: .* 32 x 32 or larger"),
        ("recurrent", {"input_shape": (4,), "classes": 2, "neuron": "plif"}, "neuron: 'PLIF'"),
        ("mlp", {}, "input_shape: None"),
        ("mlp", {"input_shape": (4,), "classes": 1}, "classes: 1"),
    ],
)
def test_a_wrong_option_is_one_line(name, options, text):
    with pytest.raises(SpikewireError, match=text):
        build(name, **options)


def test_networks_of_any_size_take_shape_classes_and_hidden_neurons():
    model = build("recurrent", input_shape=(12,), classes=7, hidden=40, temporal=True)
    assert model.get_submodule("rec1.synapses").weight.shape == (40, 40)
    assert model(torch.rand(5, 2, 12)).shape == (5, 2, 7)  # the time steps are those of the input
    with pytest.raises(SpikewireError, match=r"images: .* \[time, batch, 12\]"):
        model(torch.rand(5, 2, 11))


def test_a_wrong_image_is_one_line():
    with pytest.raises(SpikewireError, match=r"images: \(2, 3, 32, 32\) .* \[batch, 1, 28, 28\]$"):
        build("lenet5")(torch.zeros(2, 3, 32, 32))
