"""Masks within a budget: against a sort that adds up costs, floors, ties, what is left over."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spikewire.pruning.spending import cost_of, dense_cost, masks_within

quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def spend(scores, costs, budget, floors):
    """Sort, add up the costs, cut; then buy the best of every cost, the most expensive first.

    Everything is a list of lists: one score and one cost per weight, whole numbers.
    """
    places = [(i, j) for i, layer in enumerate(scores) for j in range(len(layer))]
    order = sorted(places, key=lambda p: (-scores[p[0]][p[1]], p))
    best = [[p for p in order if p[0] == i][:n] for i, n in enumerate(floors)]
    kept = {p for layer in best for p in layer}

    def price(place):
        return costs[place[0]][place[1]]

    room = max(budget, sum(map(price, kept))) - sum(map(price, kept))
    rest = [p for p in order if p not in kept]
    level = None  # the score of the first weight that does not fit
    full = set()  # layers whose ties are cut
    for p in rest:
        score = scores[p[0]][p[1]]
        if level is not None and score != level:
            break
        if p[0] in full or price(p) > room:
            level = score
            full.add(p[0])
            continue
        kept.add(p)
        room -= price(p)
    for value in sorted({c for layer in costs for c in layer if c > 0}, reverse=True):
        for p in rest:
            if p not in kept and price(p) == value <= room:
                kept.add(p)
                room -= value
    return [[(i, j) in kept for j in range(len(layer))] for i, layer in enumerate(scores)]


@st.composite
def problems(draw):
    """Layers of scores, whole costs per weight or per layer, a budget, floors."""
    scores, costs = [], []
    for _ in range(draw(st.integers(1, 4))):
        n = draw(st.integers(1, 10))
        few = st.integers(-3, 3).map(float)  # many ties
        many = st.floats(-9, 9, width=32).map(lambda x: x + 0.0)
        scores.append(draw(st.lists(draw(st.sampled_from([few, many])), min_size=n, max_size=n)))
        cost = st.sampled_from([1, 2, 3, 4, 9, 16, 100])
        same = draw(st.booleans())
        costs.append([draw(cost)] * n if same else draw(st.lists(cost, min_size=n, max_size=n)))
    total = sum(map(sum, costs))
    floors = [draw(st.integers(0, len(layer))) for layer in scores]
    return scores, costs, draw(st.integers(0, total + 5)), floors


def as_tensors(scores, costs):
    """A layer whose weights cost the same has one number, as a linear layer has."""
    shown = [[c[0]] if len(set(c)) == 1 else c for c in costs]
    return [torch.tensor(x) for x in scores], [torch.tensor(c, dtype=torch.int64) for c in shown]


@quick
@given(problem=problems())
def test_equals_a_sort_that_adds_up_costs(problem):
    scores, costs, budget, floors = problem
    values = [frozenset(layer) for layer in costs]
    tensors, prices = as_tensors(scores, costs)
    masks = masks_within(tensors, prices, torch.tensor(budget), floors, values)
    assert [mask.tolist() for mask in masks] == spend(scores, costs, budget, floors)


@quick
@given(problem=problems())
def test_the_budget_is_met_to_the_cheapest_absent_weight(problem):
    scores, costs, budget, floors = problem
    tensors, prices = as_tensors(scores, costs)
    values = [frozenset(layer) for layer in costs]
    masks = masks_within(tensors, prices, torch.tensor(budget), floors, values)
    spent = sum(int(cost_of(m, c)) for m, c in zip(masks, prices, strict=True))
    absent = [
        c for m, layer in zip(masks, costs, strict=True)
        for here, c in zip(m.tolist(), layer, strict=True) if not here
    ]  # fmt: skip
    least = sum(
        sum(costs[i][j] for j in sorted(range(len(s)), key=lambda j: (-s[j], j))[:n])
        for i, (s, n) in enumerate(zip(scores, floors, strict=True))
    )
    assert spent <= max(budget, least)
    assert not absent or spent > budget - min(absent)
    for mask, floor in zip(masks, floors, strict=True):
        assert int(mask.sum()) >= floor


@quick
@given(problem=problems())
def test_costs_that_are_no_whole_numbers_end_at_the_first_that_does_not_fit(problem):
    scores, costs, budget, _ = problem
    tensors, prices = as_tensors(scores, costs)
    prices = [price.double() / 8 for price in prices]  # exact in binary
    room = torch.tensor(budget / 8, dtype=torch.float64)
    masks = masks_within(tensors, prices, room, [0] * len(scores))
    assert sum(float(cost_of(m, c)) for m, c in zip(masks, prices, strict=True)) <= room
    pairs = [p for s, m in zip(scores, masks, strict=True) for p in zip(s, m.tolist(), strict=True)]
    present = [score for score, here in pairs if here]
    absent = [score for score, here in pairs if not here]
    assert not absent or not present or min(present) >= max(absent)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_costs_of_a_mask_broadcast_as_over_kernels_and_inputs(dtype):
    torch.manual_seed(0)
    mask = torch.rand(4, 3, 2, 2) < 0.5
    for shape in [(1, 1, 1, 1), (1, 1, 2, 2), (1, 3, 2, 2), (4, 3, 2, 2)]:
        cost = torch.randint(0, 9, shape).to(torch.float64)
        assert cost_of(mask, cost) == (mask * cost).sum()
        assert dense_cost(mask, cost) == (torch.ones_like(mask) * cost).sum()
    scores = torch.rand(4, 3, 2, 2).to(dtype)
    cost = torch.randint(1, 9, (1, 1, 2, 2))
    values = frozenset(cost.flatten().tolist())
    (found,) = masks_within([scores], [cost], torch.tensor(100), [1], [values])
    flat = cost.expand_as(scores).flatten().tolist()
    assert [found.flatten().tolist()] == spend([scores.flatten().tolist()], [flat], 100, [1])


def test_nothing_fits_everything_fits_and_what_is_never_used_is_free():
    scores, costs = [torch.tensor([3.0, 1.0])], [torch.tensor([5, 7])]
    values = [frozenset({5, 7})]
    assert masks_within(scores, costs, torch.tensor(4), [0], values)[0].tolist() == [False, False]
    assert masks_within(scores, costs, torch.tensor(12), [0], values)[0].tolist() == [True, True]
    # a tap that meets only padding costs nothing; the better of the others is bought
    scores, costs = [torch.tensor([3.0, 2.0, 1.0])], [torch.tensor([0, 9, 4])]
    found = masks_within(scores, costs, torch.tensor(5), [0], [frozenset({9, 4})])
    assert found[0].tolist() == [True, False, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_finds_the_same_without_being_waited_for():
    generator = torch.Generator().manual_seed(0)
    shapes = [(64, 64, 3, 3), (300, 2000), (10, 300)]
    scores = [torch.randn(shape, generator=generator).abs() for shape in shapes]
    costs = [torch.tensor([225, 240, 225, 240, 256, 240, 225, 240, 225]).view(1, 1, 3, 3)]
    costs += [torch.ones(1, 1, dtype=torch.int64)] * 2
    values = [frozenset(cost.flatten().tolist()) for cost in costs]
    budget, floors = torch.tensor(200_000), [10, 10, 10]
    expected = masks_within(scores, costs, budget, floors, values)
    inputs = [[x.cuda() for x in each] for each in (scores, costs)]
    budget = budget.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = masks_within(*inputs, budget, floors, values)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.cpu(), b)
