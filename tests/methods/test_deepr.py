"""Deep R against Algorithm 1 of Bellec et al.; its count, its noise, its regrowth."""

import math

import pytest
import torch
from reference import (
    SpikingNet,
    Task,
    close,
    deepr_global_step,
    deepr_step,
    pull,
    row,
    signs_of,
)

from spikewire import DeepR, Pruner, SpikewireError
from spikewire.config import resolve
from spikewire.data import load
from spikewire.methods.deepr import draw_layers, spread

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

    def skip_the_start(self, shapes: list[torch.Size]) -> None:
        for _ in shapes:
            self.next_layer()

    def layers(self, chances: list[float], room: list[int], count: int) -> list[int]:
        """Draw a layer per freed place; where a layer is full, draw again among the others."""
        chosen: list[int] = []
        while len(chosen) < count:
            free = [c if chosen.count(i) < room[i] else 0.0 for i, c in enumerate(chances)]
            picks = torch.multinomial(
                torch.tensor(free, dtype=torch.float64),
                count - len(chosen),
                replacement=True,
                generator=self.seeds,
            )
            for i in picks.tolist():
                if chosen.count(i) < room[i]:
                    chosen.append(i)
        return chosen

    def pick_in_next_layer(self, dormant: list[int], count: int) -> list[int]:
        self.next_layer()
        return self.pick(dormant, count)

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
    draws.skip_the_start(shapes)
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


@pytest.mark.parametrize("connectivity", [0.3, 0.9])
def test_equals_the_global_constraint_given_the_same_draws(connectivity):
    task, lr, alpha, temperature, steps = Task(6, 5, 3), 1.0, 0.05, 1e-3, 200
    gradient, shapes = task.gradient(), [w.shape for w in task.weights]
    optimizer = torch.optim.SGD(task.weights, lr=lr)
    theta = [[abs(x) for x in w.flatten().tolist()] for w in task.weights]
    sign = [signs_of(w.flatten().tolist()) for w in task.weights]
    pruner = DeepR(
        connectivity=connectivity, alpha=alpha, temperature=temperature, constraint="global"
    ).attach(task.model, optimizer, total_steps=steps, seed=7)
    active = [mask.flatten().tolist() for mask in pruner.masks().values()]
    chances = [float(round(connectivity * shape.numel())) for shape in shapes]
    draws, seen = Draws(7), set()
    draws.skip_the_start(shapes)
    for step in range(steps):
        weights = [
            [s * t if a else 0.0 for s, t, a in zip(*layer, strict=True)]
            for layer in zip(sign, theta, active, strict=True)
        ]
        g, slope, nu = gradient(sum(weights, []), step), [], []
        for i, shape in enumerate(shapes):
            own, g = g[: shape.numel()], g[shape.numel() :]
            draws.next_layer()
            nu.append([s * x for s, x in zip(sign[i], draws.noise(shape), strict=True)])
            slope.append([s * x for s, x in zip(sign[i], own, strict=True)])

        deepr_global_step(
            theta,
            active,
            slope,
            nu,
            lambda room, count: draws.layers(chances, room, count),
            draws.pick_in_next_layer,
            lr=lr,
            alpha=alpha,
            temperature=temperature,
        )
        task.backward(step)
        optimizer.step()
        for i, (name, mask) in enumerate(pruner.masks().items()):
            assert mask.flatten().tolist() == active[i], name
            expected = [s * t * a for s, t, a in zip(sign[i], theta[i], active[i], strict=True)]
            assert close(task.weights[i].flatten().tolist(), expected, atol=1e-10)
        seen.add(tuple(counts(pruner)))
        assert sum(counts(pruner)) == sum(chances)
    assert len(seen) > 3  # synapses move from layer to layer


