"""A whole network on the kernels against the same network in plain torch."""

import copy

import pytest
import torch
from comparison import DEVICE, gradients, normal, relative_error
from torch import Tensor, nn

from spikewire import kernels
from spikewire.nn.layers import Dropout, Spiking, conv, linear
from spikewire.nn.neurons import LIF


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
