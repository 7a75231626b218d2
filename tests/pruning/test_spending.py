"""Masks within a budget: against a sort that adds up costs, floors, ties, what is left over."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spikewire.pruning import spending
from spikewire.pruning.spending import cost_of, dense_cost, masks_within

quick = settings(max_examples=80, deadline=None, derandomize=True, database=None)


def spend(scores, costs, budget, floors, buying=None):
    """Sort, add up the costs, cut; then buy the best of every cost, the most expensive first.

    Everything is a list of lists: one score and one cost per weight, whole numbers. Layers that
    are not among those `buying` get nothing of what the cut leaves.
    """
    places = [(i, j) for i, layer in enumerate(scores) for j in range(len(layer))]
    order = sorted(places, key=lambda p: (-scores[p[0]][p[1]], p))
    best = [[p for p in order if p[0] == i][:n] for i, n in enumerate(floors)]
    kept = {p for layer in best for p in layer}

    def price(place):
        return costs[place[0]][place[1]]

    room = max(budget, sum(map(price, kept))) - sum(map(price, kept))
    rest = [p for p in order if p not in kept]
    for level in sorted({scores[i][j] for i, j in rest}, reverse=True):
        equal = [p for p in rest if scores[p[0]][p[1]] == level]
        if sum(map(price, equal)) > room:
            break
        kept.update(equal)
        room -= sum(map(price, equal))
    for value in sorted({c for layer in costs for c in layer if c > 0}, reverse=True):
        for p in rest:
            may = buying is None or p[0] in buying
            if may and p not in kept and price(p) == value <= room:
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
    """Layers of one output and one input, with a kernel; a single cost stands for all weights."""
    shown = [[c[0]] if len(set(c)) == 1 else c for c in costs]
    tensors = [torch.tensor(x).view(1, 1, -1) for x in scores]
    return tensors, [torch.tensor(c).view(1, 1, -1) for c in shown]


def groups_of(costs):
    """Return the positions of the kernel by cost; none where all have the same."""
    return [
        {v: (cost.flatten() == v).nonzero().flatten() for v in cost.unique().tolist()}
        if cost.numel() > 1
        else {int(cost): torch.empty(0, dtype=torch.int64)}
        for cost in costs
    ]


@quick
@given(problem=problems())
def test_equals_a_sort_that_adds_up_costs(problem):
    scores, costs, budget, floors = problem
    tensors, prices = as_tensors(scores, costs)
    masks = masks_within(tensors, prices, torch.tensor(budget), floors, groups_of(prices))
    assert [mask.flatten().tolist() for mask in masks] == spend(scores, costs, budget, floors)


@quick
@given(problem=problems())
def test_the_budget_is_met_to_the_cheapest_absent_weight(problem):
    scores, costs, budget, floors = problem
    tensors, prices = as_tensors(scores, costs)
    masks = masks_within(tensors, prices, torch.tensor(budget), floors, groups_of(prices))
    spent = sum(int(cost_of(m, c)) for m, c in zip(masks, prices, strict=True))
    absent = [
        c for m, layer in zip(masks, costs, strict=True)
        for here, c in zip(m.flatten().tolist(), layer, strict=True) if not here
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
@given(problem=problems(), absent=st.integers(0, 2**10))
def test_what_scores_minus_infinity_is_not_for_sale(problem, absent):
    """What is left buys others instead, as if the weight did not exist."""
    scores, costs, budget, _ = problem
    scores = [
        [-math.inf if absent >> (i + j) % 10 & 1 else x for j, x in enumerate(layer)]
        for i, layer in enumerate(scores)
    ]
    rest = [[x > -math.inf for x in layer] for layer in scores]
    kept = [
        [c if r else 10**9 for c, r in zip(*pair, strict=True)]
        for pair in zip(costs, rest, strict=True)
    ]
    tensors, prices = as_tensors(scores, costs)
    floors = [0] * len(scores)
    masks = masks_within(tensors, prices, torch.tensor(budget), floors, groups_of(prices))
    assert [mask.flatten().tolist() for mask in masks] == spend(scores, kept, budget, floors)


@quick
@given(problem=problems())
def test_layers_may_keep_their_highest_scores_whatever_these_cost(problem):
    scores, costs, budget, floors = problem
    tensors, prices = as_tensors(scores, costs)
    inputs = tensors, prices, torch.tensor(budget), floors, groups_of(prices)
    masks = masks_within(*inputs, in_order=True)
    one = [i for i, layer in enumerate(costs) if len(set(layer)) == 1]
    expected = spend(scores, costs, budget, floors, one)
    assert [mask.flatten().tolist() for mask in masks] == expected
    for score, mask in zip(tensors, masks, strict=True):
        if mask.any() and not mask.all():
            assert score[mask].min() >= score[~mask].max()


def spend_in_order(scores, costs, budget, floors):
    """Sort, add up the costs, cut; of those equal to the first that is too much, the first fit."""
    places = [(i, j) for i, layer in enumerate(scores) for j in range(len(layer))]
    order = sorted(places, key=lambda p: (-scores[p[0]][p[1]], p))
    kept = {p for i, n in enumerate(floors) for p in [q for q in order if q[0] == i][:n]}
    room = max(budget, sum(costs[i][j] for i, j in kept)) - sum(costs[i][j] for i, j in kept)
    rest = [p for p in order if p not in kept]
    for level in sorted({scores[i][j] for i, j in rest}, reverse=True):
        equal = [(i, j) for i, j in rest if scores[i][j] == level]
        fits = sum(costs[i][j] for i, j in equal) <= room
        for layer in range(len(scores)):
            for i, j in (p for p in equal if p[0] == layer):
                if costs[i][j] > room:
                    break
                kept.add((i, j))
                room -= costs[i][j]
        if not fits:
            break
    return [[(i, j) in kept for j in range(len(layer))] for i, layer in enumerate(scores)]


@quick
@given(problem=problems())
def test_costs_that_are_no_whole_numbers_end_at_the_first_that_does_not_fit(problem):
    scores, costs, budget, floors = problem
    tensors, prices = as_tensors(scores, costs)
    room = torch.tensor(budget / 8, dtype=torch.float64)  # exact in binary
    masks = masks_within(tensors, [price.double() / 8 for price in prices], room, floors)
    expected = spend_in_order(scores, costs, budget, floors)
    assert [mask.flatten().tolist() for mask in masks] == expected


def spend_single(scores, costs, budget, floors, number, in_order):
    """As `spend_in_order`, then one weight after the other: the best of the dearest that fit."""
    masks = spend_in_order(scores, costs, budget, floors)
    places = [(i, j) for i, layer in enumerate(scores) for j in range(len(layer))]
    for _ in range(number):
        spent = sum(costs[i][j] for i, j in places if masks[i][j])
        room = max(budget, spent) - spent
        if 1000 * room <= max(budget, spent):
            break
        absent = [(i, j) for i, j in places if not masks[i][j]]
        if in_order:
            best = {i: max(scores[k][j] for k, j in absent if k == i) for i, _ in absent}
            absent = [(i, j) for i, j in absent if scores[i][j] == best[i]]
        fits = [(i, j) for i, j in absent if costs[i][j] <= room]
        dear = [(i, j) for i, j in fits if 2 * costs[i][j] >= max(costs[k][n] for k, n in fits)]
        if not dear:
            break
        i, j = max(dear, key=lambda p: scores[p[0]][p[1]])  # the first of equal ones
        masks[i][j] = True
    return masks


@quick
@given(problem=problems(), number=st.integers(1, 5), in_order=st.booleans())
def test_what_is_left_buys_single_weights(problem, number, in_order):
    scores, costs, budget, floors = problem
    tensors, prices = as_tensors(scores, costs)
    room = torch.tensor(budget / 8, dtype=torch.float64)  # exact in binary
    prices = [price.double() / 8 for price in prices]
    masks = masks_within(tensors, prices, room, floors, in_order=in_order, single=number)
    expected = spend_single(scores, costs, budget, floors, number, in_order)
    assert [mask.flatten().tolist() for mask in masks] == expected


@pytest.mark.parametrize(("few", "bought"), [(3, 1), (2, 0)])
def test_single_weights_are_bought_in_small_networks_only(monkeypatch, few, bought):
    monkeypatch.setattr(spending, "FEW", few)
    scores, costs = [torch.tensor([[3.0, 2.0, 1.0]])], [torch.tensor([[1.0, 5.0, 1.0]])]
    (mask,) = masks_within(scores, costs, torch.tensor(2.0), [0], single=1)
    assert mask.tolist() == [[True, False, bool(bought)]]


@pytest.mark.parametrize("seed", range(12))
def test_a_budget_of_all_weights_pays_for_all_of_them(seed):
    """Sums of costs that are no binary fractions are rounded, by the sum of another order too."""
    generator = torch.Generator().manual_seed(seed)
    scores = [torch.randn(shape, generator=generator) for shape in [(6, 4, 3, 3), (8, 20), (5, 7)]]
    costs = [torch.rand(1, *x.shape[1:], generator=generator, dtype=torch.float64) for x in scores]
    costs[2][0, :3] = 0.0
    every = sum(float(dense_cost(s, c)) for s, c in zip(scores, costs, strict=True))
    budget = torch.tensor(every, dtype=torch.float64)
    assert all(bool(m.all()) for m in masks_within(scores, costs, budget, [1, 1, 1]))


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
    (found,) = masks_within([scores], [cost], torch.tensor(100), [1], groups_of([cost]))
    flat = cost.expand_as(scores).flatten().tolist()
    assert [found.flatten().tolist()] == spend([scores.flatten().tolist()], [flat], 100, [1])


def test_nothing_fits_everything_fits_and_what_is_never_used_is_free():
    def found(scores, costs, budget):
        tensors, prices = as_tensors([scores], [costs])
        (mask,) = masks_within(tensors, prices, torch.tensor(budget), [0], groups_of(prices))
        return mask.flatten().tolist()

    assert found([3.0, 1.0], [5, 7], 4) == [False, False]
    assert found([3.0, 1.0], [5, 7], 12) == [True, True]
    assert found([3.0, 1.0], [0, 7], 7) == [True, True]
    # a tap that meets only padding costs nothing; the better of the others is bought
    assert found([3.0, 2.0, 1.0], [0, 9, 4], 5) == [True, False, True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_gpu_finds_the_same_without_being_waited_for():
    generator = torch.Generator().manual_seed(0)
    shapes = [(64, 64, 3, 3), (300, 2000), (10, 300)]
    scores = [torch.randn(shape, generator=generator).abs() for shape in shapes]
    costs = [torch.tensor([225, 240, 225, 240, 256, 240, 225, 240, 225]).view(1, 1, 3, 3)]
    costs += [torch.ones(1, 1, dtype=torch.int64)] * 2
    groups = groups_of(costs)
    budget, floors = torch.tensor(200_000), [10, 10, 10]
    expected = masks_within(scores, costs, budget, floors, groups)
    inputs = [[x.cuda() for x in each] for each in (scores, costs)]
    budget, groups = budget.cuda(), [{v: at.cuda() for v, at in g.items()} for g in groups]
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = masks_within(*inputs, budget, floors, groups)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.cpu(), b)
