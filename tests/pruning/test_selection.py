"""Exact selection: both ways against a sort, ties, floors, a layer's own connectivity."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import compete
from torch import nn

from spikewire.pruning.layers import Layer
from spikewire.pruning.selection import (
    bisect,
    highest_absent,
    kth_largest,
    select,
    select_masks,
    top_k_mask,
    top_k_masks,
)

WAYS = pytest.mark.parametrize("way", [bisect, select, kth_largest])
numbers = st.floats(width=32, allow_nan=False)  # infinities, both zeros and subnormals too
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@WAYS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@quick
@given(values=st.lists(numbers, min_size=1, max_size=30), data=st.data())
def test_equals_a_sort(way, dtype, values, data):
    k = data.draw(st.integers(1, len(values)))
    tensor = torch.tensor(values, dtype=dtype)
    found = way(tensor, k)
    assert found.dtype == dtype
    assert found.shape == ()
    assert found == sorted(tensor.tolist(), reverse=True)[k - 1]


@WAYS
def test_extremes(way):
    values = torch.tensor([-math.inf, -0.0, 0.0, math.inf, -1.0, 1e-45, -1e-45, 3e38, -3e38])
    for k, expected in enumerate(sorted(values.tolist(), reverse=True), start=1):
        assert way(values, k) == expected
    assert way(torch.full((7,), 2.5), 4) == 2.5
    assert way(torch.tensor([-3.0]), 1) == -3.0


def test_the_bisection_agrees_on_many_values():
    for dtype in (torch.float32, torch.float64):
        values = torch.randn(20_000, dtype=dtype, generator=torch.Generator().manual_seed(0))
        for k in (1, 7, 1000, 19_999, 20_000):
            assert torch.equal(bisect(values, k), select(values, k))


@quick
@given(scores=st.lists(st.integers(-2, 2), min_size=1, max_size=30), data=st.data())
def test_the_mask_is_exact_and_ties_go_to_the_lower_index(scores, data):
    count = data.draw(st.integers(0, len(scores)))
    mask = top_k_mask(torch.tensor(scores, dtype=torch.float32), count).tolist()
    best = sorted(range(len(scores)), key=lambda k: (-scores[k], k))[:count]
    assert [k for k, here in enumerate(mask) if here] == sorted(best)


def test_the_mask_has_the_shape_of_the_scores_at_any_count():
    scores = torch.arange(6.0).view(2, 3)
    assert top_k_mask(scores, -1).sum() == 0
    assert top_k_mask(scores, 9).all()
    assert top_k_mask(scores, 2).tolist() == [[False, False, False], [False, True, True]]


layers_of_scores = st.lists(st.lists(numbers, min_size=1, max_size=12), min_size=1, max_size=4)


def layers_for(scores, fractions=None):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    fractions = fractions or [None] * len(scores)
    return [
        Layer(str(i), nn.Parameter(torch.zeros(len(s))), optimizer, 0, fraction)
        for i, (s, fraction) in enumerate(zip(scores, fractions, strict=True))
    ]


@quick
@given(scores=layers_of_scores, fraction=st.floats(0.01, 1.0), floor=st.floats(0.0, 1.0))
def test_competition_equals_its_slow_twin(scores, fraction, floor):
    if any(math.isinf(x) for layer in scores for x in layer):
        scores = [[math.atan(x) for x in layer] for layer in scores]  # no score is infinite
    tensors = [torch.tensor(layer, dtype=torch.float64) for layer in scores]
    masks = select_masks(layers_for(scores), tensors, lambda layer: fraction, floor=floor)
    assert [mask.tolist() for mask in masks] == compete(scores, fraction, floor)


def test_a_layer_with_its_own_fraction_stands_apart_and_scope_layer_parts_all():
    scores = [torch.arange(10.0), torch.arange(10.0) + 100, torch.arange(20.0)]
    layers = layers_for(scores, [None, 0.5, None])

    def fraction(layer):
        return layer.connectivity or 0.2

    counts = [int(mask.sum()) for mask in select_masks(layers, scores, fraction)]
    assert counts[1] == 5
    assert sum(counts) == 5 + 6
    assert [int(m.sum()) for m in select_masks(layers, scores, fraction, "layer")] == [2, 5, 4]


def test_floors_hold_against_a_stronger_layer_even_beyond_the_count():
    scores = [torch.arange(10.0) + 100, torch.arange(10.0)]
    assert [int(m.sum()) for m in top_k_masks(scores, 5, [1, 2])] == [3, 2]
    assert [int(m.sum()) for m in top_k_masks(scores, 1, [1, 1])] == [1, 1]


@quick
@given(scores=st.lists(numbers, min_size=1, max_size=20, unique=True), data=st.data())
def test_what_exceeds_the_level_is_the_mask(scores, data):
    values = torch.tensor([math.atan(x) for x in scores], dtype=torch.float64).unique()
    count = data.draw(st.integers(0, values.numel() - 1))
    mask = top_k_mask(values, count)
    (level,) = highest_absent([values], [mask])
    assert torch.equal(values - level > 0, mask)
    assert highest_absent([values], [torch.ones_like(mask)]) == [0.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_finds_the_same():
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    for k in (1, 5000, 100_000):
        assert torch.equal(kth_largest(values.cuda(), k).cpu(), select(values, k))
