"""Exact selection of the largest values without a sort, and without waiting for the device.

The twins in plain torch are the functions of the same names in `spikewire.pruning.selection` and
`spikewire.pruning.spending`, which call these where `same_layout` holds. Every kernel is launched
once for all layers together: values are one flat tensor of parts, and a table of
`spikewire.kernels.pieces` says which program reads which piece of it.
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

from spikewire.kernels import pieces
from spikewire.kernels.pieces import Part

DIGITS, BASE = 8, 16  # a key of 32 bits is found in passes of four bits


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
    """Add up the eight counts stored in the bytes of every element of `packed`, at their costs."""
    byte = tl.arange(0, 8)
    counts = (packed[:, None] >> (8 * byte)[None, :]) & 255
    tl.atomic_add(count_ptr + byte, tl.sum(counts * cost[:, None], 0), sem="relaxed")


@triton.jit(do_not_specialize=["digit"])
def count_digits(
    bits_ptr, cost_ptr, table_ptr, count_ptr, k_ptr, digit,
    DIGITS: tl.constexpr, BASE: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Add what the keys cost by their next digit; smaller keys as 0, larger ones as the last.

    The digits found so far follow from the counts. All keys that a lane reads have the same cost.
    """
    line = table_ptr + tl.program_id(0) * 8
    start, stop = tl.load(line), tl.load(line + 1)
    width, stride, rounds = tl.load(line + 2), tl.load(line + 3), tl.load(line + 4)
    first, costs, search = tl.load(line + 5), tl.load(line + 6), tl.load(line + 7)
    count_ptr += search * (DIGITS * BASE)
    shift = 4 * (DIGITS - 1 - digit)
    least = _lowest_key(count_ptr, k_ptr + search, digit, DIGITS, BASE) >> shift
    low, high = tl.zeros((TILE,), tl.int64), tl.zeros((TILE,), tl.int64)
    lane = tl.arange(0, TILE)
    used, offset = lane < width, start + lane
    while rounds > 0:
        tiles = ()
        for i in tl.static_range(UNROLL):  # all reads start before the first is used
            inside = used & (offset + i * stride < stop)
            tiles = tiles + (tl.load(bits_ptr + offset + i * stride, mask=inside, other=-1),)
        for i in tl.static_range(UNROLL):
            key = tl.maximum(_ordered(tiles[i]) >> shift, least)
            value = tl.minimum(key, least + (BASE - 1)) - least
            one = tl.full((TILE,), 1, tl.int64) << (8 * (value & 7))
            low += tl.where(value < 8, one, 0)
            high += tl.where(value < 8, 0, one)
        offset += UNROLL * stride
        rounds -= 1
    cost = tl.load(cost_ptr + first + lane % costs, mask=used, other=0)
    _add_bytes(low, count_ptr + digit * BASE, cost)
    _add_bytes(high, count_ptr + digit * BASE + 8, cost)


@triton.jit
def _write_keys(count_ptr, k_ptr, out_ptr, DIGITS: tl.constexpr, BASE: tl.constexpr):
    """Write the keys that were found as float bits."""
    search = tl.program_id(0)
    key = _lowest_key(count_ptr + search * (DIGITS * BASE), k_ptr + search, DIGITS, DIGITS, BASE)
    tl.store(out_ptr + search, _ordered(key))


@triton.jit
def _count_above(score_ptr, threshold_ptr, table_ptr, above_ptr, tied_ptr, SIZE: tl.constexpr):
    """Count, in the range of each program, the scores above the threshold and those equal to it."""
    line = table_ptr + tl.program_id(0) * 3
    start, stop, search = tl.load(line), tl.load(line + 1), tl.load(line + 2)
    threshold, above, tied = tl.load(threshold_ptr + search), 0, 0
    while start < stop:
        offset = start + tl.arange(0, SIZE)
        inside = offset < stop
        score = tl.load(score_ptr + offset, mask=inside, other=0.0)
        above += tl.sum((inside & (score > threshold)).to(tl.int32), 0)
        tied += tl.sum((inside & (score == threshold)).to(tl.int32), 0)
        start += SIZE
    tl.store(above_ptr + tl.program_id(0), above)
    tl.store(tied_ptr + tl.program_id(0), tied)


