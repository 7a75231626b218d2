"""Deep R against Algorithm 1 of Bellec et al.; its count, its noise, its regrowth."""

import math

import pytest
import torch
from reference import SpikingNet, Task, close, deepr_step, pull, row, signs_of

from spikewire import DeepR, Pruner, SpikewireError
from spikewire.data import load

torch.set_num_threads(1)  # tiny tensors: threads only cost


def counts(pruner: Pruner) -> list[int]:
    return [int(mask.sum()) for mask in pruner.masks().values()]


class Draws:
    """The random stream of a method, read again: one seed per layer, then noise, then picks."""

    def __init__(self, seed: int):
        self.seeds = torch.Generator().manual_seed(seed)

    def next_layer(self) -> None:
        seed = int(torch.randint(2**62, (), generator=self.seeds))
        self.generator = torch.Generator().manual_seed(seed)

    def noise(self, shape: torch.Size) -> list[float]:
        values = torch.empty(shape, dtype=torch.float64).normal_(generator=self.generator)
        return values.flatten().tolist()

    def pick(self, dormant: list[int], count: int) -> list[int]:
        order = torch.randperm(len(dormant), generator=self.generator).tolist()
        return [dormant[i] for i in order[:count]]


@pytest.mark.parametrize("alpha", [0.0, 0.05])
@pytest.mark.parametrize("connectivity", [0.3, 1.0])
def test_equals_algorithm_1_given_the_same_draws(alpha, connectivity):
    task, lr, temperature, steps = Task(6, 5, 3), 1.0, 1e-3, 200
    gradient, shapes = task.gradient(), [w.shape for w in task.weights]
    optimizer = torch.optim.SGD(task.weights, lr=lr)
    theta = [[abs(x) for x in w.flatten().tolist()] for w in task.weights]
    sign = [signs_of(w.flatten().tolist()) for w in task.weights]
    pruner = DeepR(connectivity=connectivity, alpha=alpha, temperature=temperature).attach(
        task.model, optimizer, total_steps=steps, seed=7
    )
    active = [mask.flatten().tolist() for mask in pruner.masks().values()]
    draws, replaced = Draws(7), 0
    for step in range(steps):
        weights = [
            [s * t if a else 0.0 for s, t, a in zip(*layer, strict=True)]
            for layer in zip(sign, theta, active, strict=True)
        ]
        g = gradient(sum(weights, []), step)
        for i, shape in enumerate(shapes):
            own, g = g[: shape.numel()], g[shape.numel() :]
            draws.next_layer()
            # the package adds its noise to w = s theta
            nu = [s * x for s, x in zip(sign[i], draws.noise(shape), strict=True)]
            slope = [s * x for s, x in zip(sign[i], own, strict=True)]
            options = {"lr": lr, "alpha": alpha, "temperature": temperature}
            deepr_step(theta[i], active[i], slope, nu, draws.pick, **options)
            replaced += sum(a and t == 0 for a, t in zip(active[i], theta[i], strict=True))
        task.backward(step)
        optimizer.step()
        for i, (name, mask) in enumerate(pruner.masks().items()):
            assert mask.flatten().tolist() == active[i], name
            expected = [s * t * a for s, t, a in zip(sign[i], theta[i], active[i], strict=True)]
            assert close(task.weights[i].flatten().tolist(), expected, atol=1e-10)
    assert replaced > 20


def test_by_hand():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = DeepR(connectivity=0.5, alpha=1.0, temperature=0.0).attach(
        layer, optimizer, total_steps=1
    )
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.3, 0.0, 0.0])
    pull(layer, optimizer, 1.0, -3.0, 9.0, 9.0)
    # theta: .5 - .1 (1 + 1) = .3 stays; .3 - .1 (3 + 1) = -.1 goes; one of the other three comes
    assert layer.weight.tolist()[0] == pytest.approx([0.3, 0.0, 0.0, 0.0])
    mask = pruner.masks()["weight"][0].tolist()
    assert mask[0]
    assert sum(mask) == 2  # a synapse that has just come has weight 0: `weight != 0` is no mask


