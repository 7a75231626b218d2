"""UPR against its equations in plain Python; its price, its hardening, its hooks."""

import copy
import math

import pytest
import torch
from reference import Task, Twin, blank, close, compete, path, pull, row
from refusal import refused
from torch import nn

from spikewire import METHODS

UPR = METHODS["upr"]
KINDS = {torch.optim.SGD: 0.5, torch.optim.Adam: 0.02}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


class Gates:
    """Gates of all layers, moved by Adam written out."""

    def __init__(self, weights, rate, first=0.1, epsilon=1e-12):
        means = [sum(map(abs, layer)) / len(layer) for layer in weights]
        pairs = zip(weights, means, strict=True)
        self.g = [[abs(w) / mean * first for w in layer] for layer, mean in pairs]
        self.epsilon = epsilon
        self.m, self.v = (copy.deepcopy([[0.0] * len(x) for x in weights]) for _ in range(2))
        self.rate = rate

    def move(self, i, j, slope, step):
        self.m[i][j] = 0.9 * self.m[i][j] + 0.1 * slope
        self.v[i][j] = 0.999 * self.v[i][j] + 0.001 * slope**2
        first, second = self.m[i][j] / (1 - 0.9**step), self.v[i][j] / (1 - 0.999**step)
        self.g[i][j] -= self.rate * first / (math.sqrt(second) + self.epsilon)

    def steer(self, fraction):
        masks = compete(self.g, fraction)
        for layer, mask in zip(self.g, masks, strict=True):
            level = max((x for x, here in zip(layer, mask, strict=True) if not here), default=0.0)
            layer[:] = [x - level for x in layer]
        return masks


