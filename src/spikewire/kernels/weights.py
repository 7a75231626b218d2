"""Updates of a whole weight in one pass over memory, and selection without a sort.

Twins: `drag_` and `rectify` in `spikewire.methods.gradr`, `kth_largest` and `admit` in
`spikewire.pruning.selection`.
"""

# Triton's tensors carry no types a checker could follow.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportReturnType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 2048
TILE, UNROLL = 512, 8  # of `_count`: 64 registers a thread, 32 values under way
SCAN = 1024  # of `_census` and `_admit`
PROGRAMS = 1056  # of these three: eight on each of an H200's 132 multiprocessors
DIGITS, BASE = 8, 16  # a key of 32 bits is found four bits a pass
MOST_ROUNDS = 255 // UNROLL  # a byte counts up to 255


@triton.jit
def _drag(weight_ptr, sign_ptr, total, mu, pull, SIZE: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = offset < total
    weight = tl.load(weight_ptr + offset, mask=inside, other=0.0)
    sign = tl.load(sign_ptr + offset, mask=inside, other=0.0)
    theta = weight * sign
    down = tl.where(theta > mu, pull, 0.0) - tl.where(theta < mu, pull, 0.0)
    tl.store(weight_ptr + offset, weight - sign * down, mask=inside)


@triton.jit
def _rectify(latent_ptr, sign_ptr, out_ptr, total, SIZE: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = offset < total
    latent = tl.load(latent_ptr + offset, mask=inside, other=0.0)
    sign = tl.load(sign_ptr + offset, mask=inside, other=0.0)
    tl.store(out_ptr + offset, tl.where(latent * sign <= 0, 0.0, latent), mask=inside)


@triton.jit
def _ordered(bits):
    """Map float bits to integers of the same order; its own inverse."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _found(count_ptr, k, digits, DIGITS: tl.constexpr, BASE: tl.constexpr):
    """Return the lowest key that the first `digits` allow: the next is being counted just now."""
    digit, value = tl.arange(0, DIGITS), tl.arange(0, BASE)
    place = count_ptr + digit[:, None] * BASE + value[None, :]
    counts = tl.load(place, mask=(digit < digits)[:, None], other=0)
    enough = (tl.cumsum(counts, 1, reverse=True) >= k) & (value > 0)[None, :]
    known = tl.sum(enough.to(tl.int32), 1)
    return -0x7FFFFFFF - 1 + tl.sum(known << (4 * (DIGITS - 1 - digit)), 0)


@triton.jit
def _add_bytes(packed, count_ptr):
    """Add up the eight counts that every element of `packed` holds in its bytes."""
    byte = tl.arange(0, 8)
    counts = tl.sum(((packed[:, None] >> (8 * byte)[None, :]) & 255).to(tl.int32), 0)
    tl.atomic_add(count_ptr + byte, counts.to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["k", "digit", "rounds"])
def _count(
    bits_ptr, count_ptr, total, k, digit, rounds,
    DIGITS: tl.constexpr, BASE: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Count the keys by their next digit: smaller ones as 0, larger ones as the largest."""
    shift = 4 * (DIGITS - 1 - digit)
    least = _found(count_ptr, k, digit, DIGITS, BASE) >> shift
    low, high = tl.zeros((TILE,), tl.int64), tl.zeros((TILE,), tl.int64)
    offset = tl.program_id(0).to(tl.int64) * rounds * (UNROLL * TILE) + tl.arange(0, TILE)
    while rounds > 0:
        tiles = ()
        for i in tl.static_range(UNROLL):  # all reads are under way before the first is needed
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
    _add_bytes(low, count_ptr + digit * BASE)
    _add_bytes(high, count_ptr + digit * BASE + 8)


@triton.jit(do_not_specialize=["k"])
def _answer(count_ptr, out_ptr, k, DIGITS: tl.constexpr, BASE: tl.constexpr):
    tl.store(out_ptr, _ordered(_found(count_ptr, k, DIGITS, DIGITS, BASE)))


@triton.jit(do_not_specialize=["rounds"])
def _census(score_ptr, least_ptr, above_ptr, tied_ptr, total, rounds, SIZE: tl.constexpr):
    """Count, in each program's stretch, the scores above the least one and those equal to it."""
    least, above, tied = tl.load(least_ptr), 0, 0
    offset = tl.program_id(0).to(tl.int64) * rounds * SIZE + tl.arange(0, SIZE)
    while rounds > 0:
        inside = offset < total
        score = tl.load(score_ptr + offset, mask=inside, other=0.0)
        above += tl.sum((inside & (score > least)).to(tl.int32), 0)
        tied += tl.sum((inside & (score == least)).to(tl.int32), 0)
        offset += SIZE
        rounds -= 1
    tl.store(above_ptr + tl.program_id(0), above)
    tl.store(tied_ptr + tl.program_id(0), tied)


@triton.jit(do_not_specialize=["count", "rounds"])
def _admit(
    score_ptr, least_ptr, above_ptr, tied_ptr, mask_ptr, total, count, rounds,
    PROGRAMS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Mark the scores above the least one, and of those equal the first ones there is room for."""
    program = tl.arange(0, PROGRAMS)
    above = tl.load(above_ptr + program, mask=program < tl.num_programs(0), other=0)
    tied = tl.load(tied_ptr + program, mask=program < tl.program_id(0), other=0)
    room = count - tl.sum((above + tied).to(tl.int64), 0)
    least = tl.load(least_ptr)
    offset = tl.program_id(0).to(tl.int64) * rounds * SIZE + tl.arange(0, SIZE)
    while rounds > 0:
        inside = offset < total
        score = tl.load(score_ptr + offset, mask=inside, other=0.0)
        equal = (inside & (score == least)).to(tl.int32)
        first = (equal > 0) & (tl.cumsum(equal, 0) <= room)
        tl.store(mask_ptr + offset, (score > least) | first, mask=inside)
        room -= tl.sum(equal, 0)
        offset += SIZE
        rounds -= 1


def drag_(weight: Tensor, sign: Tensor, mu: float, pull: float) -> None:
    """``w <- w - s sign(s w - mu) pull``; both lie alike in memory."""
    total = weight.numel()
    _drag[(triton.cdiv(total, SIZE),)](weight, sign, total, mu, pull, SIZE=SIZE)
    torch.autograd.graph.increment_version(weight)  # as torch does for its own writes


def rectify(latent: Tensor, sign: Tensor, out: Tensor) -> Tensor:
    """Write ``s relu(s u)`` to `out`; all lie alike in memory."""
    total = latent.numel()
    _rectify[(triton.cdiv(total, SIZE),)](latent, sign, out, total, SIZE=SIZE)
    torch.autograd.graph.increment_version(out)
    return out


def _stretches(total: int, size: int, most: int) -> tuple[tuple[int], int]:
    """Return how many programs go over so many values, and in how many rounds of `size` each."""
    pieces = triton.cdiv(total, size)
    rounds = min(most, triton.cdiv(pieces, PROGRAMS))
    return (triton.cdiv(pieces, rounds),), rounds


def kth_largest(flat: Tensor, k: int) -> Tensor:
    """Return the k-th largest of float32 values: eight counting passes, no answer read back."""
    counts = torch.zeros(DIGITS, BASE, dtype=torch.int64, device=flat.device)
    out = torch.empty((), dtype=torch.int32, device=flat.device)
    bits, total = flat.contiguous().view(torch.int32), flat.numel()
    key = {"DIGITS": DIGITS, "BASE": BASE}
    grid, rounds = _stretches(total, UNROLL * TILE, MOST_ROUNDS)
    for digit in range(DIGITS):
        _count[grid](bits, counts, total, k, digit, rounds, TILE=TILE, UNROLL=UNROLL, **key)
    _answer[(1,)](counts, out, k, **key)
    return out.view(torch.float32)


def mask_from_threshold(flat: Tensor, least: Tensor, count: int) -> Tensor:
    """Return the mask of all above `least` and the first that equal it, `count` altogether."""
    grid, rounds = _stretches(flat.numel(), SCAN, flat.numel())
    above, tied = torch.empty(2, *grid, dtype=torch.int32, device=flat.device)
    mask = torch.empty_like(flat, dtype=torch.bool)
    found = flat, least, above, tied
    _census[grid](*found, flat.numel(), rounds, SIZE=SCAN)
    width = triton.next_power_of_2(PROGRAMS)
    _admit[grid](*found, mask, flat.numel(), count, rounds, PROGRAMS=width, SIZE=SCAN)
    return mask
