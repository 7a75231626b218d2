"""Masks applied to another model, and kept there while it trains."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

from spikewire import DeepR, Dense, SpikewireError, apply_masks
from spikewire.pruning.masks import connectivity, layer_rows, totals
from spikewire.pruning.statistics import MaskCounter

MASK = torch.tensor([[True, False], [False, True]])


def linear():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, -2.0], [3.0, 4.0]]))
    return model


def test_absent_synapses_become_plain_zeros_and_the_others_stay():
    model = linear()
    bias = model.bias.detach().clone()
    assert apply_masks(model, {"weight": MASK}) == []
    assert model.weight.tolist() == [[-1.0, 0.0], [0.0, 4.0]]
    assert not torch.signbit(model.weight[0, 1]), "an absent synapse is +0, whatever it was"
    assert torch.equal(model.bias, bias)


def test_not_even_a_broken_weight_survives_its_mask():
    model = linear()
    with torch.no_grad():
        model.weight[0, 1] = torch.nan
    apply_masks(model, {"weight": MASK})
    assert model.weight[0, 1] == 0


def train(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.ones(1, model.in_features)) - 1).square().sum().backward()
        optimizer.step()


def test_held_masks_outlast_momentum_and_gradients_until_removed():
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(model, optimizer)
    (hook,) = apply_masks(model, {"weight": MASK}, optimizer)
    before = model.weight.detach().clone()
    train(model, optimizer)
    assert (model.weight[~MASK] == 0).all()
    assert (model.weight[MASK] != before[MASK]).all()
    hook.remove()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    train(model, optimizer)
    assert (model.weight[~MASK] != 0).all()


def test_a_masked_weight_refuses_a_pruner_until_it_is_released():
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.01)
    (hook,) = apply_masks(model, {"weight": MASK}, optimizer)
    with pytest.raises(SpikewireError, match="weight: another pruner has it"):
        Dense().attach(model, optimizer, total_steps=1)
    hook.remove()
    Dense().attach(model, optimizer, total_steps=1)


def test_masks_that_do_not_fit_are_refused_before_anything_changes():
    model = linear()
    with pytest.raises(SpikewireError, match=r"other\.weight: a mask for a parameter this model"):
        apply_masks(model, {"weight": MASK, "other.weight": MASK})
    with pytest.raises(
        SpikewireError, match=r"weight: the mask has shape \(3,\), the parameter \(2, 2\)"
    ):
        apply_masks(model, {"weight": torch.ones(3, dtype=torch.bool)})
    with pytest.raises(SpikewireError, match=r"^weight: mask: torch.float32 is not allowed; it mu"):
        apply_masks(model, {"weight": MASK.float()})
    assert model.weight.tolist() == [[-1.0, -2.0], [3.0, 4.0]]


def test_a_tied_weight_takes_its_mask_under_either_name():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    apply_masks(model, {"1.weight": MASK})
    assert (model[0].weight[~MASK] == 0).all()


def test_a_copy_and_an_average_take_the_masks_of_the_run():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(6, 6)
    optimizer = SGD(model.parameters(), lr=0.05)
    method = DeepR(connectivity=0.5, alpha=1.0).attach(model, optimizer, total_steps=20)
    average, start = AveragedModel(model), copy.deepcopy(model)
    for _ in range(20):
        train(model, optimizer, 1)
        average.update_parameters(model)
    masks = method.finish()
    absent = ~masks["weight"]
    for other in (average.module, start):
        assert (other.weight[absent] != 0).any(), "the wiring has to change for this test"
        apply_masks(other, masks)
        assert (other.weight[absent] == 0).all()
        assert (other.weight != 0).any()


def test_nothing_is_a_connectivity_of_0_not_a_division_by_0():
    assert connectivity({}) == 0.0
    empty = {"w": torch.empty(0, 3, dtype=torch.bool)}
    assert connectivity(empty) == 0.0
    assert layer_rows(empty)[0]["connectivity"] == 0.0
    assert MaskCounter(empty).changes(empty)["w"]["turnover"] == 0.0
    assert totals({})["connectivity"] == 0.0