@pytest.mark.parametrize("steered", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_its_twin(kind, steered):
    task, steps, harden, slope, penalty = Task(6, 5, 3), 40, 0.6, 20.0, 1e-3
    twin, lr = Twin(task, kind, KINDS[kind]), KINDS[kind]
    optimizer = kind(task.weights, lr=lr)
    target = {"connectivity": 0.2, "every": 3} if steered else {}
    pruner = UPR(penalty=penalty, slope=slope, gate_rate=0.5, harden=harden, **target).attach(
        task.model, optimizer, total_steps=steps
    )
    v, gates = twin.read(), Gates(twin.read(), 0.5 * lr)
    shown = [
        [x * sigmoid(g) for x, g in zip(*p, strict=True)] for p in zip(v, gates.g, strict=True)
    ]
    assert close(task.flat(), sum(shown, []), 1e-12)
    for step in range(1, steps + 1):
        task.backward(step)
        optimizer.step()
        twin.write(shown)
        slopes = twin.gradient(step)
        if step <= 24:
            k = slope ** ((step - 1) / 24)
            for i, layer in enumerate(slopes):
                for j, s in enumerate(layer):
                    soft = sigmoid(k * gates.g[i][j])
                    layer[j] = soft * s
                    gates.move(i, j, k * soft * (1 - soft) * (v[i][j] * s + penalty), step)
        else:
            slopes = blank(slopes, twin.masks)
        twin.write(v)
        twin.move(slopes)
        v = twin.read()
        if steered and (step == 24 or (step < 24 and step % 3 == 0)):
            chosen = gates.steer(path(step / 24, 0.2))
        elif step == 24:
            chosen = [[g > 0 for g in layer] for layer in gates.g]
        if step == 24:
            twin.masks = chosen
        k = slope ** min(1.0, step / 24)
        if step < 24:
            pairs = zip(v, gates.g, strict=True)
            shown = [[x * sigmoid(k * g) for x, g in zip(*p, strict=True)] for p in pairs]
        else:
            shown = blank(v, twin.masks)
        assert close(task.flat(), sum(shown, []), 1e-9), step
        assert [m.flatten().tolist() for m in pruner.masks().values()] == twin.masks
    present = sum(map(sum, twin.masks))
    assert present == 9 if steered else 0 < present < 45


def test_equals_the_authors_code_with_its_settings():
    """Gates from 0, slope 5 -> 1000, gates at the weights' rate, Adam's eps 1e-8, 80 % searching.

    All weights of this network are used once, so the price per use is the penalty itself.
    """
    task, steps, lr, penalty = Task(6, 5, 3), 50, 0.02, 1e-4
    twin = Twin(task, torch.optim.Adam, lr)
    optimizer = torch.optim.Adam(task.weights, lr=lr)
    pruner = UPR(
        penalty=penalty,
        per_use=True,
        first_gate=0.0,
        first_slope=5.0,
        slope=1000.0,
        gate_rate=1.0,
        epsilon=1e-8,
        harden=0.8,
    ).attach(task.model, optimizer, total_steps=steps)
    v, gates = twin.read(), Gates(twin.read(), lr, first=0.0, epsilon=1e-8)
    assert close(task.flat(), [x / 2 for layer in v for x in layer], 1e-12)  # half open
    for step in range(1, 41):
        temperature = 5 * math.exp(math.log(1000 / 5) * (step - 1) / 40)
        shown = [
            [x * sigmoid(temperature * g) for x, g in zip(*pair, strict=True)]
            for pair in zip(v, gates.g, strict=True)
        ]
        assert close(task.flat(), sum(shown, []), 1e-9), step
        task.backward(step)
        optimizer.step()
        twin.write(shown)
        slopes = twin.gradient(step)
        for i, layer in enumerate(slopes):
            for j, s in enumerate(layer):
                soft = sigmoid(temperature * gates.g[i][j])
                layer[j] = soft * s
                bend = temperature * soft * (1 - soft)
                gates.move(i, j, bend * (v[i][j] * s + penalty), step)
        twin.write(v)
        twin.move(slopes)
        v = twin.read()
    twin.masks = [[g > 0 for g in layer] for layer in gates.g]
    assert [m.flatten().tolist() for m in pruner.masks().values()] == twin.masks
    twin.write(blank(v, twin.masks))
    for step in range(41, 51):
        task.backward(step)
        optimizer.step()
        twin.masked_step(step)
        assert close(task.flat(), sum(twin.read(), []), 1e-9), step
    assert 0 < sum(map(sum, twin.masks)) < 45


def test_a_price_per_use_counts_every_position_as_published():
    """The authors' weight of the penalty is the number of positions: 36 on a 6 x 6 image."""
    model = conv_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    pruner = UPR(per_use=True).attach(model, optimizer, total_steps=4)
    train(model, optimizer, 1)
    cost = [state["cost"].item() for state in pruner.state_dict()["layers"].values()]
    assert cost == [36.0, 1.0]
    train(model, optimizer, 1)  # no forward hook any more
    assert [s["cost"].item() for s in pruner.state_dict()["layers"].values()] == cost


def test_by_hand():
    layer = row(0.4, -0.2, 0.1, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    UPR(penalty=0.0, slope=1.0, gate_rate=1.0, harden=1.0).attach(layer, optimizer, total_steps=2)
    gates = [0.2, 0.1, 0.05, 0.05]  # a tenth of |w| over its mean
    first = [w / (1 + math.exp(-g)) for w, g in zip([0.4, -0.2, 0.1, 0.1], gates, strict=True)]
    assert layer.weight.tolist()[0] == pytest.approx(first)
    pull(layer, optimizer, 1.0, 1.0, -1.0, 0.0)
    # Adam's first move is lr against the slope v dL/dw: +, -, -, none; v moves by sigmoid(g) dL
    gates = [0.1, 0.2, 0.15, 0.05]
    soft = [1 / (1 + math.exp(-g)) for g in (0.2, 0.1, 0.05)]
    values = [0.4 - 0.1 * soft[0], -0.2 - 0.1 * soft[1], 0.1 + 0.1 * soft[2], 0.1]
    seen = [v / (1 + math.exp(-g)) for v, g in zip(values, gates, strict=True)]
    assert layer.weight.tolist()[0] == pytest.approx(seen, abs=1e-6)


def conv_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 10))


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 1, 8, 8)).square().mean().backward()
        optimizer.step()


