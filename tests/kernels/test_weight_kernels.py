"""The kernels of selection and of weight updates against plain torch, bit for bit."""

import pytest
import torch
from comparison import DEVICE, normal, on_torch
from torch import Tensor

from spikewire import kernels
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
    monkeypatch.setattr(selection_kernels, "PROGRAMS", 2)
    scores = (normal(9_003) * 8).round()
    mask = selection.top_k_mask(scores, 4000)
    assert torch.equal(mask, on_torch(selection.top_k_mask, scores, 4000))


def test_a_byte_holds_all_that_a_program_counts_in_it():
    digits, base = selection_kernels.DIGITS, selection_kernels.BASE
    tile, unroll, rounds = 16, selection_kernels.UNROLL, selection_kernels.MAX_ROUNDS
    keys = torch.full((tile * unroll * rounds,), 0x7F7F7F7F, device=DEVICE)
    counts = torch.zeros(digits, base, dtype=torch.int64, device=DEVICE)
    sizes = {"DIGITS": digits, "BASE": base, "TILE": tile, "UNROLL": unroll}
    k = torch.ones((), dtype=torch.int64, device=DEVICE)
    selection_kernels.count_digits[(1,)](keys.int(), counts, k, len(keys), 7, 0, rounds, **sizes)
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


def test_level_within_a_budget():
    """The twin bisects bits; the kernel counts digits."""
    scores, costs = [normal(1), normal(700), (normal(5000) * 8).round()], [961, 25, 1]
    total = 961 + 700 * 25 + 5000
    for budget in (0, 960, total // 2, total - 1, total):
        room = torch.tensor(budget, device=DEVICE)
        expected = on_torch(spending.level_within, scores, costs, room)
        found = selection_kernels.level_within(scores, costs, room)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    for k in (1, 3, 5000):
        found = selection.kth_largest(scores[1].repeat(8)[:5000], torch.tensor(k, device=DEVICE))
        assert found == selection.select(scores[1].repeat(8)[:5000].cpu(), k).item()
