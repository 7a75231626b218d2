"""The kernels of selection and of weight updates against plain torch, bit for bit."""

import pytest
import torch
from comparison import DEVICE, normal, on_torch
from torch import Tensor

from spikewire import kernels
from spikewire.kernels import pieces
from spikewire.kernels import selection as selection_kernels
from spikewire.pruning import selection, spending, updates

VALUES = {
    "one": lambda: normal(1),
    "many": lambda: normal(10_007),
    "ties": lambda: (normal(5000) * 2).round(),
    "tiny": lambda: normal(777) * 1e-38,
    "infinite": lambda: torch.cat([normal(9), normal(6) / 0, normal(3) * 0]),
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_kth_largest(make):
    values = make()
    for k in {1, values.numel(), values.numel() // 3 + 1}:
        assert selection.kth_largest(values, k) == selection.select(values.cpu(), k).item()


def test_top_k_mask_is_the_same_on_both_paths():
    scores = (normal(37, 50) * 8).round()
    mask = selection.top_k_mask(scores, 700)
    assert mask.sum() == 700
    assert torch.equal(mask, on_torch(selection.top_k_mask, scores, 700))
    flat, count = scores.flatten(), torch.tensor(700, device=DEVICE)  # as a device computes it
    level = selection_kernels.kth_largest(flat, count)
    assert torch.equal(selection_kernels.mask_from_threshold(flat, level, count), mask.flatten())
    none = selection_kernels.kth_largest(flat, count * 0)
    assert not selection_kernels.mask_from_threshold(flat, none, count * 0).any()


def test_selection_over_programs_of_several_rounds(monkeypatch):
    monkeypatch.setattr(pieces, "PROGRAMS", 2)
    scores = (normal(9_003) * 8).round()
    mask = selection.top_k_mask(scores, 4000)
    assert torch.equal(mask, on_torch(selection.top_k_mask, scores, 4000))


def test_all_parts_of_a_tensor_are_selected_from_at_once():
    sizes = [1, 700, 2049, 3]
    flat = (normal(sum(sizes)) * 4).round()
    for counts in ([1, 350, 2049, 0], [0, 1, 1000, 3]):
        mask = selection.top_k_parts(flat, sizes, counts)
        assert [int(part.sum()) for part in mask.split(sizes)] == counts
        assert torch.equal(mask, on_torch(selection.top_k_parts, flat, sizes, counts))
        here = torch.tensor(counts, device=DEVICE)  # as a device computes them
        assert torch.equal(mask, selection.top_k_parts(flat, sizes, here))
        assert torch.equal(mask, selection.top_k_parts(flat, sizes, [here[0], *counts[1:]]))


def test_a_byte_holds_all_that_a_program_counts_in_it():
    digits, base = selection_kernels.DIGITS, selection_kernels.BASE
    tile, unroll, rounds = 16, pieces.UNROLL, pieces.MAX_ROUNDS
    keys = torch.full((tile * unroll * rounds,), 0x7F7F7F7F, device=DEVICE)
    counts = torch.zeros(digits, base, dtype=torch.int64, device=DEVICE)
    sizes = {"DIGITS": digits, "BASE": base, "TILE": tile, "UNROLL": unroll}
    k = torch.ones(1, dtype=torch.int64, device=DEVICE)
    table = torch.tensor([[0, len(keys), tile, tile, rounds, 0, 1, 0]], device=DEVICE)
    inputs = keys.int(), torch.tensor([7], device=DEVICE), table
    selection_kernels.count_digits[(1,)](*inputs, counts, k, 0, **sizes)
    assert counts[0].tolist() == [0] * 15 + [7 * len(keys)]
    assert counts[1:].sum() == 0


def weight_and_sign() -> tuple[Tensor, Tensor]:
    """Return a channels-last weight with some zeros, and signs that are not its own."""
    weight = normal(6, 5, 3, 3).contiguous(memory_format=torch.channels_last)
    weight[:2, :2] = 0.0
    return weight, torch.ones_like(weight).copysign_(normal(6, 5, 3, 3, seed=1))


@pytest.mark.parametrize("mu", [-2302.6, -0.5, 0.0, 0.3, float("-inf")])
def test_drag_has_equal_bits_on_both_paths(mu):
    weight, sign = weight_and_sign()
    twin, version = weight.clone(), weight._version
    updates.drag_(weight, sign, mu, 3e-5)
    on_torch(updates.drag_, twin, sign, mu, 3e-5)
    assert torch.equal(weight, twin)
    assert weight._version > version


def test_rectify_has_equal_bits_on_both_paths():
    weight, sign = weight_and_sign()
    weight[3, 3] = torch.nan
    shown = updates.rectify(weight, sign)
    twin = on_torch(updates.rectify, weight, sign)
    assert shown.stride() == weight.stride()
    assert torch.equal(shown.nan_to_num(9), twin.nan_to_num(9))
    assert shown[3, 3].isnan().all()
    out = torch.zeros_like(weight)
    assert updates.rectify(weight, sign, out=out) is out
    assert torch.equal(out.nan_to_num(9), shown.nan_to_num(9))
    assert out._version > 0


def test_other_layouts_are_left_to_torch():
    weight, sign = weight_and_sign()
    assert kernels.same_layout(weight, sign)
    assert not kernels.same_layout(weight, sign.contiguous())
    assert not kernels.same_layout(weight[:, ::2], sign[:, ::2])
    assert not kernels.same_layout(weight.double(), sign.double())


SIZES, COSTS = [1, 700, 5000], [961, 25, 1]


def test_level_within_a_budget():
    """The twin bisects bits; the kernel counts digits."""
    flat = torch.cat([normal(701), (normal(5000) * 8).round()])
    total = 961 + 700 * 25 + 5000
    for budget in (0, 960, total // 2, total - 1, total):
        room = torch.tensor(budget, device=DEVICE)
        expected = on_torch(spending.level_within, flat, SIZES, COSTS, room)
        found = spending.level_within(flat, SIZES, COSTS, room)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("tile", [16, 512])
def test_level_within_a_budget_where_weights_of_a_layer_differ_in_cost(tile, monkeypatch):
    """Fewer costs than lanes, more, and one per weight, over several programs."""
    monkeypatch.setattr(pieces, "TILE", tile)
    monkeypatch.setattr(pieces, "PROGRAMS", 3)
    pieces.counting.cache_clear()
    sizes, lengths = [9 * 12, 21 * 10, 40, 5], [9, 21, 40, 1]
    flat = normal(sum(sizes))
    generator = torch.Generator().manual_seed(0)
    costs = [torch.randint(0, 9999, (n,), generator=generator).to(DEVICE) for n in lengths]
    total = sum(int(c.sum()) * n // len(c) for c, n in zip(costs, sizes, strict=True))
    for budget in (5000, total // 3, total):
        room = torch.tensor(budget, device=DEVICE)
        expected = on_torch(spending.level_within, flat, sizes, costs, room)
        found = spending.level_within(flat, sizes, costs, room)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    pieces.counting.cache_clear()


@pytest.mark.parametrize("budget", [0, 963, 4000, 10**6])
def test_what_is_left_buys_the_same_numbers_on_both_paths(budget):
    flat = torch.cat([normal(701), (normal(5000) * 8).round()])
    room = torch.tensor(budget, device=DEVICE)
    level = spending.level_within(flat, SIZES, COSTS, room).nan_to_num(-torch.inf)
    most = torch.tensor(SIZES, device=DEVICE) - torch.arange(len(SIZES), device=DEVICE) * 7
    found = spending.counts_within(flat, SIZES, COSTS, level, room, most)
    expected = on_torch(spending.counts_within, flat, SIZES, COSTS, level, room, most)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("unit", ["positions", "inputs", "layers"])
def test_masks_within_a_budget_are_the_same_on_both_paths(unit, in_order):
    shapes = [(8, 6, 3, 3), (20, 40), (10, 20)]
    scores = [(normal(*shape, seed=i) * 8).round() for i, shape in enumerate(shapes)]
    kernel = torch.tensor([4, 6, 4, 6, 9, 6, 4, 6, 4], device=DEVICE)
    groups, costs = [], [torch.rand(1, *s[1:], dtype=torch.float64, device=DEVICE) for s in shapes]
    if unit == "layers":
        costs = [torch.full((1,) * len(s), 2.5, dtype=torch.float64, device=DEVICE) for s in shapes]
    if unit == "positions":
        everywhere = torch.empty(0, dtype=torch.int64, device=DEVICE)
        costs = [kernel.view(1, 1, 3, 3), *[torch.ones(1, 1, device=DEVICE).long()] * 2]
        groups = [{v: (kernel == v).nonzero().flatten() for v in (4, 6, 9)}, *[{1: everywhere}] * 2]
    every = sum(float(c.sum()) * s.numel() / c.numel() for s, c in zip(scores, costs, strict=True))
    for fraction in (0.01, 0.3, 1.0):
        budget = torch.tensor(fraction * every, device=DEVICE, dtype=torch.float64)
        inputs = scores, costs, budget, [3, 3, 3], groups, in_order
        for a, b in zip(
            spending.masks_within(*inputs), on_torch(spending.masks_within, *inputs), strict=True
        ):
            assert torch.equal(a, b)
