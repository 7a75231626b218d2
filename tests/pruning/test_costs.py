"""How often a weight is used, by the layer's own arithmetic and seen in one forward pass."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from spikewire.nn.models import build
from spikewire.pruning.costs import uses_per_weight
from spikewire.pruning.layers import find_layers
from spikewire.pruning.uses import UseCounter


def counted(model, *shape):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layers, _ = find_layers(model, [optimizer], lambda name, module: True)
    uses = UseCounter(SimpleNamespace(model=model, layers=layers))
    if shape:
        model(torch.randn(shape))
    uses.update_costs_(layers)
    return uses, {layer.name: layer.state["cost"].item() for layer in layers}, layers


def test_a_convolution_is_used_at_every_position_of_its_output():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, stride=2), nn.Flatten())
    model.append(nn.Linear(4 * 2 * 2, 10))
    _, cost, layers = counted(model, 5, 2, 8, 8)
    ratio = {name: value / cost["3.weight"] for name, value in cost.items()}
    assert ratio == pytest.approx({"0.weight": 36, "1.weight": 4, "3.weight": 1}, rel=1e-5)
    sizes = {layer.name: layer.weight.numel() for layer in layers}
    mean = sum(cost[name] * size for name, size in sizes.items()) / sum(sizes.values())
    assert mean == pytest.approx(1.0, rel=1e-5)


def test_one_dimension_and_a_transposed_convolution_that_reads_each_input_once():
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ConvTranspose1d(2, 1, 4, stride=3))
    _, cost, _ = counted(model, 1, 1, 12)
    assert cost["0.weight"] == pytest.approx(cost["1.weight"])  # both at 10 positions


@pytest.mark.parametrize("temporal", [False, True])
def test_a_network_that_knows_the_size_of_its_images_is_counted_before_it_runs(temporal):
    model = build("vgg11", width=0.02, time_steps=2, input_shape=(3, 32, 32), temporal=temporal)
    uses, cost, _ = counted(model)
    assert not uses.hooks.handles
    assert cost["conv1.weight"] / cost["fc1.weight"] == pytest.approx(32 * 32)


def test_hooks_are_gone_after_one_look_and_a_layer_never_seen_counts_once():
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Linear(9, 1))
    uses, cost, layers = counted(model)
    assert list(cost.values()) == [1.0, 1.0], "nothing has been seen yet"
    model[0](torch.randn(1, 1, 4, 4))
    uses.update_costs_(layers)
    assert [layer.state["cost"].item() for layer in layers] == pytest.approx([1.6, 0.4])
    assert not uses.hooks.handles
    assert not any(module._forward_hooks for module in model)
    model[0](torch.randn(1, 1, 8, 8))
    uses.update_costs_(layers)
    assert layers[0].state["cost"].item() == pytest.approx(1.6)


LAYERS = {
    "linear": (nn.Linear(5, 3, bias=False), (5,)),
    "conv": (nn.Conv2d(2, 3, 3, padding=1, bias=False), (2, 5, 4)),
    "no padding": (nn.Conv2d(2, 3, (2, 3), bias=False), (2, 5, 4)),
    "stride": (nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), (2, 7, 6)),
    "dilation": (nn.Conv2d(2, 3, 3, padding=2, dilation=2, stride=3, bias=False), (2, 9, 8)),
    "more padding than image": (nn.Conv2d(1, 1, 5, padding=2, bias=False), (1, 1, 2)),
    "one dimension": (nn.Conv1d(2, 3, 4, padding=1, stride=2, bias=False), (2, 9)),
    "three dimensions": (nn.Conv3d(1, 2, 2, padding=1, bias=False), (1, 3, 2, 4)),
    "groups": (nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False), (4, 4, 4)),
    "same, even kernel": (nn.Conv1d(2, 3, 4, padding="same", bias=False), (2, 7)),
    "same": (nn.Conv2d(2, 3, 3, padding="same", dilation=2, bias=False), (2, 6, 5)),
    "circular": (nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular", bias=False), (2, 6)),
    "transposed": (nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, bias=False), (2, 4, 3)),
    "transposed, larger": (
        nn.ConvTranspose1d(2, 3, 4, stride=3, padding=2, output_padding=1, bias=False),
        (2, 5),
    ),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", LAYERS)
def test_uses_are_the_derivative_of_the_layers_sum_by_each_weight(name):
    """A layer's output summed up is linear in the weight: sum over uses of weight * activity."""
    layer, shape = LAYERS[name]
    layer = layer.double()
    generator = torch.Generator().manual_seed(0)
    activity = torch.randint(0, 9, shape, generator=generator).double()
    layer.zero_grad()
    layer(activity.unsqueeze(0)).sum().backward()
    uses = uses_per_weight(layer, activity)
    assert torch.equal(uses.expand_as(layer.weight), layer.weight.grad)
    if len(shape) > 1:  # one channel stands for all
        layer.zero_grad()
        layer(torch.ones(1, *shape, dtype=torch.float64)).sum().backward()
        uses = uses_per_weight(layer, torch.ones(1, *shape[1:], dtype=torch.int64))
        assert uses.shape == (1, 1, *layer.weight.shape[2:])
        assert torch.equal(uses.expand_as(layer.weight).double(), layer.weight.grad)