@pytest.mark.parametrize("connectivity", [0.003, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_the_count_of_every_layer_is_exact_after_every_step(connectivity, kind):
    task = Task(20, 30, 4, dtype=torch.float32)
    optimizer = kind(task.weights, lr=0.05)
    pruner = DeepR(connectivity=connectivity, alpha=0.3, temperature=1e-3).attach(
        task.model, optimizer, total_steps=50
    )
    wanted = [max(1, round(connectivity * w.numel())) for w in task.weights]
    assert counts(pruner) == wanted
    for step in range(50):
        task.backward(step)
        optimizer.step()
        assert counts(pruner) == wanted
        for weight, mask in zip(task.weights, pruner.masks().values(), strict=True):
            assert not weight[~mask].any()
    moved = pruner.stats()["regrown"]
    assert moved > 0 or connectivity in (0.003, 1.0)  # the single strongest may well hold out


def test_those_removed_are_those_whose_theta_turned_negative():
    layer = row(*torch.linspace(0.02, 1.0, 50).tolist())
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    pruner = DeepR(connectivity=0.5, alpha=0.0, temperature=0.0).attach(
        layer, optimizer, total_steps=1
    )
    pull(layer, optimizer, *[0.7] * 50)
    assert pruner.masks()["weight"][0, 35:].all()  # .72 and more survive a step of .7
    assert pruner.masks()["weight"][0, :35].sum() == 10
    assert not layer.weight[0, :35].any()


def test_noise_has_the_variance_of_the_equation():
    lr, temperature = 0.01, 2e-3
    layer = torch.nn.Linear(200, 200, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.where(torch.rand(200, 200) < 0.5, 3.0, -3.0))
    start = layer.weight.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    DeepR(connectivity=1.0, alpha=0.0, temperature=temperature).attach(
        layer, optimizer, total_steps=2
    )
    moves = []
    for _ in range(2):
        before = layer.weight.detach().clone()
        layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()
        moves.append((layer.weight.detach() - before) / math.sqrt(2 * lr * temperature))
    for move in moves:
        assert float(move.mean()) == pytest.approx(0, abs=0.025)  # 5 sigma of 40,000 draws
        assert float(move.var()) == pytest.approx(1, abs=0.036)
    assert abs(float((moves[0] * moves[1]).mean())) < 0.025  # fresh at every step
    assert abs(float((moves[0] * start.sign()).mean())) < 0.025


def test_regrowth_is_uniform_over_the_dormant():
    layer = torch.nn.Linear(16, 16, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = DeepR(connectivity=0.25, alpha=0.0, temperature=0.0).attach(
        layer, optimizer, total_steps=1500
    )
    state = pruner.state_dict()
    tally = torch.zeros(16, 16)
    initial = pruner.masks()["weight"]
    generator = state["generator"]
    for _ in range(1500):  # always the same start, ever new draws: all 64 present are dropped
        pruner.load_state_dict({**state, "generator": generator})
        with torch.no_grad():
            layer.weight.copy_(torch.where(initial, state["layers"]["weight"]["sign"] * 0.1, 0.0))
        pruner.load_state_dict({**state, "generator": generator})
        layer.weight.grad = 9 * state["layers"]["weight"]["sign"]
        optimizer.step()
        tally += pruner.masks()["weight"]
        generator = pruner.state_dict()["generator"]
    expected = 1500 * 64 / 256
    chi_square = float(((tally - expected) ** 2).sum() / (expected * (1 - 64 / 256)))
    assert chi_square == pytest.approx(255, abs=5 * math.sqrt(2 * 255))


def test_a_regrown_synapse_starts_with_fresh_moments():
    layer = row(5.0, -0.3, 0.2, 0.1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    pruner = DeepR(connectivity=0.5, alpha=0.0, temperature=0.0).attach(
        layer, optimizer, total_steps=9
    )
    events = 0
    for _ in range(9):
        before = pruner.masks()["weight"]
        pull(layer, optimizer, 1.0, -1.0, 1.0, 1.0)  # against every sign: all but one sink
        regrown = pruner.masks()["weight"] & ~before
        moments = optimizer.state[layer.weight]
        assert not moments["exp_avg"][regrown].any()
        assert (moments["exp_avg_sq"][regrown] == moments["exp_avg_sq"][0, 0]).all()
        events += int(regrown.sum())
    assert events > 1


def test_regrown_synapses_really_live_in_a_run_that_learns():
    """Over 1 % of the regrown stay for 100 steps and carry weight, with the L1 term on."""
    torch.manual_seed(0)
    data = load("digits")
    inputs, labels = data.train_images.flatten(1).float() / 255, data.train_labels
    model, steps, window = SpikingNet(64, 80, 10, gain=4.0), 400, 100
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    pruner = DeepR(connectivity=0.1, alpha=1e-2, temperature=1e-7).attach(
        model, optimizer, total_steps=steps
    )
    wanted = counts(pruner)
    losses, masks, weights = [], [pruner.masks()], []
    for _ in range(steps):
        pick = torch.randint(len(labels), (64,))
        loss = torch.nn.functional.cross_entropy(4 * model(inputs[pick]), labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert counts(pruner) == wanted
        losses.append(loss.item())
        masks.append(pruner.masks())
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
    assert sum(losses[-20:]) < 0.6 * sum(losses[:20])
    regrown, lived = 0, 0
    for name in masks[0]:
        mask = torch.stack([m[name] for m in masks])
        weight = torch.stack([w[name] for w in weights])
        for step in range(1, steps - window):
            came = mask[step] & ~mask[step - 1]
            stayed = came & mask[step : step + window].all(0)
            carries = (weight[step : step + window].abs() > 1e-6).all(0)  # from its first own step
            regrown += int(came.sum())
            lived += int((stayed & carries).sum())
    assert regrown > 200
    assert lived > 0.01 * regrown


@pytest.mark.parametrize("value", [0.0, -0.1, 1.1, math.nan])
def test_a_connectivity_out_of_range_is_refused(value):
    with pytest.raises(SpikewireError, match=r"^connectivity: .*\(0, 1\]"):
        DeepR(connectivity=value)


@pytest.mark.parametrize("field", ["alpha", "temperature"])
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_a_senseless_penalty_or_temperature_is_refused(field, value):
    with pytest.raises(SpikewireError, match=rf"^{field}: "):
        DeepR(**{field: value})
