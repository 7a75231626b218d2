"""Soft Deep R against Algorithm 2 of Bellec et al.; what dormant synapses feel and do not."""

import math

import pytest
import torch
from reference import Task, close, pull, row, signs_of, softdeepr_limit, softdeepr_step

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
    ("p", "l1", "gdnoise", "lr"), [(0.005, 1e-5, 1e-5, 0.05), (0.3, 2.0, 3.0, 0.1)]
)
def test_theta_min_follows_from_the_expected_connectivity_by_the_authors_rule(p, l1, gdnoise, lr):
    # their step of the noise, lr gdnoise nu, is ours, sqrt(2 lr temperature) nu
    temperature = lr * gdnoise**2 / 2
    assert math.sqrt(2 * lr * temperature) == pytest.approx(lr * gdnoise)
    method = SoftDeepR(expected=p, alpha=l1, temperature=temperature)
    assert method.limit == pytest.approx(softdeepr_limit(p, l1, gdnoise, lr))
    assert method.target is None


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_without_a_gradient_the_given_fraction_stays_present(p):
    """The stationary distribution, reached from a start with twice or half as many."""
    method = SoftDeepR(expected=p, alpha=1.0, temperature=1e-2)
    torch.manual_seed(0)
    layer = torch.nn.Linear(100, 100, bias=False)
    with torch.no_grad():  # drawn from the density above 0, so that only the rule is tested
        layer.weight.copy_(torch.empty(100, 100).exponential_(100) * layer.weight.sign())
    lr = 1e-5 if p == 0.5 else 1e-3  # steps well below theta_min, which is -0.01 and -0.09
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    pruner = method.attach(layer, optimizer, total_steps=2000)
    assert pruner.connectivity() == p
    theta = theta_of(pruner)[0]
    assert float(theta.min()) >= method.limit
    assert float(theta[theta < 0].mean()) == pytest.approx(method.limit / 2, rel=0.05)
    first = theta < 0
    found = []
    for step in range(2000):
        layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()
        if step >= 1000 and step % 50 == 0:
            found.append(pruner.connectivity())
    assert sum(found) / len(found) == pytest.approx(p, rel=0.1)
    assert (first & (theta_of(pruner)[0] > 0)).sum() > 300  # and they are not the same ones


@pytest.mark.parametrize("initial", ["random", "largest"])
def test_the_run_starts_with_random_synapses_or_with_the_largest(initial):
    torch.manual_seed(0)
    layer = torch.nn.Linear(100, 100, bias=False)
    sizes = layer.weight.detach().abs()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = SoftDeepR(expected=0.2, initial=initial)
    mask = method.attach(layer, optimizer, total_steps=1).masks()["weight"]
    assert int(mask.sum()) == 2000
    among = float((sizes[mask] >= sizes.flatten().sort().values[8000]).float().mean())
    assert among == pytest.approx(1.0 if initial == "largest" else 0.2, abs=0.05)


def test_expected_and_theta_min_exclude_each_other_and_need_noise_and_penalty():
    with pytest.raises(SpikewireError, match="either theta_min or expected"):
        SoftDeepR(expected=0.1, theta_min=-0.1)
    with pytest.raises(SpikewireError, match="^alpha: "):
        SoftDeepR(expected=0.1, alpha=0.0)
    with pytest.raises(SpikewireError, match="^temperature: "):
        SoftDeepR(expected=0.1, temperature=0.0)
    assert SoftDeepR().theta_min == -0.01


@pytest.mark.parametrize(
    ("field", "value"),
    [("alpha", -1.0), ("alpha", math.nan), ("temperature", -1e-9), ("temperature", math.inf)]
    + [("theta_min", 0.0), ("theta_min", 0.1), ("theta_min", -math.inf), ("theta_min", math.nan)],
)
def test_senseless_values_are_refused(field, value):
    with pytest.raises(SpikewireError, match=rf"^{field}: "):
        SoftDeepR(**{field: value})
