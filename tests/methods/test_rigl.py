"""RigL against a loop in plain Python: what goes, what comes, how many."""

import math

import pytest
import torch
from reference import Task, Twin, agrees, compete, drop_and_grow, pull, row, top_k_mask
from refusal import refused

from spikewire import METHODS
from spikewire.pruning.allocation import allocate

RigL = METHODS["rigl"]
KINDS = {torch.optim.SGD: 0.5, torch.optim.Adam: 0.02}


def counts(pruner):
    return [int(mask.sum()) for mask in pruner.masks().values()]


@pytest.mark.parametrize("allocation", ["uniform", "erk", "global"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_its_twin(kind, allocation):
    task, steps, every, until = Task(8, 6, 3), 48, 4, 0.75
    twin, optimizer = Twin(task, kind, KINDS[kind]), kind(task.weights, lr=KINDS[kind])
    pruner = RigL(
        connectivity=0.4, drop=0.5, every=every, until=until, allocation=allocation
    ).attach(task.model, optimizer, total_steps=steps)
    if allocation == "global":
        twin.prune(compete(twin.sizes(), 0.4))
    else:
        fractions = {"uniform": [19, 7], "erk": [16, 10]}[allocation]  # of 48 + 18, 26 in all
        twin.prune([top_k_mask(s, n) for s, n in zip(twin.sizes(), fractions, strict=True)])
    present, moved = [sum(m) for m in twin.masks], 0
    for step in range(1, steps + 1):
        task.backward(step)
        optimizer.step()
        promise = [[abs(x) for x in layer] for layer in twin.gradient(step)]
        twin.masked_step(step)
        if step % every == 0 and step < until * steps:
            fraction = 0.5 * (1 + math.cos(math.pi * step / (until * steps))) / 2
            moved += drop_and_grow(twin, promise, fraction)
        assert agrees(task, pruner.masks(), twin)
        assert counts(pruner) == present
    assert moved > 10


@pytest.mark.parametrize("initial", ["random", "largest"])
def test_the_first_synapses_are_the_largest_weights_or_random_ones(initial):
    torch.manual_seed(0)
    layer = torch.nn.Linear(100, 100, bias=False)
    sizes = layer.weight.detach().abs()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = METHODS["rigl"](connectivity=0.2, initial=initial)
    mask = method.attach(layer, optimizer, total_steps=1).masks()["weight"]
    assert int(mask.sum()) == 2000
    among = float((sizes[mask] >= sizes.flatten().sort().values[8000]).float().mean())
    assert among == pytest.approx(1.0 if initial == "largest" else 0.2, abs=0.05)


def test_by_hand():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = RigL(connectivity=0.5, drop=0.9, every=1, until=1.0).attach(
        layer, optimizer, total_steps=4
    )
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.3, 0.0, 0.0])
    pull(layer, optimizer, 1.0, 1.0, -3.0, 2.0)
    # .4 and -.4; of the tie the first stays; .9 (1 + cos(pi/4)) / 2 of 2 is 1.54: both go, and the
    # steepest two come: the third and the fourth, at weight 0
    assert pruner.masks()["weight"].tolist() == [[False, False, True, True]]
    assert layer.weight.tolist() == [[0.0, 0.0, 0.0, 0.0]]
    pull(layer, optimizer, 0.0, 0.0, 1.0, -2.0)
    # one of two is replaced: the weaker third, by itself, since its slope beats the two at 0
    assert layer.weight.tolist()[0] == pytest.approx([0.0, 0.0, -0.1, 0.2])
    assert pruner.masks()["weight"].tolist() == [[False, False, True, True]]


def test_the_masks_is_fixed_after_until_and_when_rewiring_is_rarer_than_the_run():
    for options in ({"every": 1000}, {"every": 1, "until": 0.05}):
        task = Task(8, 6, 3)
        optimizer = torch.optim.Adam(task.weights, lr=0.02)
        pruner = RigL(connectivity=0.4, **options).attach(task.model, optimizer, total_steps=20)
        for step in range(20):
            task.backward(step)
            optimizer.step()
        assert pruner.stats()["regrown"] == 0


def test_tiny_layers_zero_weights_and_layers_without_gradient():
    model = torch.nn.ModuleDict(
        {"zero": row(0.0, 0.0, 0.0, 0.0), "one": row(0.7), "idle": row(1, 2)}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = RigL(connectivity=0.5, drop=0.9, every=1, allocation="uniform").attach(
        model, optimizer, total_steps=8
    )
    idle = model["idle"].weight.tolist()
    before = counts(pruner)
    assert sum(before) == round(0.5 * 7)
    for _ in range(8):
        optimizer.zero_grad()
        inputs = torch.tensor([[0.0, 0.0, 0.0, -1.0]])
        (model["zero"](inputs) + model["one"](torch.ones(1, 1))).sum().backward()
        optimizer.step()
        assert counts(pruner) == before
    assert pruner.masks()["zero.weight"][0, 3]  # found by its gradient
    assert model["zero"].weight[0, 3] > 0
    assert model["idle"].weight.tolist() == idle


def test_erk_gives_small_layers_more_and_a_layer_may_have_its_own_share():
    task = Task(20, 30, 4)
    optimizer = torch.optim.SGD(task.weights, lr=0.1)
    pruner = RigL(connectivity=0.2).attach(task.model, optimizer, total_steps=4)
    assert counts(pruner) == allocate([(30, 20), (4, 30)], 0.2, "erk")
    assert counts(pruner)[1] / 120 > counts(pruner)[0] / 600
    pruner.detach()
    targets = {"layers.0": 0.5, "layers.1": 0.1}
    pruner = pruner.method.attach(task.model, optimizer, total_steps=4, targets=targets)
    assert counts(pruner) == [300, 12]


@pytest.mark.parametrize(
    ("field", "value"),
    [("connectivity", 1.5), ("drop", 1.0), ("every", 0), ("until", 0.0), ("allocation", "erl")],
)
def test_a_wrong_value_is_named(field, value):
    refused(lambda: RigL(**{field: value}), field, value)
