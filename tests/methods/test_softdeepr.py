"""Soft Deep R against Algorithm 2 of Bellec et al.; what dormant synapses feel and do not."""

import math

import pytest
import torch
from reference import Task, close, pull, row, signs_of, softdeepr_step

from spikewire import Pruner, SoftDeepR, SpikewireError

torch.set_num_threads(1)  # tiny tensors: threads only cost


def theta_of(pruner: Pruner) -> list[torch.Tensor]:
    states = pruner.state_dict()["layers"].values()
    return [state["latent"] * state["sign"] for state in states]


@pytest.mark.parametrize(("alpha", "temperature"), [(0.0, 1e-4), (0.02, 1e-4), (0.02, 0.0)])
def test_equals_algorithm_2_given_the_same_noise(alpha, temperature):
    task, lr, steps = Task(6, 5, 3), 0.5, 200
    gradient, start = task.gradient(), task.flat()
    shapes = [w.shape for w in task.weights]
    optimizer = torch.optim.SGD(task.weights, lr=lr)
    pruner = SoftDeepR(alpha=alpha, temperature=temperature, theta_min=-0.02).attach(
        task.model, optimizer, total_steps=steps, seed=7
    )
    seeds = torch.Generator().manual_seed(7)
    sign, theta, regrown = signs_of(start), [abs(x) for x in start], 0
    for step in range(steps):
        nu: list[float] = []
        for shape in shapes:
            noise = torch.zeros(shape, dtype=torch.float64)
            if temperature:
                seed = int(torch.randint(2**62, (), generator=seeds))
                noise.normal_(generator=torch.Generator().manual_seed(seed))
            nu += noise.flatten().tolist()
        before = list(theta)
        g = gradient([s * max(t, 0.0) for s, t in zip(sign, theta, strict=True)], step)
        slope = [s * x for s, x in zip(sign, g, strict=True)]
        options = {"lr": lr, "alpha": alpha, "temperature": temperature, "theta_min": -0.02}
        softdeepr_step(theta, slope, nu, **options)
        regrown += sum(a < 0 < b for a, b in zip(before, theta, strict=True))
        task.backward(step)
        optimizer.step()
        expected = [s * max(t, 0.0) for s, t in zip(sign, theta, strict=True)]
        assert close(task.flat(), expected, atol=1e-10)
        mask = torch.cat([m.flatten() for m in pruner.masks().values()]).tolist()
        assert mask == [t > 0 for t in theta]
    assert 0 < sum(mask) < len(mask)
    assert (regrown > 0) == (temperature > 0)  # without noise nothing ever comes back


def test_by_hand():
    layer = row(0.5, -0.3, 0.05, 0.0)  # theta = .5 .3 .05 0, s = + - + +
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = SoftDeepR(alpha=1.0, temperature=0.0, theta_min=-0.15).attach(
        layer, optimizer, total_steps=2
    )
    pull(layer, optimizer, 1.0, -3.0, 2.0, -3.0)
    # .5 - .2, .3 - .4, .05 - .3 (the floor is -.15), 0 + .2
    assert theta_of(pruner)[0][0].tolist() == pytest.approx([0.3, -0.1, -0.15, 0.2], abs=1e-7)
    assert layer.weight.tolist()[0] == pytest.approx([0.3, 0.0, 0.0, 0.2], abs=1e-7)
    pull(layer, optimizer, 0.0, 9.0, -9.0, 0.0)  # the dormant do not feel it
    assert theta_of(pruner)[0][0].tolist() == pytest.approx([0.2, -0.1, -0.15, 0.1], abs=1e-7)


MOVERS = {
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", MOVERS)
def test_a_dormant_synapse_feels_neither_gradient_nor_stale_momentum(name):
    layer = row(0.05, -0.05, 5.0, -5.0)
    optimizer = MOVERS[name](layer.parameters())
    pruner = SoftDeepR(alpha=0.0, temperature=0.0, theta_min=-1.0).attach(
        layer, optimizer, total_steps=9
    )
    pull(layer, optimizer, 3.0, -3.0, 3.0, -3.0)  # drives every theta down, the first two below 0
    dormant = theta_of(pruner)[0][0, :2].clone()
    assert (dormant < 0).all()
    for push in (0.0, -9.0, 9.0):
        before = layer.weight.detach()[0, 2:].clone()
        pull(layer, optimizer, push, -push, 1.0, 1.0)
        assert torch.equal(theta_of(pruner)[0][0, :2], dormant)
        assert not layer.weight[0, :2].any()
        assert (layer.weight[0, 2:] != before).all()


def test_noise_brings_synapses_back_with_fresh_moments():
    layer = row(*[0.01] * 200)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    pruner = SoftDeepR(alpha=0.0, temperature=1e-3, theta_min=-0.02).attach(
        layer, optimizer, total_steps=30
    )
    pull(layer, optimizer, *[1.0] * 100, *[-1.0] * 100)
    dormant = theta_of(pruner)[0] < 0
    regrown = torch.zeros_like(dormant)
    for _ in range(20):
        before = theta_of(pruner)[0]
        pull(layer, optimizer, *[1.0] * 100, *[-1.0] * 100)
        after = theta_of(pruner)[0]
        assert (after >= -0.02 - 1e-9).all()
        back = (before < 0) & (after >= 0)
        assert not optimizer.state[layer.weight]["exp_avg"][back].any()
        regrown |= back
    assert (regrown & dormant).any()


def test_noise_moves_the_dormant_with_the_variance_of_the_equation():
    lr, temperature = 0.01, 1e-5
    layer = row(*[0.1] * 40_000)
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    pruner = SoftDeepR(alpha=30.0, temperature=temperature, theta_min=-1.0).attach(
        layer, optimizer, total_steps=2
    )
    thetas = [theta_of(pruner)[0]]
    for _ in range(2):
        layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()
        thetas.append(theta_of(pruner)[0])
    scale = math.sqrt(2 * lr * temperature)
    present, dormant = (thetas[1] - thetas[0]) / scale, (thetas[2] - thetas[1]) / scale
    assert (thetas[1] < 0).all()  # the first step moved the present, the second the dormant
    for move, mean in ((present, -lr * 30.0 / scale), (dormant, 0.0)):
        assert float(move.mean()) == pytest.approx(mean, abs=0.025)  # 5 sigma of 40,000 draws
        assert float(move.var()) == pytest.approx(1, abs=0.036)


@pytest.mark.parametrize(
    ("field", "value"),
    [("alpha", -1.0), ("alpha", math.nan), ("temperature", -1e-9), ("temperature", math.inf)]
    + [("theta_min", 0.0), ("theta_min", 0.1), ("theta_min", -math.inf), ("theta_min", math.nan)],
)
def test_senseless_values_are_refused(field, value):
    with pytest.raises(SpikewireError, match=rf"^{field}: "):
        SoftDeepR(**{field: value})
