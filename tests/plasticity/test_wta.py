"""The winner-take-all layer: evidence and rule against loops, sampling, digits."""

import math

import pytest
import torch

import spikewire
from spikewire import plasticity
from spikewire.config import resolve
from spikewire.train.loop import fit

FLAGS = {"dataset": "digits", "hidden": "60", "epochs": "6", "lr": "0.02"}
FLAGS |= {"plasticity": "sharpness:3,balance:20"}


def layer(**sizes):
    sizes = {"input_shape": (1, 2, 3), "classes": 2, "hidden": 4, "time_steps": 5} | sizes
    return plasticity.build("wta", **sizes)


def test_evidence_and_update_are_the_equations():
    torch.manual_seed(0)
    network = layer()
    network.fc1.weight.data.uniform_(0, 2)
    network.fc1.weight.data[1, 2] = 0.0  # pruned: the lowest weight, -1
    network.bias.uniform_(-1, 1)
    c, strengths = network.constants, network.fc1.weight.tolist()
    pre = (torch.rand(3, 2, 6) < 0.5).float()
    found = network.evidence(pre).detach()
    post = torch.zeros(3, 2, 4)
    expected_update = torch.zeros(4, 6, dtype=torch.float64)
    for t in range(3):
        for b in range(2):
            u = [0.0] * 4
            for k in range(4):
                for i in range(6):
                    w = strengths[k][i] - 1  # log likelihood of x with log odds slope w
                    p = 1 / (1 + math.exp(-c.slope * w))
                    u[k] += c.sharpness * math.log(p if pre[t, b, i] else 1 - p)
                u[k] += float(network.bias[k])
            likely = torch.tensor(u).softmax(0)  # evidence may differ by what all neurons share
            torch.testing.assert_close(found[t, b].softmax(0), likely, rtol=1e-4, atol=1e-6)
            k = (t + b) % 4
            post[t, b, k] = 1
            for i in range(6):
                w = strengths[k][i] - 1
                expected_update[k, i] += math.exp(-c.slope * w) if pre[t, b, i] else -1.0
    network.update_(pre, post)
    torch.testing.assert_close(-network.fc1.weight.grad.double(), expected_update)


def test_a_latent_weight_gets_the_update_of_its_own_strength():
    # the network sees 0 for an absent synapse; its latent must rest at its own log odds
    torch.manual_seed(1)
    pre, post = (torch.rand(5, 3, 6) < 0.5).float(), torch.zeros(5, 3, 4)
    post[..., 1] = 1
    network, dense = layer(), layer()
    dense.load_state_dict(network.state_dict())
    optimizer = network.optimizer(lr=0.01)
    pruner = spikewire.Budget(connectivity=0.5, first=0.5).attach(
        network, optimizer, total_steps=10
    )
    assert (network.fc1.weight == 0).sum() == 12
    network.update_(pre, post)
    optimizer.step()
    free = dense.optimizer(lr=0.01)
    dense.update_(pre, post)
    free.step()
    torch.testing.assert_close(pruner.layers[0].state["latent"], dense.fc1.weight.data)


def test_a_neuron_spikes_with_the_probability_of_its_evidence():
    network = layer(time_steps=4000, hidden=3)
    network.fc1.weight.data.zero_()
    network.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
    _, spikes = network.show(torch.zeros(1, 1, 2, 3))
    assert torch.equal(spikes.sum(-1), torch.ones(4000, 1))
    torch.testing.assert_close(spikes.mean((0, 1)), network.bias.softmax(0), atol=0.03, rtol=0.0)


def test_learning_rests_at_the_log_odds():
    # an input that is active in 3 of 4 spikes: exp(-slope w) 3 - 1 = 0 at slope w = log 3
    network = layer(hidden=1)
    network.fc1.weight.data.fill_(1 + math.log(3) / network.constants.slope)
    pre = torch.ones(4, 1, 6)
    pre[0] = 0
    network.update_(pre, torch.ones(4, 1, 1))
    assert network.fc1.weight.grad.abs().max() < 1e-5


def test_firing_is_equalised():
    network = layer()
    network.bias[0] = 50.0
    network.learn(torch.rand(8, 1, 2, 3), torch.zeros(8, dtype=torch.long))
    balance = network.constants.balance
    assert network.bias.tolist() == pytest.approx([50 - 0.75 * balance] + [0.25 * balance] * 3)


def test_it_learns_digits_and_prunes():
    options = {"method": "magnitude", "connectivity": "0.6", "gradual": "false", "begin": "0.5"}
    result = fit(resolve("mnist-wta", flags=FLAGS | options))
    assert result.accuracy > 0.8
    assert result.connectivity == 0.6
    assert 0 <= result.model.fc1.weight.min() <= result.model.fc1.weight.max() <= 2
