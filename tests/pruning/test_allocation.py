"""Mask functions against slow references: sorts and loops that are plainly right."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adadelta, Adam, RMSprop

from spikewire import SpikewireError
from spikewire.pruning.allocation import allocate, divide
from spikewire.pruning.moments import masked_median, median_at, reset_moments_
from spikewire.pruning.selection import random_mask, target_count
from spikewire.pruning.selection import top_k_mask as top
from spikewire.pruning.statistics import MaskCounter

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)
scores = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 0.5, 1.0, math.inf]), min_size=1)
bits = st.lists(st.booleans(), min_size=1, max_size=40)


def slow_top(values, count):
    """Sort by falling score, then by place; keep the first `count`."""
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    return [i in order[: max(count, 0)] for i in range(len(values))]


@few
@given(values=scores, count=st.integers(-1, 60))
def test_top_is_exact_and_gives_ties_to_the_lower_index(values, count):
    assert top(torch.tensor(values), count).tolist() == slow_top(values, count)


def test_top_keeps_the_shape():
    mask = top(torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 2.0]]), 3)
    assert mask.tolist() == [[True, False, True], [False, True, False]]


@few
@given(allowed=bits, count=st.integers(0, 50), seed=st.integers(0, 99))
def test_pick_draws_so_many_allowed_places(allowed, count, seed):
    mask = torch.tensor(allowed)
    chosen = random_mask(mask, count, torch.Generator().manual_seed(seed))
    assert int(chosen.sum()) == min(count, sum(allowed))
    assert not (chosen & ~mask).any()
    assert torch.equal(chosen, random_mask(mask, count, torch.Generator().manual_seed(seed)))


def test_pick_reaches_every_allowed_place_about_equally_often():
    allowed = torch.tensor([[True, False, True], [True, True, True]])
    generator = torch.Generator().manual_seed(0)
    drawn = sum(random_mask(allowed, 2, generator).int() for _ in range(2000))
    assert drawn[0, 1] == 0
    assert ((drawn[allowed] - 800).abs() < 120).all()  # 2000 draws of 2 in 5; 5 sigma is 110


@pytest.mark.parametrize(
    ("connectivity", "total", "count"),
    [(0.05, 1000, 50), (1.0, 7, 7), (1e-9, 10, 1), (0.5, 4, 2), (0.26, 10, 3), (1.0, 1, 1)],
)
def test_count_of_rounds_and_is_never_none(connectivity, total, count):
    assert target_count(connectivity, total) == count


def test_erk_by_hand():
    # densities (4 + 6) / 24, (2 + 10) / 20 and (3 + 3 + 2 + 2) / 36; budget 0.3 * 80 = 24.
    # In proportion to d * n = 10, 12, 10: 7.5, 9 and 7.5; the odd one goes to the first.
    assert allocate([(4, 6), (2, 10), (3, 3, 2, 2)], 0.3, "erk") == [8, 9, 7]


def test_erk_fills_a_small_layer_and_gives_the_rest_to_the_others():
    # The budget 45 by d * n = 20 : 50 : 4 is 12.2, 30.4 and 2.4; the last layer holds 1 synapse,
    # so the first two fraction 44 by 20 : 50, which is 12.57 and 31.43.
    assert allocate([(10, 10), (20, 30), (1, 1, 1, 1)], 45 / 701, "erk") == [13, 31, 1]


def test_uniform_is_the_same_fraction_everywhere():
    assert allocate([(10, 10), (20, 30), (2, 5)], 0.1) == [10, 60, 1]


def test_allocate_names_a_wrong_word():
    with pytest.raises(SpikewireError, match=r"allocation: unknown 'erdos'.*erk, uniform"):
        allocate([(2, 2)], 0.5, "erdos")


@few
@given(
    layers=st.lists(st.tuples(st.integers(1, 200), st.floats(1e-4, 1.0)), min_size=1, max_size=6),
    part=st.floats(0, 1.2),
)
def test_divide_sums_to_the_budget_within_bounds_and_in_proportion(layers, part):
    totals, densities = [t for t, _ in layers], [d for _, d in layers]
    budget = round(part * sum(totals))
    counts = divide(totals, densities, budget)
    assert sum(counts) == min(max(budget, len(totals)), sum(totals))
    assert all(1 <= count <= total for count, total in zip(counts, totals, strict=True))
    free = [i for i, (c, t) in enumerate(zip(counts, totals, strict=True)) if 1 < c < t]
    scales = [(counts[i] + s) / (densities[i] * totals[i]) for i in free for s in (-1.001, 1.001)]
    if free:  # one scale explains every layer that is neither full nor at its least
        assert max(scales[::2]) <= min(scales[1::2])


@few
@given(pairs=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1))
def test_changes_count_pruned_and_regrown(pairs):
    before, after = (torch.tensor(side) for side in zip(*pairs, strict=True))
    lost = sum(a and not b for a, b in pairs)
    won = sum(b and not a for a, b in pairs)
    row = MaskCounter({"w": before}).changes({"w": after})["w"]
    assert (row["pruned"], row["regrown"]) == (lost, won)
    both = int(before.sum()) + int(after.sum())
    assert row["turnover"] == ((lost + won) / both if both else 0.0)
    assert (row["present"], row["total"]) == (int(after.sum()), len(pairs))


@pytest.mark.parametrize(
    ("kind", "firsts", "seconds"),
    [
        (lambda p: Adam(p, amsgrad=True), ["exp_avg"], ["exp_avg_sq", "max_exp_avg_sq"]),
        (lambda p: SGD(p, lr=0.1, momentum=0.9), ["momentum_buffer"], []),
        (
            lambda p: RMSprop(p, momentum=0.9, centered=True),
            ["momentum_buffer", "grad_avg"],
            ["square_avg"],
        ),
        (lambda p: Adadelta(p), [], ["square_avg", "acc_delta"]),
    ],
)
def test_reset_moments_clears_first_moments_and_takes_the_median_of_second_ones(
    kind, firsts, seconds
):
    weight = nn.Parameter(torch.zeros(5))
    optimizer = kind([weight])
    for scale in (1.0, 2.0):
        weight.grad = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0]) * scale
        optimizer.step()
    regrown = torch.tensor([True, False, False, False, False])
    present = torch.tensor([False, True, True, True, False])
    before = {k: v.clone() for k, v in optimizer.state[weight].items() if v.shape == (5,)}
    assert sorted(before) == sorted([*firsts, *seconds]), "a moment this test does not know"
    reset_moments_(optimizer, weight, regrown, present)
    after = optimizer.state[weight]
    for key in firsts:
        assert after[key][0] == 0
    for key in seconds:
        assert after[key][0] == sorted(before[key][present].tolist())[1]
    assert all(torch.equal(after[key][1:], before[key][1:]) for key in before)


def test_reset_moments_without_any_state_yet_does_nothing():
    weight = nn.Parameter(torch.zeros(2))
    optimizer = Adam([weight])
    reset_moments_(optimizer, weight, torch.tensor([True, False]), torch.tensor([False, True]))
    assert weight not in optimizer.state


def test_median_of_a_sample_is_near_the_whole_and_of_nothing_is_zero():
    values = torch.arange(100_001.0)
    everywhere = torch.ones(100_001, dtype=torch.bool)
    assert masked_median(values, everywhere, at_most=1000) == pytest.approx(50_000, rel=0.01)
    assert masked_median(values, everywhere, at_most=10**6) == 50_000
    assert masked_median(values, ~everywhere) == 0
    some = torch.rand(values.shape) < 0.1
    for where in (everywhere, ~everywhere, some):
        assert median_at(values, where) == masked_median(values, where, at_most=10**6)
