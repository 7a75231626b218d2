"""SET against a loop in plain Python that reads the same random numbers."""

import math

import pytest
import torch
from reference import Task, Twin, agrees, drop_and_grow, pull, row, top_k_mask, weakest_apart
from refusal import refused

from spikewire import METHODS

SET = METHODS["set"]
KINDS = {torch.optim.SGD: 0.5, torch.optim.Adam: 0.02}


@pytest.mark.parametrize("decay", ["cosine", "constant"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_its_twin_given_the_same_draws(kind, decay):
    task, steps, every = Task(8, 6, 3), 40, 4
    twin, optimizer = Twin(task, kind, KINDS[kind]), kind(task.weights, lr=KINDS[kind])
    method = SET(
        connectivity=0.4, drop=0.5, every=every, until=0.8, allocation="uniform", decay=decay
    )
    pruner = method.attach(task.model, optimizer, total_steps=steps, seed=5)
    twin.prune([top_k_mask(s, n) for s, n in zip(twin.sizes(), [19, 7], strict=True)])
    seeds, moved = torch.Generator().manual_seed(5), 0
    for step in range(1, steps + 1):
        task.backward(step)
        optimizer.step()
        twin.masked_step(step)
        if step % every == 0 and step < 0.8 * steps:
            promise = []
            for weight in task.weights:
                seed = int(torch.randint(2**62, (), generator=seeds))
                generator = torch.Generator().manual_seed(seed)
                noise = torch.rand(weight.shape, generator=generator, dtype=weight.dtype)
                promise.append(noise.flatten().tolist())
            shrunk = (1 + math.cos(math.pi * step / (0.8 * steps))) / 2
            fraction = 0.5 * (shrunk if decay == "cosine" else 1.0)
            moved += drop_and_grow(twin, promise, fraction, apart=True)
        assert agrees(task, pruner.masks(), twin)
    assert moved > 10


def test_by_hand():
    layer = row(0.5, 0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = SET(connectivity=0.5, drop=0.6, every=1, until=1.0).attach(
        layer, optimizer, total_steps=100
    )
    pull(layer, optimizer, 1.0, 0.0, 9.0, 9.0)
    # of .4 and .3 the second goes; any of the other three may come, at weight 0
    assert layer.weight.tolist()[0] == pytest.approx([0.4, 0.0, 0.0, 0.0], abs=0.301)
    mask = pruner.masks()["weight"][0]
    assert mask[0]
    assert int(mask.sum()) == 2


def test_positive_and_negative_weights_are_ranked_apart():
    """Ranked together, all four dropped would be positive; apart, half of each sign goes."""
    weights = [0.1, 0.2, 0.3, 0.4, -1.0, -2.0, -3.0, -4.0]
    assert sorted(weakest_apart(weights, [True] * 8, 4)) == [0, 1, 4, 5]
    layer = row(*weights, *[0.01] * 92)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = SET(connectivity=0.08, drop=0.5, every=1, until=1.0).attach(
        layer, optimizer, total_steps=10_000
    )
    assert pruner.masks()["weight"][0, :8].all()
    pull(layer, optimizer, *[0.0] * 100)
    mask = pruner.masks()["weight"][0]
    assert mask[[2, 3, 6, 7]].all()
    assert mask[[0, 1, 4, 5]].sum() <= 1  # one that goes may be drawn again
    assert int(mask.sum()) == 8


def test_a_weight_that_stayed_0_goes_first():
    assert weakest_apart([0.1, 0.0, -0.5, 0.0, 0.7], [True] * 5, 1) == [3]
    assert weakest_apart([0.1, 0.0, -0.5, 0.0, 0.7], [True] * 5, 3) == [1, 3, 0]
    layer = row(*[1.0, -1.0] * 10, *[0.0] * 80)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = SET(connectivity=0.4, drop=0.25, every=1, until=1.0).attach(
        layer, optimizer, total_steps=10_000
    )
    pull(layer, optimizer, *[0.0] * 100)
    assert pruner.masks()["weight"][0, :20].all()


def test_new_weights_are_drawn_from_a_normal_distribution_if_wanted():
    torch.manual_seed(0)
    layer = torch.nn.Linear(200, 200, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = SET(connectivity=0.5, drop=0.9, every=1, until=1.0, std=0.1).attach(
        layer, optimizer, total_steps=10_000
    )
    before = pruner.masks()["weight"]
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
    new = layer.weight.detach()[pruner.masks()["weight"] & ~before]
    assert len(new) > 8_000
    assert float(new.mean()) == pytest.approx(0, abs=5 * 0.1 / len(new) ** 0.5)
    assert float(new.std()) == pytest.approx(0.1, rel=0.04)  # 5 sigma of 8,000 draws
    assert float((new**4).mean()) == pytest.approx(3 * 0.1**4, rel=0.2)  # a normal, not a uniform
    assert not layer.weight[~pruner.masks()["weight"]].any()


@pytest.mark.parametrize(("field", "value"), [("std", -0.1), ("decay", "cosin")])
def test_a_wrong_value_is_named(field, value):
    refused(lambda: SET(**{field: value}), field, value)


def test_growth_is_blind_and_spreads_evenly():
    layer = torch.nn.Linear(40, 50, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    pruner = SET(connectivity=0.1, drop=0.9, every=1, until=1.0).attach(
        layer, optimizer, total_steps=10_000
    )
    visits = torch.zeros_like(layer.weight)
    slope = torch.linspace(0, 1, 2000).view(50, 40)
    for _ in range(60):
        layer.weight.grad = slope.clone()
        optimizer.step()
        visits += pruner.masks()["weight"]
    first, second = visits.flatten().split(1000)  # gentle slopes and steep ones
    assert first.sum() / second.sum() == pytest.approx(1.0, abs=0.15)
    assert (visits > 0).float().mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_growth_spreads_evenly_in_half_precision_too(dtype):
    torch.manual_seed(0)
    layer = torch.nn.Linear(400, 400, bias=False, dtype=dtype)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)
    method = SET(connectivity=0.002, drop=0.9, every=1, until=1.0)
    pruner = method.attach(layer, optimizer, total_steps=10_000)
    before = pruner.masks()["weight"]
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
    grown = (pruner.masks()["weight"] & ~before).flatten().nonzero().flatten().double()
    assert len(grown) > 250
    assert float(grown.mean()) / 160_000 == pytest.approx(0.5, abs=0.09)  # 5 sigma of 250 draws