def test_a_higher_price_closes_more_gates_but_never_the_last_of_a_layer():
    fractions = []
    for penalty in (0.0, 1e-4, 1e2):
        task = Task(6, 5, 3)
        optimizer = torch.optim.SGD(task.weights, lr=0.05)
        pruner = UPR(penalty=penalty, gate_rate=1.0).attach(task.model, optimizer, total_steps=40)
        for step in range(40):
            task.backward(step)
            optimizer.step()
        counts = [int(mask.sum()) for mask in pruner.finish().values()]
        fractions.append(pruner.connectivity())
    assert fractions[0] > fractions[1] > fractions[2]
    assert counts == [1, 1]


def test_a_synapse_used_more_often_costs_more():
    model = conv_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    pruner = UPR().attach(model, optimizer, total_steps=4)
    train(model, optimizer, 1)
    cost = [state["cost"].item() for state in pruner.state_dict()["layers"].values()]
    assert cost[0] / cost[1] == pytest.approx(36)  # a 6 x 6 image


def test_watching_the_forward_pass_ends_with_the_first_step_or_the_method():
    model = conv_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    pruner = UPR().attach(model, optimizer, total_steps=4)
    assert model[0]._forward_hooks
    pruner.detach()
    assert not model[0]._forward_hooks
    pruner.method.attach(model, optimizer, total_steps=4)
    train(model, optimizer, 1)
    assert not model[0]._forward_hooks


@pytest.mark.parametrize("options", [{"harden": 1.0}, {"every": 10_000}, {"harden": 0.01}])
def test_late_rare_and_sudden_decisions_end_at_the_target(options):
    task = Task(6, 5, 3)
    optimizer = torch.optim.Adam(task.weights, lr=0.02)
    pruner = UPR(connectivity=0.2, **options).attach(task.model, optimizer, total_steps=10)
    for step in range(10):
        task.backward(step)
        optimizer.step()
    assert sum(int(m.sum()) for m in pruner.finish().values()) == 9


def test_layers_of_zeros_of_one_weight_and_without_gradient():
    model = nn.ModuleDict({"used": row(0.0, 0.0, 0.0, 0.0), "idle": row(1.0, 2.0, 3.0, 4.0)})
    model["one"] = row(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = {"used": 0.25, "idle": 0.25, "one": 0.25}
    method = UPR(connectivity=0.5)
    pruner = method.attach(model, optimizer, total_steps=4, targets=targets)
    for _ in range(4):
        pull(model["used"], optimizer, 0.0, 0.0, 0.0, -1.0)
    assert [m.tolist() for m in pruner.finish().values()] == [
        [[False, False, False, True]],
        [[False, False, False, True]],
        [[True]],
    ]
    assert model["idle"].weight.tolist() == [[0.0, 0.0, 0.0, 4.0]]


def test_all_gates_kept_open_end_dense():
    task = Task(6, 5, 3)
    optimizer = torch.optim.SGD(task.weights, lr=0.1)
    pruner = UPR(connectivity=1.0).attach(task.model, optimizer, total_steps=10)
    for step in range(10):
        task.backward(step)
        optimizer.step()
    assert all(m.all() for m in pruner.finish().values())
    assert all(w.all() for w in task.weights)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("connectivity", 0.0),
        ("penalty", -1.0),
        ("every", 0),
        ("slope", 0.5),
        ("first_gate", -1.0),
        ("first_slope", 0.0),
        ("epsilon", 0.0),
        ("gate_rate", 0.0),
        ("harden", 0.0),
    ],
)
def test_a_wrong_value_is_named(field, value):
    refused(lambda: UPR(**{field: value}), field, value)
