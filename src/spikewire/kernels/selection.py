"""Exact selection of the largest values without a sort, and without waiting for the device.

The twins in plain torch are the functions of the same names in `spikewire.pruning.selection`, which
call these where `same_layout` holds.
"""

# Triton's tensors carry no types a checker could follow.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportReturnType=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, UNROLL = 512, 8  # of `count_digits`: 64 registers and 32 pending reads per thread
SCAN = 1024  # values per round of `_count_above` and `_write_mask`
PROGRAMS = 1056  # of these three kernels: eight on each of an H200's 132 multiprocessors
DIGITS, BASE = 8, 16  # a key of 32 bits is found in passes of four bits
MAX_ROUNDS = 255 // UNROLL  # a byte counts up to 255


@triton.jit
def _ordered(bits):
    """Map float bits to integers of the same order; its own inverse."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _lowest_key(count_ptr, k_ptr, digits, DIGITS: tl.constexpr, BASE: tl.constexpr):
    """Return the lowest key that has the first `digits` digits found so far."""
    digit, value = tl.arange(0, DIGITS), tl.arange(0, BASE)
    pointer = count_ptr + digit[:, None] * BASE + value[None, :]
    counts = tl.load(pointer, mask=(digit < digits)[:, None], other=0)
    enough = (tl.cumsum(counts, 1, reverse=True) >= tl.load(k_ptr)) & (value > 0)[None, :]
    known = tl.sum(enough.to(tl.int32), 1)
    return -0x7FFFFFFF - 1 + tl.sum(known << (4 * (DIGITS - 1 - digit)), 0)


@triton.jit
def _add_bytes(packed, count_ptr, cost):
    """Add up the eight counts stored in the bytes of every element of `packed`, at their cost."""
    byte = tl.arange(0, 8)
    counts = tl.sum(((packed[:, None] >> (8 * byte)[None, :]) & 255).to(tl.int32), 0)
    tl.atomic_add(count_ptr + byte, counts.to(tl.int64) * cost, sem="relaxed")


@triton.jit(do_not_specialize=["cost", "digit", "rounds"])
def count_digits(
    bits_ptr, count_ptr, k_ptr, total, cost, digit, rounds,
    DIGITS: tl.constexpr, BASE: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Add what the keys cost by their next digit; smaller keys as 0, larger ones as the last.

    The digits found so far follow from the counts.
    """
    shift = 4 * (DIGITS - 1 - digit)
    least = _lowest_key(count_ptr, k_ptr, digit, DIGITS, BASE) >> shift
    low, high = tl.zeros((TILE,), tl.int64), tl.zeros((TILE,), tl.int64)
    offset = tl.program_id(0).to(tl.int64) * rounds * (UNROLL * TILE) + tl.arange(0, TILE)
    while rounds > 0:
        tiles = ()
        for i in tl.static_range(UNROLL):  # all reads start before the first is used
            inside = offset + i * TILE < total
            tiles = tiles + (tl.load(bits_ptr + offset + i * TILE, mask=inside, other=-1),)
        for i in tl.static_range(UNROLL):
            key = tl.maximum(_ordered(tiles[i]) >> shift, least)
            value = tl.minimum(key, least + (BASE - 1)) - least
            one = tl.full((TILE,), 1, tl.int64) << (8 * (value & 7))
            low += tl.where(value < 8, one, 0)
            high += tl.where(value < 8, 0, one)
        offset += UNROLL * TILE
        rounds -= 1
    _add_bytes(low, count_ptr + digit * BASE, cost)
    _add_bytes(high, count_ptr + digit * BASE + 8, cost)


@triton.jit
def _write_key(count_ptr, k_ptr, out_ptr, DIGITS: tl.constexpr, BASE: tl.constexpr):
    """Write the key that was found as float bits."""
    tl.store(out_ptr, _ordered(_lowest_key(count_ptr, k_ptr, DIGITS, DIGITS, BASE)))


@triton.jit(do_not_specialize=["rounds"])
def _count_above(score_ptr, threshold_ptr, above_ptr, tied_ptr, total, rounds, SIZE: tl.constexpr):
    """Count, in the range of each program, the scores above the threshold and those equal to it."""
    threshold, above, tied = tl.load(threshold_ptr), 0, 0
    offset = tl.program_id(0).to(tl.int64) * rounds * SIZE + tl.arange(0, SIZE)
    while rounds > 0:
        inside = offset < total
        score = tl.load(score_ptr + offset, mask=inside, other=0.0)
        above += tl.sum((inside & (score > threshold)).to(tl.int32), 0)
        tied += tl.sum((inside & (score == threshold)).to(tl.int32), 0)
        offset += SIZE
        rounds -= 1
    tl.store(above_ptr + tl.program_id(0), above)
    tl.store(tied_ptr + tl.program_id(0), tied)


