"""Threshold pruning against a loop in plain Python; its two forms, its ends."""

import pytest
import torch
from reference import Task, Twin, agrees, compete, path, pull, row, top_k_mask
from refusal import refused
from torch import nn

from spikewire import METHODS

Magnitude = METHODS["magnitude"]
KINDS = {torch.optim.SGD: 0.5, torch.optim.Adam: 0.02}


def choice(twin, fraction, scope):
    if scope == "global":
        return compete(twin.sizes(), fraction)
    return [top_k_mask(s, max(1, round(fraction * len(s)))) for s in twin.sizes()]


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradual_pruning_equals_its_twin(kind, scope):
    task, steps, begin, ramp, every = Task(6, 5, 3), 40, 0.1, 0.7, 3
    twin, optimizer = Twin(task, kind, KINDS[kind]), kind(task.weights, lr=KINDS[kind])
    options = {"begin": begin, "ramp": ramp, "every": every, "scope": scope}
    pruner = Magnitude(connectivity=0.2, **options).attach(task.model, optimizer, total_steps=steps)
    for step in range(1, steps + 1):
        task.backward(step)
        optimizer.step()
        twin.masked_step(step)
        if (4 <= step < 28 and step % every == 0) or step == 28:
            done = (step / steps - begin) / (ramp - begin)
            twin.prune(choice(twin, path(done, 0.2), scope))
        assert agrees(task, pruner.masks(), twin)
    assert sum(map(sum, twin.masks)) == 9


@pytest.mark.parametrize("kind", KINDS)
def test_one_shot_pruning_equals_its_twin(kind):
    task, steps = Task(6, 5, 3), 20
    twin, optimizer = Twin(task, kind, KINDS[kind]), kind(task.weights, lr=KINDS[kind])
    pruner = Magnitude(connectivity=0.2, gradual=False, begin=0.5).attach(
        task.model, optimizer, total_steps=steps
    )
    for step in range(1, steps + 1):
        task.backward(step)
        optimizer.step()
        twin.masked_step(step)
        if step == 10:
            twin.prune(compete(twin.sizes(), 0.2))
        assert agrees(task, pruner.masks(), twin)


def test_by_hand():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    Magnitude(connectivity=0.5, gradual=False, begin=0.0).attach(layer, optimizer, total_steps=4)
    pull(layer, optimizer, 4.0, 0.0, 0.0, -3.0)
    # .5 - .4 = .1, -.3, .2, .1 + .3 = .4: the second and the last are strongest
    assert layer.weight.tolist()[0] == pytest.approx([0.0, -0.3, 0.0, 0.4])
    pull(layer, optimizer, -9.0, 1.0, -9.0, 0.0)
    assert layer.weight.tolist()[0] == pytest.approx([0.0, -0.4, 0.0, 0.4])


def test_one_shot_at_the_start_is_after_the_first_step():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = Magnitude(connectivity=0.25, gradual=False, begin=0.0).attach(
        layer, optimizer, total_steps=1000
    )
    assert pruner.connectivity() == 1
    pull(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    assert pruner.masks()["weight"].tolist() == [[True, False, False, False]]


def test_a_ramp_to_the_end_and_rare_prunings_still_end_exactly():
    for options in ({"ramp": 1.0}, {"every": 10_000}, {"begin": 0.0, "ramp": 0.01}):
        task = Task(6, 5, 3)
        optimizer = torch.optim.SGD(task.weights, lr=0.1)
        pruner = Magnitude(connectivity=0.2, **options).attach(
            task.model, optimizer, total_steps=10
        )
        for step in range(10):
            task.backward(step)
            optimizer.step()
        assert sum(int(m.sum()) for m in pruner.finish().values()) == 9, options


def test_a_layer_without_gradient_is_pruned_all_the_same():
    model = torch.nn.ModuleDict({"used": row(1.0, 2.0, 3.0, 4.0), "idle": row(5.0, 6.0, 7.0, 8.0)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Magnitude(connectivity=0.25, gradual=False, begin=0.5).attach(
        model, optimizer, total_steps=2
    )
    for _ in range(2):
        pull(model["used"], optimizer, 0.0, 0.0, 0.0, 0.0)
    assert model["idle"].weight.tolist() == [[0.0, 0.0, 0.0, 8.0]]
    assert model["used"].weight.tolist() == [[0.0, 0.0, 0.0, 4.0]]
    pruner.finish()


def test_zero_weights_count_and_a_layer_keeps_its_last_synapse():
    model = torch.nn.Sequential(row(0.0, 0.0, 0.0, 0.0), row(0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Magnitude(connectivity=0.4, gradual=False, begin=0.0).attach(
        model, optimizer, total_steps=1
    )
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert [m.tolist() for m in pruner.finish().values()] == [
        [[True, False, False, False]],
        [[True]],
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [("connectivity", 0.0), ("begin", 1.0), ("ramp", 0.05), ("every", 0), ("scope", "glob")],
)
def test_a_wrong_value_is_named(field, value):
    refused(lambda: Magnitude(**{field: value}), field, value)


def test_synapses_that_are_gone_take_nothing_of_the_target():
    """All that is left of the second convolution stays, so what is left buys elsewhere."""
    torch.manual_seed(0)
    convolutions = nn.Conv2d(1, 8, 3, bias=False), nn.Conv2d(8, 8, 3, bias=False)
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    options = {"synapses": 0.3, "begin": 0.0, "ramp": 1.0, "every": 1}
    pruner = Magnitude(**options).attach(model, optimizer, total_steps=8)
    total = 72 * 36 + 576 * 16 + 1280
    for step in range(6):  # then the linear layer has nothing left either
        model(torch.rand(2, 1, 8, 8)).sum().backward()
        optimizer.step()
        counts = torch.tensor([float(mask.sum()) for mask in pruner.masks().values()])
        part = float(counts @ torch.tensor([36.0, 16.0, 1.0])) / total
        assert abs(0.3 + 0.7 * (1 - (step + 1) / 8) ** 3 - part) < 1 / total
        if step == 2:  # after the second convolution has lost most of its weights
            with pruner.editing():
                model[1].weight.data.mul_(1e3)