@triton.jit
def _write_mask(
    score_ptr, threshold_ptr, table_ptr, above_ptr, tied_ptr, mask_ptr, count_ptr,
    PROGRAMS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Mark the scores above the threshold, and the first of the equal ones up to the count."""
    line = table_ptr + tl.program_id(0) * 3
    start, stop, search = tl.load(line), tl.load(line + 1), tl.load(line + 2)
    program = tl.arange(0, PROGRAMS)
    real = program < tl.num_programs(0)
    same = real & (tl.load(table_ptr + program * 3 + 2, mask=real, other=0) == search)
    above = tl.load(above_ptr + program, mask=same, other=0)
    tied = tl.load(tied_ptr + program, mask=same & (program < tl.program_id(0)), other=0)
    room = tl.load(count_ptr + search) - tl.sum((above + tied).to(tl.int64), 0)
    threshold = tl.load(threshold_ptr + search)
    while start < stop:
        offset = start + tl.arange(0, SIZE)
        inside = offset < stop
        score = tl.load(score_ptr + offset, mask=inside, other=0.0)
        equal = (inside & (score == threshold)).to(tl.int32)
        first = (equal > 0) & (tl.cumsum(equal, 0) <= room)
        tl.store(mask_ptr + offset, (score > threshold) | first, mask=inside)
        room -= tl.sum(equal, 0)
        start += SIZE


@triton.jit(do_not_specialize=["number"])
def _buy(cost_ptr, most_ptr, above_ptr, room_ptr, count_ptr, number):
    """Write how many of every cost are bought, from the first cost to the last."""
    room, i = tl.load(room_ptr), 0
    while i < number:
        cost, above = tl.load(cost_ptr + i), tl.load(above_ptr + i)
        room -= cost * above
        i += 1
    i = 0
    while i < number:
        cost, above = tl.load(cost_ptr + i), tl.load(above_ptr + i)
        more = tl.where(cost > 0, room // tl.maximum(cost, 1), 0)
        more = tl.minimum(more, tl.load(most_ptr + i) - above)
        room -= cost * more
        tl.store(count_ptr + i, above + more)
        i += 1


# ------------------------------------------------------------------------------ launches


def _highest(flat: Tensor, parts: tuple[Part, ...], costs: Tensor, k: Tensor) -> Tensor:
    """Return for every search the highest score such that it and all above cost k or more.

    Eight counting passes, and no result is read back.
    """
    counts = torch.zeros(k.numel(), DIGITS, BASE, dtype=torch.int64, device=k.device)
    out = torch.empty(k.numel(), dtype=torch.int32, device=k.device)
    bits, table = flat.view(torch.int32), pieces.counting(parts, flat.device)
    key = {"DIGITS": DIGITS, "BASE": BASE}
    for digit in range(DIGITS):
        count_digits[(len(table),)](
            bits, costs, table, counts, k, digit, TILE=pieces.TILE, UNROLL=pieces.UNROLL, **key
        )
    _write_keys[(k.numel(),)](counts, k, out, **key)
    return out.view(torch.float32)


def kth_largest(flat: Tensor, k: int | Tensor) -> Tensor:
    """Return the k-th largest value.

    The twin is `spikewire.pruning.selection.kth_largest`.

    Args:
        flat: float32 values ``[n]``, not NaN.
        k: from 1 (the largest) to n; a scalar tensor is not waited for.

    Returns:
        The value, a scalar tensor on the device of `flat`.
    """
    one, device = (Part(flat.numel()),), flat.device
    return _highest(
        flat.contiguous(), one, pieces.constant((1,), device), pieces.stack([k], device)
    )[0]


def top_k_parts(
    flat: Tensor, sizes: Sequence[int], counts: Sequence[int | Tensor] | Tensor
) -> Tensor:
    """Return the mask of the highest values of every part of a flat tensor.

    The twin is `spikewire.pruning.selection.top_k_parts`.

    Args:
        flat: float32 values ``[n]``, not NaN.
        sizes: of the parts; n in total.
        counts: how many values of each part to keep, from 0 to its size; a scalar tensor is not
            waited for.

    Returns:
        The mask, bool ``[n]``; of equal values the first are kept.
    """
    flat, device = flat.contiguous(), flat.device
    parts = tuple(Part(size, search) for search, size in enumerate(sizes))
    number = counts if isinstance(counts, Tensor) else pieces.stack(counts, device)
    levels = _highest(flat, parts, pieces.constant((1,) * len(parts), device), number)
    return _mask(flat, parts, levels, number)


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
    return _mask(flat, (Part(flat.numel()),), threshold, pieces.stack([count], flat.device))


def _mask(flat: Tensor, parts: tuple[Part, ...], levels: Tensor, counts: Tensor) -> Tensor:
    """Return the mask of values above the level of their search and the first that equal it."""
    table = pieces.scanning(parts, flat.device)
    above, tied = torch.empty(2, len(table), dtype=torch.int32, device=flat.device)
    mask = torch.empty_like(flat, dtype=torch.bool)
    inputs = flat, levels, table, above, tied
    _count_above[(len(table),)](*inputs, SIZE=pieces.SCAN)
    width = triton.next_power_of_2(len(table))
    _write_mask[(len(table),)](*inputs, mask, counts, PROGRAMS=width, SIZE=pieces.SCAN)
    return mask


def level_within(
    flat: Tensor, sizes: Sequence[int], costs: Sequence[int | Tensor], budget: Tensor
) -> Tensor:
    """Return the highest score such that it and all above cost more than the budget.

    The twin is `spikewire.pruning.spending.level_within`.

    Args:
        flat: float32 values ``[n]``, not NaN.
        sizes: of the parts of `flat`; n in total.
        costs: for each part a number, or a tensor of m whole numbers of which value i costs the
            one at i modulo m.
        budget: a scalar tensor of 64 bits.

    Returns:
        The score, a scalar tensor on the device of the scores.
    """
    if any(isinstance(cost, Tensor) for cost in costs):
        device = flat.device
        tensors = [
            x.flatten() if isinstance(x, Tensor) else pieces.constant((x,), device) for x in costs
        ]
        lengths, table = [x.numel() for x in tensors], torch.cat(tensors)
    else:
        lengths, table = [1] * len(costs), pieces.constant(tuple(costs), flat.device)
    parts = tuple(Part(n, 0, m) for n, m in zip(sizes, lengths, strict=True))
    return _highest(flat, parts, table, (budget.long() + 1).view(1))[0]


def counts_within(
    flat: Tensor,
    sizes: Sequence[int],
    costs: Sequence[int],
    level: Tensor,
    room: Tensor,
    most: Tensor,
) -> Tensor:
    """Return how many values of each part to keep: those above the level, and what is left buys.

    The twin is `spikewire.pruning.spending.counts_within`.

    Args:
        flat: float32 values ``[n]``, not NaN.
        sizes: of the parts of `flat`; n in total.
        costs: of the values of each part; what is left is spent in this order.
        level: a scalar tensor.
        room: what is paid for all values together, a scalar tensor of 64 bits.
        most: how many values of each part may be kept, int64.

    Returns:
        One number per part, int64.
    """
    device, number = flat.device, len(sizes)
    parts = tuple(Part(size, search) for search, size in enumerate(sizes))
    table = pieces.scanning(parts, device)
    above, tied = torch.empty(2, len(table), dtype=torch.int32, device=device)
    levels = level.expand(number).contiguous()
    _count_above[(len(table),)](flat, levels, table, above, tied, SIZE=pieces.SCAN)
    sums = torch.zeros(number, dtype=torch.int64, device=device)
    sums.index_add_(0, table[:, 2], above.long())
    counts = torch.empty_like(sums)
    _buy[(1,)](
        pieces.constant(tuple(costs), device),
        most,
        sums,
        room,
        counts,
        number,
    )
    return counts
