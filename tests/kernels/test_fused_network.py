"""A whole network on the kernels against the same network in plain torch."""

import copy

import pytest
import torch
from comparison import DEVICE, Driven, gradients, normal, relative_error
from refusal import refused
from torch import Tensor, nn

from spikewire import build, kernels
from spikewire.nn import sequence
from spikewire.nn.layers import Dropout, Spiking, conv, linear
from spikewire.nn.neurons import IF, LIF, PLIF
from spikewire.nn.sequence import Residual


def network() -> Spiking:
    """Return a small version of the CIFAR-10 network, initialised so that it fires."""
    layers: dict[str, nn.Module] = {}
    for i, inputs in enumerate((3, 8, 8), start=1):
        layers |= {f"conv{i}": conv(inputs, 8, 3, 1), f"bn{i}": nn.BatchNorm2d(8)}
        layers[f"lif{i}"] = LIF()
        if i != 2:
            layers[f"pool{i}"] = nn.MaxPool2d(2)
    layers |= {"flatten": nn.Flatten(), "drop1": Dropout(0.0)}
    layers |= {"fc1": linear(32, 20), "lif4": LIF()}
    torch.manual_seed(0)
    model = Spiking({**layers, "vote": nn.AvgPool1d(10)}, time_steps=4)
    for name, parameter in model.named_parameters():
        if name.startswith(("bn", "fc")):
            nn.init.normal_(parameter, 1.0, 0.5)
    return model.to(DEVICE, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def residual_network() -> Spiking:
    """Return a network whose shortcuts add spikes, with a stride, and currents."""
    torch.manual_seed(0)
    branch = {"conv": conv(4, 6, 3, 1, stride=2), "bn": nn.BatchNorm2d(6), "lif": LIF()}
    shortcut = {"conv": conv(4, 6, 1, 0, stride=2), "bn": nn.BatchNorm2d(6), "lif": IF()}
    layers = {"conv1": conv(3, 4, 3, 1), "bn1": nn.BatchNorm2d(4), "lif1": LIF(reset="soft")}
    layers["spikes"] = Residual(branch, shortcut)
    layers["identity"] = Residual({"conv": conv(6, 6, 3, 1), "bn": nn.BatchNorm2d(6), "lif": LIF()})
    currents = {"conv": conv(6, 6, 3, 1), "bn": nn.BatchNorm2d(6)}
    layers["currents"] = Residual(currents, neuron=PLIF(1.5))
    layers |= {"flatten": nn.Flatten(), "fc1": linear(96, 5)}
    model = Spiking(layers, time_steps=3)
    for name, parameter in model.named_parameters():
        if "bn" in name or name.startswith("fc"):
            nn.init.normal_(parameter, 0.8, 0.4)
    return model.to(DEVICE, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_network_with_shortcuts_is_the_same_on_both_paths(training, monkeypatch):
    model = residual_network().train(training)
    twin, images = copy.deepcopy(model), normal(2, 3, 8, 8)
    added, run = [], sequence.run_group
    monkeypatch.setattr(
        sequence, "run_group", lambda *args, **more: added.append([*more]) or run(*args, **more)
    )
    output, grads = train_once(model, images, "triton")
    assert added == [[], [], ["residual"], ["residual"], ["add"]]
    expected, truth = train_once(twin, images, "torch")
    assert len(added) == 5
    assert expected.std() > 0
    assert relative_error(output, expected) < 1e-5
    for (name, _), a, b in zip(model.named_parameters(), grads, truth, strict=True):
        assert relative_error(a, b) < 1e-4, name
    for (name, a), b in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert relative_error(a, b) < 1e-5, name


def train_once(model, images: Tensor, path: str) -> tuple[Tensor, list[Tensor]]:
    kernels.use(path)
    output = model(images)
    return output, gradients(output, normal(*output.shape, seed=4), *model.parameters())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_network_is_the_same_on_both_paths(training, compiled):
    model = network().train(training)
    twin, images = copy.deepcopy(model), normal(3, 3, 8, 8)
    forward = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    output, grads = train_once(forward, images, "triton")
    expected, truth = train_once(twin, images, "torch")
    assert output.any()
    assert torch.equal(output, expected)
    for (name, _), a, b in zip(model.named_parameters(), grads, truth, strict=True):
        assert b.any(), name
        assert relative_error(a, b) < 1e-4, name
    for (name, a), b in zip(model.named_buffers(), twin.buffers(), strict=True):
        assert relative_error(a, b) < 1e-5, name
    assert model.state_dict().keys() == twin.state_dict().keys()


def test_network_under_autocast():
    model, images = network(), normal(3, 3, 8, 8)
    with torch.autocast(DEVICE, torch.bfloat16):
        output, grads = train_once(model, images, "triton")
    assert output.dtype == torch.bfloat16
    assert all(g.dtype == torch.float32 and g.isfinite().all() and g.any() for g in grads)


def test_the_hook_of_a_layer_runs():
    model, seen = network(), []
    handle = model.lif1.register_forward_hook(lambda _m, _i, out: seen.append(out.shape))
    model(normal(3, 3, 8, 8))
    assert seen == [(4, 3, 8, 8, 8)]
    handle.remove()
    model(normal(3, 3, 8, 8))
    assert len(seen) == 1


@pytest.mark.parametrize("channels", [6, 10])
def test_batchnorm_of_other_channels_is_refused(channels):
    """The kernels would read beyond its parameters, or leave some of them out."""
    model = network().eval()
    model.bn2 = nn.BatchNorm2d(channels).to(DEVICE)
    refused(lambda: model(normal(3, 3, 8, 8)), "channels", "8", f"{channels}, those of BatchNorm")


def test_neurons_with_a_forward_of_their_own_run_it():
    model = network()
    model.lif1 = Driven()
    twin, images = copy.deepcopy(model), normal(3, 3, 8, 8)
    output, grads = train_once(model, images, "triton")
    expected, truth = train_once(twin, images, "torch")
    assert torch.equal(output, expected)
    for a, b in zip(grads, truth, strict=True):
        assert relative_error(a, b) < 1e-4


def run_twin(group, x: Tensor, steps: int, residual: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """Return the output of a group in float64 and plain torch, and the leaves of its gradients."""
    norm, neuron, *pool = [copy.deepcopy(layer).double() for layer in group]
    leaves = [x.detach().double().requires_grad_(), norm.weight, norm.bias, *neuron.parameters()]
    current = norm(leaves[0].flatten(0, 1)).unflatten(0, x.shape[:2])
    spikes = neuron(current.expand(steps, *current.shape[1:]))
    if pool:
        spikes = pool[0](spikes.flatten(0, 1)).unflatten(0, spikes.shape[:2])
    return spikes if residual is None else spikes + residual.double(), leaves


@pytest.mark.parametrize(
    ("name", "neuron"), [("vgg16", "if"), ("sew-resnet18", "if"), ("dpap", "plif"), ("dpap", "if")]
)
def test_every_group_of_a_published_network_in_bf16(name, neuron, monkeypatch):
    """On the inputs and gradients that it gets in a training step; only results are rounded."""
    torch.manual_seed(0)
    sizes = {"width": 1 / 24, "time_steps": 2, "threshold": 0.5, "readout": "current"}
    model = build(name, neuron=neuron, **sizes).to(DEVICE)
    calls, inner = [], sequence.run_group

    def run_group(group, x, steps, *, residual=None):
        spikes = inner(group, x, steps, residual=residual)
        x.retain_grad()
        spikes.retain_grad()
        calls.append((group, x, steps, residual, spikes))
        return spikes

    monkeypatch.setattr(sequence, "run_group", run_group)
    with torch.autocast(DEVICE, torch.bfloat16):
        output = model(normal(2, 3, 32, 32))
    output.backward(normal(*output.shape, seed=4, dtype=output.dtype))
    assert len(calls) == {"vgg16": 13, "sew-resnet18": 20, "dpap": 6}[name]
    kernels.use("torch")
    for group, x, steps, residual, spikes in calls:
        expected, leaves = run_twin(group, x, steps, residual)
        assert (spikes != expected).float().mean() < 1e-3  # within rounding of the threshold
        assert spikes.any()
        truth = gradients(expected, spikes.grad, *leaves)
        found = [x.grad, *(p.grad for layer in group for p in layer.parameters())]
        for a, b in zip(found, truth, strict=True):
            assert relative_error(a, b) < 5e-3
