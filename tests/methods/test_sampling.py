"""Synaptic sampling against its stochastic differential equation; the law of its prior."""

import math

import pytest
import torch
from reference import Task, close, pull, row, sampling_step, sampling_weight, signs_of
from refusal import refused

from spikewire import METHODS, Pruner, SynapticSampling, plasticity
from spikewire.config import resolve
from spikewire.train.loop import fit

torch.set_num_threads(1)  # tiny tensors: threads only cost


def thetas(pruner: Pruner) -> torch.Tensor:
    states = pruner.state_dict()["layers"].values()
    return torch.cat([state["latent"].flatten() for state in states])


@pytest.mark.parametrize("temperature", [0.0, 1e-2])
def test_equals_the_equation_given_the_same_noise(temperature):
    task, lr, steps = Task(6, 5, 3), 0.5, 80
    gradient, start = task.gradient(), task.flat()
    shapes = [w.shape for w in task.weights]
    optimizer = torch.optim.SGD(task.weights, lr=lr)
    method = SynapticSampling(theta0=2.0, mean=-0.2, std=0.7, temperature=temperature)
    pruner = method.attach(task.model, optimizer, total_steps=steps, seed=7)
    seeds = torch.Generator().manual_seed(7)
    sign, regrown = signs_of(start), 0
    theta = [max(math.log(abs(w)) + 2.0 + 1e-6, -0.2 - 3 * 0.7) for w in start]
    for step in range(steps):
        nu: list[float] = []
        for shape in shapes:
            noise = torch.zeros(shape, dtype=torch.float64)
            if temperature:
                seed = int(torch.randint(2**62, (), generator=seeds))
                noise.normal_(generator=torch.Generator().manual_seed(seed))
            nu += noise.flatten().tolist()
        before = list(theta)
        g = gradient([s * sampling_weight(t, 2.0) for s, t in zip(sign, theta, strict=True)], step)
        slope = [s * x for s, x in zip(sign, g, strict=True)]
        b = lr * temperature
        sampling_step(theta, slope, nu, lr=lr, b=b, theta0=2.0, mean=-0.2, std=0.7)
        regrown += sum(a <= 0 < c for a, c in zip(before, theta, strict=True))
        task.backward(step)
        optimizer.step()
        assert close(thetas(pruner).tolist(), theta, atol=1e-9)
        expected = [s * sampling_weight(t, 2.0) for s, t in zip(sign, theta, strict=True)]
        assert close(task.flat(), expected, atol=1e-9)
        mask = torch.cat([m.flatten() for m in pruner.masks().values()]).tolist()
        assert mask == [t > 0 for t in theta]
    assert 0 < sum(mask) < len(mask)
    assert (regrown > 0) == (temperature > 0)


def test_by_hand():
    layer = row(0.5, -0.4, 0.01, 0.0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = SynapticSampling(theta0=3.0, temperature=0.0).attach(layer, optimizer, total_steps=2)
    first = [math.log(0.5) + 3, math.log(0.4) + 3, math.log(0.01) + 3, 0.5 - 3]
    assert thetas(pruner).tolist() == pytest.approx(first, abs=1e-5)
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.4, 0.0, 0.0], abs=1e-5)
    pull(layer, optimizer, 2.0, 1.0, 9.0, -9.0)
    # theta -= lr w dL/dw: .1 .5 2 and .1 (-.4) 1; absent synapses do not feel the gradient
    moved = [first[0] - 0.1, first[1] + 0.04, first[2], first[3]]
    assert thetas(pruner).tolist() == pytest.approx(moved, abs=1e-5)
    kept = [0.5 * math.exp(-0.1), -0.4 * math.exp(0.04), 0.0, 0.0]
    assert layer.weight.tolist()[0] == pytest.approx(kept, abs=1e-5)


