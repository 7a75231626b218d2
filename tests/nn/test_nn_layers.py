"""Layers over time: the static path of an image, a network by hand, and dropout."""

import pytest
import torch
from torch import Tensor, nn

from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.layers import Dropout, Spiking
from spikewire.nn.models import build
from spikewire.nn.neurons import LIF, Neuron, lif


def static_twin(model: Spiking, x: Tensor) -> Tensor:
    """Feed the repeated image to every layer in every time step."""
    x = x.repeat(model.time_steps, *[1] * x.ndim).contiguous()
    for layer in model:
        x = layer(x) if isinstance(layer, Neuron | Dropout) else torch.stack([layer(s) for s in x])
    return x


@pytest.mark.parametrize("name", ["digits-mlp", "lenet5", "mnist-mlp"])
def test_static_path_equals_the_repeated_image(name):
    torch.manual_seed(1)
    model = build(name, time_steps=4, readout="current").double()
    assert model.input_shape is not None
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(6, *model.input_shape, generator=generator).double()
    scale_to_fire_(model, x)
    torch.testing.assert_close(model(x), static_twin(model, x), rtol=1e-10, atol=1e-10)
    loss, twin = model(x).square().sum(), static_twin(model, x).square().sum()
    parameters = list(model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(twin, parameters), strict=True
    ):
        assert ours.abs().sum() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


def test_static_path_with_batchnorm_and_pooling_computes_the_first_layer_once():
    torch.manual_seed(2)
    layers = {
        "conv1": nn.Conv2d(1, 4, 3, padding=1, bias=False),
        "bn1": nn.BatchNorm2d(4),
        "lif1": LIF(),
        "pool1": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(64, 3, bias=False),
    }
    model = Spiking(layers, time_steps=5).double().eval()
    seen = []
    for name in ("conv1", "fc1"):
        model.get_submodule(name).register_forward_hook(lambda _m, i, _o: seen.append(len(i[0])))
    x = 4 * torch.rand(3, 1, 8, 8, dtype=torch.float64)
    out = model(x)
    assert seen == [3, 15]
    assert out.abs().sum() > 0
    torch.testing.assert_close(out, static_twin(model, x), rtol=1e-10, atol=1e-10)


def test_two_neurons_by_hand():
    model = Spiking(
        {
            "fc1": nn.Linear(1, 1, bias=False),
            "lif1": LIF(),
            "fc2": nn.Linear(1, 1, bias=False),
            "lif2": LIF(threshold=0.7),
        },
        time_steps=6,
    )
    with torch.no_grad():
        model.get_submodule("fc1").weight.fill_(1.5)
        model.get_submodule("fc2").weight.fill_(1.0)
    # m1 = .75, 1.125 (fires), .75, ...; m2 = 0, .5, .25, .625, .3125, .65625: below .7 throughout
    out = model(torch.ones(1, 1))
    assert lif(torch.full((6,), 1.5)).tolist() == [0, 1, 0, 1, 0, 1]
    assert out.flatten().tolist() == [0, 0, 0, 0, 0, 0]
    model.get_submodule("lif2").threshold = 0.625
    assert model(torch.ones(1, 1)).flatten().tolist() == [0, 0, 0, 1, 0, 0]


def test_dropout_keeps_its_mask_over_time_and_draws_one_per_call():
    torch.manual_seed(0)
    drop, x = Dropout(0.25), torch.ones(4, 50, 40)
    first, second = drop(x), drop(x)
    assert torch.equal(first, first[:1].expand_as(first))
    assert not torch.equal(first, second)
    torch.testing.assert_close(torch.unique(first), torch.tensor([0, 1 / 0.75]))
    assert abs((first == 0).float().mean().item() - 0.25) < 0.05
    assert torch.equal(drop.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    torch.manual_seed(0)
    assert torch.equal(drop.train()(x), first)
