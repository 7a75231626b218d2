"""The RBM: probabilities against masks drawn per synapse, CD-1 and classes against loops."""

import math

import pytest
import torch

from spikewire import plasticity
from spikewire.config import resolve
from spikewire.train.loop import fit


def machine(**sizes):
    sizes = {"input_shape": (1, 2, 2), "classes": 3, "hidden": 5} | sizes
    network = plasticity.build("rbm", **sizes, constants=("label_units:2",))
    with torch.no_grad():
        network.fc1.bias.normal_(std=0.02)
        network.visible_bias.normal_(std=0.02)
    return network


def standardised(inputs, weights, bias, keep):
    """Mean over deviation of the bias and inputs that are w s / keep with probability keep."""
    terms = [w * s for w, s in zip(weights, inputs, strict=True)]
    variance = sum(keep * (x / keep) ** 2 - x**2 for x in terms)
    return (bias + sum(terms)) / math.sqrt(variance)


def probability(inputs, weights, bias, keep):
    """P(sum of the bias and blanked-out inputs > 0) for a normal sum, written with erf."""
    return 0.5 * (1 + math.erf(standardised(inputs, weights, bias, keep) / math.sqrt(2)))


def test_the_probability_is_that_of_synapses_that_blank_out():
    torch.manual_seed(0)
    network = machine(input_shape=(1, 10, 20))
    units = (torch.rand(206) < 0.4).float()
    weight, keep = network.fc1.weight.detach(), network.constants.keep
    bias = network.fc1.bias.detach().copy_(torch.linspace(-0.4, 0.4, 5))
    masks = torch.rand(4000, *weight.shape) < keep
    sums = (masks * weight * units / keep).sum(2) + bias
    found = network.probability(units[None], weight, bias)[0]
    torch.testing.assert_close(found, (sums >= 0).float().mean(0), atol=0.04, rtol=0.0)


def test_a_step_of_contrastive_divergence_is_the_equations():
    torch.manual_seed(1)
    network, keep = machine(), 0.5
    images, labels = torch.tensor([[1.0, 0, 1, 0], [0, 1, 1, 0]]).view(2, 1, 2, 2), [2, 0]
    torch.manual_seed(7)
    network.learn(images, torch.tensor(labels))
    torch.manual_seed(7)
    weight = network.fc1.weight.tolist()
    columns = list(zip(*weight, strict=True))
    bias, back = network.fc1.bias.tolist(), network.visible_bias.tolist()
    torch.bernoulli(images.flatten(1))  # pixels that are 0 or 1 stay so
    v0 = [
        [*row, *(1.0 if label == k else 0.0 for k in range(3) for _ in range(2))]
        for row, label in zip(images.flatten(1).tolist(), labels, strict=True)
    ]

    def act(units, rows, biases):
        pairs = list(zip(rows, biases, strict=True))
        return [[probability(one, w, b, keep) for w, b in pairs] for one in units]

    h0 = act(v0, weight, bias)
    sample = torch.bernoulli(torch.tensor(h0)).tolist()
    v1 = torch.bernoulli(torch.tensor(act(sample, columns, back))).tolist()
    h1 = act(v1, weight, bias)
    for i in range(5):
        for j in range(10):
            change = sum(h0[n][i] * v0[n][j] - h1[n][i] * v1[n][j] for n in range(2)) / 2
            assert float(network.fc1.weight.grad[i, j]) == pytest.approx(-change, abs=1e-5)
    assert network.visible_bias.grad.tolist() == pytest.approx(
        [sum(v1[n][j] - v0[n][j] for n in range(2)) / 2 for j in range(10)], abs=1e-5
    )


def test_the_class_is_that_of_the_label_units_in_turn_with_hidden_units():
    torch.manual_seed(2)
    network = machine()
    image = torch.rand(4)
    scores = network(image.view(1, 1, 2, 2))[0, 0]
    weight, bias = network.fc1.weight.tolist(), network.fc1.bias.tolist()
    columns = list(zip(*weight, strict=True))[4:]
    label_bias = network.visible_bias.tolist()[4:]
    labels = [0.0] * 6
    for _ in range(4):
        visible = [*image.tolist(), *labels]
        hidden = [probability(visible, row, b, 0.5) for row, b in zip(weight, bias, strict=True)]
        pairs = list(zip(columns, label_bias, strict=True))
        z = [standardised(hidden, column, b, 0.5) for column, b in pairs]
        labels = [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in z]
    sums = torch.tensor([z[2 * k] + z[2 * k + 1] for k in range(3)])
    torch.testing.assert_close(scores, sums.softmax(0), atol=1e-4, rtol=1e-4)


def test_a_bias_does_not_blank_out():
    network = machine()
    network.fc1.weight.data.fill_(0.01)
    units = torch.ones(1, 10)  # mean 0.1, deviation 0.01 sqrt(10): a bias of -1 decides alone
    bias = torch.full((5,), -1.0)
    assert network.probability(units, network.fc1.weight, bias).max() < 1e-6


def test_it_learns_digits_and_prunes():
    flags = {"dataset": "digits", "hidden": "200", "epochs": "6", "batch_size": "32", "lr": "0.05"}
    flags |= {"plasticity": "label_units:1", "method": "magnitude", "connectivity": "0.5"}
    result = fit(resolve("mnist-rbm", flags=flags | {"gradual": "false", "begin": "0.5"}))
    assert result.accuracy > 0.8
    assert result.connectivity == 0.5
