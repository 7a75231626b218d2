"""Targets in units: exact in what `measure` counts, at any length, across a resume."""

import copy

import pytest
import torch
from refusal import refused
from torch import nn

from spikewire import Budget, build, measure
from spikewire.nn.layers import Spiking, conv, linear
from spikewire.nn.neurons import LIF


def small(input_shape=(2, 8, 8)):
    """Two convolutions, one with a stride, and two linear layers: costs from 1 to 64."""
    torch.manual_seed(0)
    layers = {
        "conv1": conv(2, 6, 3, padding=1),
        "lif1": LIF(),
        "conv2": nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False),
        "lif2": LIF(),
        "flatten": nn.Flatten(),
        "fc1": linear(128, 40),
        "lif3": LIF(),
        "fc2": linear(40, 10),
    }
    return Spiking(layers, time_steps=2, input_shape=input_shape, classes=10)


def images(batch=4):
    return torch.rand(batch, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def train(model, optimizer, steps, start=0):
    for step in range(start, start + steps):
        optimizer.zero_grad()
        x = images() * (1 + step % 3)
        (model(x).mean(0) - torch.eye(10)[:4]).square().mean().backward()
        optimizer.step()


def synapses(model, masks):
    """Return how many synapses exist, as `measure` counts them."""
    return sum(layer.synapses for layer in measure(model, images(1), masks).layers)


def dense(model, masks):
    """Return how many synapses the dense network has."""
    return synapses(model, {name: torch.ones_like(mask) for name, mask in masks.items()})


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("target", [0.5, 0.1, 0.03])
def test_the_fraction_of_synapses_is_exact(target, scope, known):
    model = small((2, 8, 8) if known else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    method = Budget(synapses=target, ramp=0.5, every=2, scope=scope)
    pruner = method.attach(model, optimizer, total_steps=12)
    hooked = any(module._forward_hooks for module in model.modules())
    assert hooked is not known, "a network of known input size needs no hooks: graphs stay possible"
    train(model, optimizer, 12)
    assert not any(module._forward_hooks for module in model.modules())
    masks = pruner.finish()
    total = dense(model, masks)
    spent = synapses(model, masks)
    layers = len(masks) if scope == "layer" else 1
    assert spent <= target * total + 0.5 * layers
    if scope == "global":
        assert spent > target * total - 1, "linear weights of cost 1 are absent, so none would fit"
    else:
        assert spent == pytest.approx(target * total, abs=64 + 16 + 2)


def test_the_schedule_acts_on_the_fraction_of_synapses():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    pruner = Budget(synapses=0.1, ramp=1.0, every=1).attach(model, optimizer, total_steps=8)
    total = dense(model, pruner.masks())
    for step in range(1, 9):
        train(model, optimizer, 1, step)
        now = 0.1 + 0.9 * (1 - step / 8) ** 3
        assert synapses(model, pruner.masks()) == pytest.approx(now * total, abs=1.5)


def test_a_sparse_start_spends_the_first_fraction():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    pruner = Budget(synapses=0.1, first=0.3).attach(model, optimizer, total_steps=8)
    total = dense(model, pruner.masks())
    assert synapses(model, pruner.masks()) == pytest.approx(0.3 * total, abs=1.0)


def test_a_layer_with_its_own_connectivity_is_paid_from_the_same_budget():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    pruner = Budget(synapses=0.3, ramp=0.5).attach(
        model, optimizer, total_steps=4, targets={"fc1": 0.5, "conv*": None, "fc2": None}
    )
    train(model, optimizer, 4)
    masks = pruner.finish()
    total = dense(model, masks)
    assert int(masks["fc1.weight"].sum()) == masks["fc1.weight"].numel() // 2
    assert synapses(model, masks) == pytest.approx(0.3 * total, abs=1.0)


def test_a_higher_price_moves_synapses_from_convolutions_to_linear_layers():
    counts = []
    for price in (0.0, 0.3, 0.9):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        pruner = Budget(synapses=0.2, price=price, balance=0.0, ramp=0.5).attach(
            model, optimizer, total_steps=2
        )
        train(model, optimizer, 2)
        counts.append([int(mask.sum()) for mask in pruner.finish().values()])
    assert counts[0][0] > counts[2][0]
    assert counts[0][2] < counts[1][2] < counts[2][2]


def test_equal_costs_are_the_count_of_weights():
    """In a network of linear layers a synapse is a weight: the same masks, bit for bit."""
    found = []
    for unit in ("connectivity", "synapses"):
        model = build("digits-mlp", time_steps=2)
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        pruner = Budget(**{unit: 0.05}, ramp=0.5, every=1).attach(model, optimizer, total_steps=4)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.rand(4, 1, 8, 8)).sum().backward()
            optimizer.step()
        found.append(pruner.finish())
    for name, mask in found[0].items():
        assert torch.equal(mask, found[1][name])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("cut", [3, 6])
def test_a_resumed_run_ends_with_the_same_bits(cut, known):
    method = Budget(synapses=0.1, ramp=0.6, every=2)

    def start():
        model = small((2, 8, 8) if known else None)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        return model, optimizer, method.attach(model, optimizer, total_steps=10)

    whole, optimizer, pruner = start()
    train(whole, optimizer, 10)
    pruner.finish()
    half, optimizer, pruner = start()
    train(half, optimizer, cut)
    saved = copy.deepcopy([half.state_dict(), optimizer.state_dict(), pruner.state_dict()])
    other, optimizer, pruner = start()
    other.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    pruner.load_state_dict(saved[2])
    train(other, optimizer, 10 - cut, cut)
    pruner.finish()
    for a, b in zip(whole.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_one_unit_is_given():
    assert Budget().connectivity == 0.05
    assert Budget(synapses=0.1).connectivity is None
    assert (Budget().unit, Budget(synapses=0.1).unit) == ("connectivity", "synapses")
    refused(lambda: Budget(connectivity=0.1, synapses=0.1), "connectivity", "synapses", "not both")
    refused(lambda: Budget(synapses=1.5), "synapses", "1.5", "(0, 1]")
