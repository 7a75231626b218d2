"""The RBM: probabilities against masks drawn per synapse, CD-1 and free energy against loops."""

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
        network.fc1.bias.normal_(std=0.2)
        network.visible_bias.normal_(std=0.2)
    return network


def probability(inputs, weights, bias, keep):
    """P(sum of blanked-out inputs and bias > 0) for a normal sum, written with erf."""
    terms = [bias, *(w * s for w, s in zip(weights, inputs, strict=True))]
    variance = keep * (1 - keep) * sum(term**2 for term in terms)
    return 0.5 * (1 + math.erf(keep * sum(terms) / math.sqrt(2 * variance)))


def test_the_probability_is_that_of_synapses_that_blank_out():
    torch.manual_seed(0)
    network = machine(input_shape=(1, 10, 20))
    units = (torch.rand(206) < 0.4).float()
    weight, keep = network.fc1.weight.detach(), network.constants.keep
    masks = torch.rand(4000, *weight.shape) < keep
    sums = (masks * weight * units).sum(2)
    sums += (torch.rand(sums.shape) < keep) * network.fc1.bias.detach()
    found = network.probability(units[None], weight, network.fc1.bias)[0]
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

    h0 = torch.bernoulli(torch.tensor(act(v0, weight, bias))).tolist()
    v1 = torch.bernoulli(torch.tensor(act(h0, columns, back))).tolist()
    h1 = act(v1, weight, bias)
    for i in range(5):
        for j in range(10):
            change = sum(h0[n][i] * v0[n][j] - h1[n][i] * v1[n][j] for n in range(2)) / 2
            assert float(network.fc1.weight.grad[i, j]) == pytest.approx(-change, abs=1e-5)
    assert network.visible_bias.grad.tolist() == pytest.approx(
        [sum(v1[n][j] - v0[n][j] for n in range(2)) / 2 for j in range(10)], abs=1e-5
    )


def test_the_class_is_that_of_the_lowest_free_energy():
    torch.manual_seed(2)
    network = machine()
    image = torch.rand(4)
    scores = network(image.view(1, 1, 2, 2))[0, 0]
    energies = []
    for k in range(3):
        units = [1.0 if k == n else 0.0 for n in range(3) for _ in range(2)]
        label_bias = network.visible_bias[4:].tolist()
        energy = -sum(b * u for b, u in zip(label_bias, units, strict=True))
        for row, bias in zip(network.fc1.weight.tolist(), network.fc1.bias.tolist(), strict=True):
            inputs = [*image.tolist(), *units]
            mean = 0.5 * (sum(w * s for w, s in zip(row, inputs, strict=True)) + bias)
            squares = [
                bias**2,
                *((w * s) ** 2 for w, s in zip(row[:4], image.tolist(), strict=True)),
            ]
            deviation = math.sqrt(0.25 * sum(squares))
            energy -= math.log(1 + math.exp(1.702 * mean / deviation))
        energies.append(energy)
    torch.testing.assert_close(scores, (-torch.tensor(energies)).softmax(0))


def test_it_learns_digits_and_prunes():
    flags = {"dataset": "digits", "hidden": "200", "epochs": "6", "batch_size": "32", "lr": "0.05"}
    flags |= {"plasticity": "label_units:1", "method": "magnitude", "connectivity": "0.5"}
    result = fit(resolve("mnist-rbm", flags=flags | {"gradual": "false", "begin": "0.5"}))
    assert result.accuracy > 0.8
    assert result.connectivity == 0.5
