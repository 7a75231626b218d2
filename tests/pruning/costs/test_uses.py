"""How often a weight is used, seen in one forward pass."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from spikewire.nn.models import build
from spikewire.pruning.costs.uses import UseCounter
from spikewire.pruning.layers import find_layers


def counted(model, *shape):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layers, _ = find_layers(model, [optimizer], lambda name, module: True)
    uses = UseCounter(SimpleNamespace(model=model, layers=layers, memory={}))
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
