"""How often a weight is used, seen in one forward pass."""

import pytest
import torch
from torch import nn

from spikewire.pruning.costs import UseCounter
from spikewire.pruning.layers import find_layers


def counted(model, *shape):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layers, _ = find_layers(model, [optimizer], lambda name, module: True)
    for layer in layers:
        layer.state["cost"] = torch.ones(())
    uses = UseCounter(model, layers)
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


def test_all_calls_of_a_pass_count_as_in_a_loop_over_time():
    model = nn.ModuleList([nn.Linear(10, 1, bias=False), nn.Linear(10, 1, bias=False)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layers, _ = find_layers(model, [optimizer], lambda name, module: True)
    for layer in layers:
        layer.state["cost"] = torch.ones(())
    uses = UseCounter(model, layers, lambda: True)
    for firing in (9, 9, 9, 0):
        model[0](torch.tensor([1.0] * firing + [0.0] * (10 - firing)))
        model[1](input=torch.tensor([1.0] * 3 + [0.0] * 7))
    uses.update_costs_(layers)
    first, second = (layer.state["cost"].item() for layer in layers)
    assert first / second == pytest.approx((2.7 + 1e-3) / 4 / 0.3, rel=1e-5)
    uses.remove()


def test_hooks_are_gone_after_one_look_and_a_layer_never_seen_counts_once():
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Linear(9, 1))
    uses, cost, layers = counted(model)
    assert list(cost.values()) == [1.0, 1.0], "nothing has been seen yet"
    model[0](torch.randn(1, 1, 4, 4))
    uses.update_costs_(layers)
    assert [layer.state["cost"].item() for layer in layers] == pytest.approx([1.6, 0.4])
    assert not uses.hooks
    assert not any(module._forward_hooks for module in model)
    model[0](torch.randn(1, 1, 8, 8))
    uses.update_costs_(layers)
    assert layers[0].state["cost"].item() == pytest.approx(1.6)


def test_only_inputs_that_fire_count_in_training_passes_that_are_counted():
    model, counting = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layers, _ = find_layers(model, [optimizer], lambda name, module: True)
    for layer in layers:
        layer.state["cost"] = torch.ones(())
    uses = UseCounter(model, layers, lambda: bool(counting))
    image = torch.zeros(1, 1, 4, 4)
    image[..., :2, :] = 1.0  # half of the inputs fire
    model[0].weight.data.fill_(1.0)
    model[0].bias.data.copy_(torch.tensor([0.0, -100.0]))
    relu = nn.Sequential(model[0], nn.ReLU(), model[1], model[2])
    relu(torch.ones(1, 1, 4, 4))
    uses.update_costs_(layers)
    assert [layer.state["cost"].item() for layer in layers] == [1.0, 1.0], "not counting yet"
    counting.append(True)
    relu.eval()(torch.ones(1, 1, 4, 4))
    assert not uses.calls, "not a training pass"
    relu.train()(image)
    uses.update_costs_(layers)
    assert uses.hooks, "goes on watching"
    conv, linear = (layer.state["cost"].item() for layer in layers)
    assert conv / linear == pytest.approx(4 * 0.5 / 0.5, rel=1e-6)
    assert conv * 18 + linear * 24 == pytest.approx(18 + 24, rel=1e-6)
    relu(torch.zeros(1, 1, 4, 4))
    uses.update_costs_(layers)
    conv, linear = (layer.state["cost"].item() for layer in layers)
    assert conv / linear == pytest.approx(4, rel=1e-6), "the silent cost a little too"
    uses.remove()
