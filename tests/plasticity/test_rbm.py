"""The RBM: probabilities against masks drawn per synapse, CD-1 and free energy against loops."""

import math

import pytest
import torch

from spikewire import plasticity
from spikewire.config import resolve
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import Interrupted, Step, fit


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


def test_the_free_energy_is_that_of_the_equation():
    torch.manual_seed(2)
    network, keep = machine(), 0.5
    image = torch.rand(4)
    weight, bias = network.fc1.weight.tolist(), network.fc1.bias.tolist()
    expected = []
    for label in range(3):
        visible = [*image.tolist(), *(float(label == k) for k in range(3) for _ in range(2))]
        energy = 0.0
        for row, b in zip(weight, bias, strict=True):
            mean = b + sum(w * v for w, v in zip(row, visible, strict=True))
            z = standardised(visible, row, b, keep)
            density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
            energy -= mean * probability(visible, row, b, keep) + mean / z * density
        labels = zip(network.visible_bias.tolist()[4:], visible[4:], strict=True)
        expected.append(energy - sum(b * v for b, v in labels))
    found = network.free_energy(image.view(1, 1, 2, 2))[0]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=1e-4)
    scores = network(image.view(1, 1, 2, 2))[0, 0]
    torch.testing.assert_close(scores, (-found).softmax(0))


def test_the_free_energy_is_the_mean_lowest_energy_over_synapses_that_blank_out():
    torch.manual_seed(4)
    network = machine(input_shape=(1, 10, 20), hidden=8)
    weight, keep = network.fc1.weight.detach(), network.constants.keep
    bias, back = network.fc1.bias.detach(), network.visible_bias.detach()
    image = (torch.rand(200) < 0.4).float()
    masks = torch.rand(4000, *weight.shape) < keep
    for label, found in enumerate(network.free_energy(image.view(1, 1, 10, 20))[0].tolist()):
        units = torch.eye(3)[label].repeat_interleave(2)
        visible = torch.cat([image, units])
        inputs = (masks * weight * visible / keep).sum(2) + bias
        # min over h of -sum_i h_i x_i is reached by h_i = 1 where x_i > 0
        lowest = torch.stack([torch.zeros_like(inputs), -inputs]).amin(0).sum(1)
        assert found == pytest.approx(float(lowest.mean() - units @ back[200:]), abs=0.03)


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


@pytest.mark.parametrize("preset", ["mnist-rbm", "mnist-ecd"])
def test_a_run_resumes_with_the_momentum_of_its_rule(preset, tmp_path):
    flags = {"dataset": "digits", "hidden": "20", "epochs": "2", "time_steps": "40"}
    config = resolve(preset, flags=flags | {"method": "magnitude", "connectivity": "0.5"})
    fit(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(config, tmp_path / "cut", progress=lambda e: isinstance(e, Step) and e.step == 40)
    fit(config, tmp_path / "cut", resume=True)
    one, two = (RunDir.open(tmp_path / x).load_model()[0] for x in ("whole", "cut"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