def test_freed_places_are_drawn_in_proportion_to_size_times_connectivity():
    """The LSNN's three matrices, at ERK's connectivities; every synapse present is dropped."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(a, b, bias=False) for a, b in ((80, 220), (220, 220), (220, 10)))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    pruner = DeepR(
        connectivity=0.12, alpha=0.0, temperature=0.0, allocation="erk", constraint="global"
    ).attach(model, optimizer, total_steps=100)
    first = torch.tensor(counts(pruner), dtype=torch.float64)
    assert int(first.sum()) == 8184
    assert max(first / torch.tensor([17600, 48400, 2200])) > 2 * 0.12  # not in proportion to size
    tally = torch.zeros(3, dtype=torch.float64)
    for _ in range(20):
        signs = [state["sign"] for state in pruner.state_dict()["layers"].values()]
        for weight, sign in zip(model.parameters(), signs, strict=True):
            weight.grad = 9 * sign
        optimizer.step()
        assert sum(counts(pruner)) == 8184
        tally += torch.tensor(counts(pruner), dtype=torch.float64)
    expected = first * 20
    chi_square = float(((tally - expected) ** 2 / expected).sum())
    assert chi_square < 2 + 5 * math.sqrt(2 * 2)  # 3 layers: 2 degrees of freedom


def test_a_full_layer_gets_no_more_and_its_draws_go_to_the_others():
    generator = torch.Generator().manual_seed(0)
    assert draw_layers([1.0, 1e9, 1.0], [4, 5, 0], 9, generator) == [4, 5, 0]
    assert draw_layers([1.0, 2.0], [3, 3], 0, generator) == [0, 0]
    assert sum(draw_layers([1.0, 3.0], [1000, 1000], 500, generator)) == 500


@pytest.mark.parametrize("count", [0, 1, 500, 1200])
def test_draws_on_the_device_are_exact_and_in_proportion(count):
    generator = torch.Generator().manual_seed(count)
    weights, room = torch.tensor([1, 6, 3]), torch.tensor([1000, 200, 1000])
    found = spread(weights, room, torch.tensor(count), 3000, generator)
    assert sum(map(int, found)) == count
    assert all(0 <= a <= b for a, b in zip(found, room, strict=True))
    wide = spread(weights, room * 1000, torch.tensor(2000), 3000, generator)
    assert [int(x) / 2000 for x in wide] == pytest.approx([0.1, 0.6, 0.3], abs=0.05)


def test_a_layer_with_its_own_connectivity_keeps_its_count_under_the_global_constraint():
    task = Task(20, 30, 4, dtype=torch.float32)
    optimizer = torch.optim.Adam(task.weights, lr=0.05)
    method = DeepR(connectivity=0.3, alpha=0.3, temperature=1e-3, constraint="global")
    names = [name for name, _ in task.model.named_parameters()]
    pruner = method.attach(
        task.model, optimizer, total_steps=30, targets={names[0]: 0.1, names[1]: 0.5}
    )
    for step in range(30):
        task.backward(step)
        optimizer.step()
        assert counts(pruner) == [60, 60]


@pytest.mark.parametrize("initial", ["random", "largest"])
def test_the_first_synapses_are_random_or_the_largest_weights(initial):
    torch.manual_seed(0)
    layer = torch.nn.Linear(100, 100, bias=False)
    sizes = layer.weight.detach().abs()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    mask = (
        DeepR(connectivity=0.2, initial=initial)
        .attach(layer, optimizer, total_steps=1)
        .masks()["weight"]
    )
    assert int(mask.sum()) == 2000
    among = float((sizes[mask] >= sizes.flatten().sort().values[8000]).float().mean())
    assert among == pytest.approx(1.0 if initial == "largest" else 0.2, abs=0.05)
    rows = mask.sum(1).double()  # spread evenly over the layer: binomial per row
    spread = float(((rows - 20) ** 2).sum() / (20 * 0.8))
    assert spread == pytest.approx(100, abs=5 * math.sqrt(200))


def test_synapses_are_replaced_from_the_first_steps_of_a_random_start():
    """From the largest weights nothing is replaced for many steps: none is near 0."""
    replaced = {}
    for initial in ("random", "largest"):
        torch.manual_seed(0)
        data = load("digits")
        inputs, labels = data.train_images.flatten(1).float() / 255, data.train_labels
        model = SpikingNet(64, 80, 10, gain=4.0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        pruner = DeepR(connectivity=0.05, initial=initial).attach(model, optimizer, total_steps=50)
        for step in range(50):
            pick = slice(20 * step, 20 * step + 20)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(4 * model(inputs[pick]), labels[pick]).backward()
            optimizer.step()
        replaced[initial] = pruner.stats()["regrown"]
    assert replaced["random"] > 0 == replaced["largest"]


def test_a_run_from_a_trained_network_keeps_its_largest_weights():
    flags = {"dataset": "digits", "method": "deepr"}
    assert resolve(flags=flags).options["initial"] == "random"
    trained = resolve(flags=flags | {"start": "runs/dense"})
    assert trained.options["initial"] == "largest"
    assert trained.build_method().initial == "largest"
    chosen = resolve(flags=flags | {"start": "runs/dense", "initial": "random"})
    assert chosen.options["initial"] == "random"


def test_by_hand():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = DeepR(connectivity=0.5, alpha=1.0, temperature=0.0, initial="largest").attach(
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
    pruner = DeepR(connectivity=0.5, alpha=0.0, temperature=0.0, initial="largest").attach(
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
    pruner = DeepR(connectivity=0.5, alpha=0.0, temperature=0.0, initial="largest").attach(
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


@pytest.mark.parametrize("constraint", ["layer", "global"])
def test_dense_moments_are_those_of_the_gradients_of_all_synapses(constraint):
    """Sheet of the LSNN: Adam for every theta; only present ones keep what it does to them."""
    task, lr, alpha, eps, steps = Task(6, 5, 3), 0.02, 0.05, 1e-8, 120
    gradient, sign = task.gradient(), signs_of(task.flat())
    optimizer = torch.optim.Adam(task.weights, lr=lr)
    pruner = DeepR(
        connectivity=0.4, alpha=alpha, temperature=0.0, constraint=constraint, moments="dense"
    ).attach(task.model, optimizer, total_steps=steps)

    def present():
        return torch.cat([mask.flatten() for mask in pruner.masks().values()]).tolist()

    theta = [abs(x) for x in task.flat()]
    first, second, kept = [0.0] * len(sign), [0.0] * len(sign), 0
    new: set[int] = set()
    for step in range(1, steps + 1):
        before, weights = present(), task.flat()
        for k, g in enumerate(gradient(weights, step)):
            first[k] = 0.9 * first[k] + 0.1 * sign[k] * g
            second[k] = 0.999 * second[k] + 0.001 * g * g
            scale = math.sqrt(second[k] / (1 - 0.999**step)) + eps
            theta[k] -= lr * (first[k] / (1 - 0.9**step) / scale + alpha)
        task.backward(step)
        optimizer.step()
        after = present()
        assert sum(after) == sum(before)
        stay = [here and t >= 0 for here, t in zip(before, theta, strict=True)]
        assert all(now or not here for here, now in zip(stay, after, strict=True))
        kept += sum(stay[k] for k in new)
        new = {k for k, here in enumerate(stay) if after[k] and not here}
        theta = [t if here else 0.0 for t, here in zip(theta, stay, strict=True)]
        expected = [s * t for s, t in zip(sign, theta, strict=True)]
        assert close(task.flat(), expected, atol=1e-9)
    assert kept > 5, "some new synapses live"


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
