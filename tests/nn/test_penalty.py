"""The penalty on firing rates: its equation, and that it is scaled with the loss."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

from spikewire.nn import LIF, RatePenalty, Spiking, rate_penalty


def network(strength=0.5):
    torch.manual_seed(0)
    layers = {"fc1": nn.Linear(6, 9, bias=False), "lif1": LIF(), "rates": RatePenalty(strength)}
    model = Spiking({**layers, "fc2": nn.Linear(9, 3), "lif2": LIF()}, time_steps=4)
    nn.init.uniform_(model.fc1.weight, 0, 1)
    return model


def gradient(model, scale=1.0):
    """Return the gradient of the penalty alone, where the loss is scaled."""
    model.zero_grad()
    torch.manual_seed(1)
    loss = 0 * model(torch.rand(8, 6)).mean() + rate_penalty(model)
    (scale * loss).backward()
    return model.fc1.weight.grad / scale


def test_the_penalty_has_the_value_and_the_gradient_of_its_equation():
    torch.manual_seed(1)
    spikes = (torch.rand(7, 3, 4, dtype=torch.float64) < 0.3).double().requires_grad_()
    cost = torch.randn(7, 3, 4, dtype=torch.float64)
    layer = RatePenalty(0.5, 0.1)
    passed = layer(spikes)
    assert passed.equal(spikes)
    penalty = rate_penalty(layer)
    ((passed * cost).sum() + penalty).backward()
    own = spikes.detach().clone().requires_grad_()
    rate = sum(own[t, n] for t in range(7) for n in range(3)) / 21
    expected = 0.5 * ((rate - 0.1) ** 2).sum()
    ((own * cost).sum() + expected).backward()
    torch.testing.assert_close(penalty, expected)
    torch.testing.assert_close(spikes.grad, own.grad)


def test_a_loss_scale_scales_the_penalty():
    model = network()
    plain = gradient(model)
    assert plain.abs().max() > 0
    assert gradient(model, 65536.0).equal(plain)


def test_the_penalties_of_all_layers_are_added_once():
    first, second = RatePenalty(1.0), RatePenalty(2.0)
    model = nn.Sequential(first, second)
    model(torch.ones(2, 3, 4))
    assert rate_penalty(model) == 1.0 * 4 + 2.0 * 4
    assert rate_penalty(model) == 0.0


def test_nothing_is_penalised_in_evaluation_without_gradients_or_with_strength_0():
    spikes = torch.ones(2, 3, 4)
    evaluated, free = RatePenalty(0.5).eval(), RatePenalty(0.0)
    assert evaluated(spikes) is free(spikes) is spikes
    layer = RatePenalty(0.5)
    with torch.no_grad():
        assert layer(spikes) is spikes
    assert rate_penalty(nn.ModuleList([evaluated, free, layer])) == 0.0


def test_a_loop_that_forgets_the_penalty_is_warned():
    model, x = network(), torch.rand(8, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            model(x).mean().backward(retain_graph=True)
            rate_penalty(model)
        model(x)
    with pytest.warns(UserWarning, match=r"add spikewire.nn.rate_penalty\(model\) to the loss"):
        model(x)


def test_a_model_can_be_copied_and_pickled_between_forward_pass_and_loss():
    model = network()
    model(torch.rand(8, 6))
    for twin in (copy.deepcopy(model.rates), pickle.loads(pickle.dumps(model.rates))):
        assert rate_penalty(twin) == 0.0
        assert twin.strength == 0.5
    assert rate_penalty(model) > 0