@triton.jit(do_not_specialize=["rounds"])
def _write_mask(
    score_ptr, threshold_ptr, above_ptr, tied_ptr, mask_ptr, count_ptr, total, rounds,
    PROGRAMS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Mark the scores above the threshold, and the first of the equal ones up to the count."""
    program = tl.arange(0, PROGRAMS)
    above = tl.load(above_ptr + program, mask=program < tl.num_programs(0), other=0)
    tied = tl.load(tied_ptr + program, mask=program < tl.program_id(0), other=0)
    room = tl.load(count_ptr) - tl.sum((above + tied).to(tl.int64), 0)
    threshold = tl.load(threshold_ptr)
    offset = tl.program_id(0).to(tl.int64) * rounds * SIZE + tl.arange(0, SIZE)
    while rounds > 0:
        inside = offset < total
        score = tl.load(score_ptr + offset, mask=inside, other=0.0)
        equal = (inside & (score == threshold)).to(tl.int32)
        first = (equal > 0) & (tl.cumsum(equal, 0) <= room)
        tl.store(mask_ptr + offset, (score > threshold) | first, mask=inside)
        room -= tl.sum(equal, 0)
        offset += SIZE
        rounds -= 1


def _ranges(total: int, size: int, max_rounds: int) -> tuple[tuple[int], int]:
    """Return the grid for `total` values, and how many rounds of `size` each program runs."""
    pieces = triton.cdiv(total, size)
    rounds = min(max_rounds, triton.cdiv(pieces, PROGRAMS))
    return (triton.cdiv(pieces, rounds),), rounds


def _scalar(value: int | Tensor, device: torch.device) -> Tensor:
    """Return a number as a tensor of 64 bits, without waiting for the device."""
    if isinstance(value, Tensor):
        return value.long()
    return torch.full((), value, dtype=torch.int64, device=device)


def kth_largest(flat: Tensor, k: int | Tensor) -> Tensor:
    """Return the k-th largest value.

    The twin is `spikewire.pruning.selection.kth_largest`.

    Args:
        flat: float32 values ``[n]``, not NaN.
        k: from 1 (the largest) to n; a scalar tensor is not waited for.

    Returns:
        The value, a scalar tensor on the device of `flat`.
    """
    return _highest([flat], [1], _scalar(k, flat.device))


def level_within(scores: Sequence[Tensor], costs: Sequence[int], budget: Tensor) -> Tensor:
    """Return the highest score such that it and all above cost more than the budget.

    The twin is `spikewire.pruning.spending.level_within`.

    Args:
        scores: float32 values ``[n]`` each, not NaN.
        costs: the cost of each value of a tensor.
        budget: a scalar tensor.

    Returns:
        The score, a scalar tensor on the device of the scores.
    """
    return _highest(scores, costs, budget.long() + 1)


def _highest(scores: Sequence[Tensor], costs: Sequence[int], k: Tensor) -> Tensor:
    """Return the highest score such that it and all above cost k or more.

    Eight counting passes over each tensor, and no result is read back.
    """
    counts = torch.zeros(DIGITS, BASE, dtype=torch.int64, device=k.device)
    out = torch.empty((), dtype=torch.int32, device=k.device)
    bits = [flat.contiguous().view(torch.int32) for flat in scores]
    key = {"DIGITS": DIGITS, "BASE": BASE}
    for digit in range(DIGITS):
        for flat, cost in zip(bits, costs, strict=True):
            grid, rounds = _ranges(flat.numel(), UNROLL * TILE, MAX_ROUNDS)
            count_digits[grid](
                flat, counts, k, flat.numel(), cost, digit, rounds, TILE=TILE, UNROLL=UNROLL, **key
            )
    _write_key[(1,)](counts, k, out, **key)
    return out.view(torch.float32)


def mask_from_threshold(flat: Tensor, threshold: Tensor, count: int | Tensor) -> Tensor:
    """Return the mask of all values above `threshold` and the first that equal it.

    The twin is `spikewire.pruning.selection.mask_from_threshold`.

    Args:
        flat: float32 values ``[n]``, not NaN.
        threshold: the `count`-th largest of them, a scalar tensor.
        count: how many entries of the mask are True; a scalar tensor is not waited for.

    Returns:
        The mask, bool ``[n]``.
    """
    grid, rounds = _ranges(flat.numel(), SCAN, flat.numel())
    above, tied = torch.empty(2, *grid, dtype=torch.int32, device=flat.device)
    mask = torch.empty_like(flat, dtype=torch.bool)
    inputs, total = (flat, threshold, above, tied), flat.numel()
    _count_above[grid](*inputs, total, rounds, SIZE=SCAN)
    width, room = triton.next_power_of_2(PROGRAMS), _scalar(count, flat.device)
    _write_mask[grid](*inputs, mask, room, total, rounds, PROGRAMS=width, SIZE=SCAN)
    return mask