@pytest.mark.parametrize("expected", [0.05, 0.3, 0.8])
def test_without_a_gradient_the_fraction_is_that_of_the_normal_prior(expected):
    """The law P(theta > 0) = Phi(mean / std), from a start that has another distribution."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(100, 200, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = SynapticSampling(expected=expected, std=1.5, temperature=1.0)
    z = method.centre / 1.5
    assert 0.5 * (1 + math.erf(z / math.sqrt(2))) == pytest.approx(expected)
    pruner = method.attach(layer, optimizer, total_steps=300)
    assert pruner.connectivity() == pytest.approx(expected, abs=1e-4)
    first, found = pruner.masks()["weight"], []
    for step in range(300):
        layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()
        if step >= 100 and step % 10 == 0:
            found.append(pruner.connectivity())
    assert sum(found) / len(found) == pytest.approx(expected, rel=0.06)
    theta = thetas(pruner)
    assert float(theta.mean()) == pytest.approx(method.centre, abs=0.06)
    assert float(theta.std()) == pytest.approx(1.5, rel=0.03)
    same = (first & pruner.masks()["weight"]).sum() / first.sum()
    assert float(same) == pytest.approx(expected, abs=0.05), "they are others by now"


def test_with_a_gradient_theta_is_a_sample_of_prior_times_likelihood():
    """For L linear in w the density of theta is known: compare its mean above 0."""
    slope, temperature = 2.0, 1.0
    layer = row(*[0.3] * 20_000).double()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)
    method = SynapticSampling(theta0=0.0, mean=0.0, temperature=temperature)
    pruner = method.attach(layer, optimizer, total_steps=600)
    for _ in range(600):
        layer.weight.grad = torch.full_like(layer.weight, slope)
        optimizer.step()
    grid = [-6 + 0.001 * k for k in range(12_001)]

    def density(t):  # the likelihood is exp(-slope w / temperature); its gradient ends at theta = 0
        return math.exp(-t * t / 2 - slope * math.exp(max(t, 0.0)) / temperature)

    total = sum(map(density, grid))
    present = sum(density(t) for t in grid if t > 0) / total
    assert float(pruner.connectivity()) == pytest.approx(present, abs=0.02)
    assert present < 0.35, "the gradient matters"


def test_the_first_weights_are_the_largest_of_the_given_ones():
    torch.manual_seed(0)
    layer = torch.nn.Linear(50, 40, bias=False)
    given = layer.weight.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    mask = SynapticSampling(expected=0.2).attach(layer, optimizer, total_steps=1).masks()["weight"]
    assert int(mask.sum()) == 400
    assert given[mask].abs().min() >= given[~mask].abs().max()
    torch.testing.assert_close(layer.weight[mask], given[mask])


@pytest.mark.parametrize("value", [0.0, 0.01], ids=["zeros", "all equal"])
def test_a_layer_of_equal_weights_starts_and_lives(value):
    layer = row(*[value] * 200)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    pruner = SynapticSampling(temperature=0.5).attach(layer, optimizer, total_steps=100)
    for _ in range(100):
        pull(layer, optimizer, *[0.0] * 200)
    assert 0.5 < pruner.connectivity() < 0.9
    assert bool((layer.weight != 0).any())


def test_expected_is_no_target_and_excludes_the_mean():
    assert SynapticSampling().target is None
    assert SynapticSampling().centre == 0.5
    refused(lambda: SynapticSampling(connectivity=0.1), "connectivity", "outcome of its prior")
    refused(lambda: SynapticSampling(expected=0.1, mean=0.5), "either mean or expected")


def test_a_rule_that_bounds_weights_is_refused():
    network = plasticity.build("wta", input_shape=(1, 4, 4), classes=3, hidden=5)
    optimizer = network.optimizer(0.1)
    refused(
        lambda: METHODS["sampling"]().attach(network, optimizer, total_steps=3),
        "sampling: LocalRule bounds the weights it moves",
    )


def test_it_learns_digits_and_samples_connections():
    flags = {"method": "sampling", "expected": "0.2", "epochs": "4"}
    result = fit(resolve("digits", flags=flags))
    assert result.accuracy > 0.8
    assert 0.15 < result.connectivity < 0.3
