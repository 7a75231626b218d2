"""Layers that keep their parts of a cost: an exact total, parts as allocated."""

import copy

import pytest
import torch
from refusal import refused
from test_units import dense, small, synapses, train

from spikewire import SET, RigL


def attached(method, model=None, **options):
    model = model or small()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return model, optimizer, method.attach(model, optimizer, total_steps=24, **options)


@pytest.mark.parametrize("kind", [RigL, SET])
@pytest.mark.parametrize("allocation", ["uniform", "erk", "global"])
@pytest.mark.parametrize("initial", ["largest", "random"])
def test_the_fraction_of_synapses_is_exact_from_first_to_last(kind, allocation, initial):
    method = kind(synapses=0.15, allocation=allocation, initial=initial, every=2, until=1.0)
    model, optimizer, pruner = attached(method)
    first = pruner.masks()
    train(model, optimizer, 24)
    masks = pruner.masks()
    for now in (first, masks):
        total = dense(model, now)
        # linear weights of cost 1 are absent, so that nothing is left over
        assert synapses(model, now) == round(0.15 * total)
    assert any(not torch.equal(masks[name], mask) for name, mask in first.items())


def test_layers_keep_their_parts_while_synapses_move():
    model, optimizer, pruner = attached(RigL(synapses=0.15, every=1, until=1.0, drop=0.5))

    def parts():
        return {
            x.name: int((x.state["mask"] * x.state["cost"]).sum()) for x in pruner.layers
        }  # fmt: skip

    first = parts()
    train(model, optimizer, 24)
    for name, now in parts().items():
        assert abs(now - first[name]) <= 49, "the cheapest weight of the most expensive layer"


def test_uniform_is_the_same_fraction_per_layer_and_erk_favours_small_layers():
    found = {}
    for allocation in ("uniform", "erk"):
        _, _, pruner = attached(RigL(synapses=0.15, allocation=allocation))
        found[allocation] = {
            x.name: float((x.state["mask"] * x.state["cost"]).sum())
            / float(x.state["cost"].sum() * x.weight.numel() / x.state["cost"].numel())
            for x in pruner.layers
        }
    for fraction in found["uniform"].values():
        assert fraction == pytest.approx(0.15, abs=0.02)
    assert found["erk"]["fc2.weight"] > 2 * found["erk"]["fc1.weight"]


def test_a_layer_with_its_own_connectivity_keeps_its_number():
    targets = {"fc1": 0.5, "conv*": None, "fc2": None}
    model, optimizer, pruner = attached(RigL(synapses=0.3, every=2), targets=targets)
    train(model, optimizer, 8)
    masks = pruner.masks()
    assert int(masks["fc1.weight"].sum()) == masks["fc1.weight"].numel() // 2
    assert synapses(model, masks) == pytest.approx(0.3 * dense(model, masks), abs=1.0)


def test_in_a_network_of_linear_layers_a_synapse_is_a_weight():
    found = []
    for unit in ("connectivity", "synapses"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5)
        )
        _, optimizer, pruner = attached(RigL(**{unit: 0.2}, every=1), model)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 20)).square().sum().backward()
            optimizer.step()
        found.append(pruner.masks())
    for name, mask in found[0].items():
        assert torch.equal(mask, found[1][name])


@pytest.mark.parametrize("kind", [RigL, SET])
def test_a_resumed_run_ends_with_the_same_bits(kind):
    method = kind(synapses=0.2, every=2)
    whole, optimizer, pruner = attached(method)
    train(whole, optimizer, 12)
    half, optimizer, pruner = attached(method)
    train(half, optimizer, 5)
    saved = copy.deepcopy([half.state_dict(), optimizer.state_dict(), pruner.state_dict()])
    other, optimizer, pruner = attached(method)
    other.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    pruner.load_state_dict(saved[2])
    train(other, optimizer, 7, 5)
    for a, b in zip(whole.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_network_of_unknown_input_size_is_refused_in_one_line():
    refused(lambda: attached(RigL(synapses=0.1), small(None)), "rigl", "synapses", "input_shape")
