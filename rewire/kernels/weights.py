"""Updates of a whole weight in one pass over memory, and selection without a sort.

Twins: `drag_` and `rectify` in `rewire.methods.gradr`, `kth_largest` in `rewire.cut`.
"""

# Triton's tensors carry no types a checker could follow.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 2048
COUNT_SIZE = 16384  # few programs, since all of them add to the same 15 counters
DIGITS, BASE = 8, 16  # a key of 32 bits is found four bits a pass


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
    digit = tl.arange(0, DIGITS)
    place = count_ptr + digit[:, None] * BASE + tl.arange(0, BASE)[None, :]
    counts = tl.load(place, mask=(digit < digits)[:, None], other=0)
    known = tl.sum((counts >= k).to(tl.int32), 1)
    return -0x7FFFFFFF - 1 + tl.sum(known << (4 * (DIGITS - 1 - digit)), 0)


@triton.jit(do_not_specialize=["k", "digit"])
def _count(
    bits_ptr, count_ptr, total, k, digit,
    DIGITS: tl.constexpr, BASE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Add up, for each value of the next digit but 0, how many keys are as large."""
    offset = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = offset < total
    keys = _ordered(tl.load(bits_ptr + offset, mask=inside, other=0))
    low = _found(count_ptr, k, digit, DIGITS, BASE)
    shift = 4 * (DIGITS - 1 - digit)
    for value in tl.static_range(1, BASE):
        least = low + (value << shift)
        larger = tl.sum((inside & (keys >= least)).to(tl.int32), 0)
        tl.atomic_add(count_ptr + digit * BASE + value, larger, sem="relaxed")


@triton.jit(do_not_specialize=["k"])
def _answer(count_ptr, out_ptr, k, DIGITS: tl.constexpr, BASE: tl.constexpr):
    tl.store(out_ptr, _ordered(_found(count_ptr, k, DIGITS, DIGITS, BASE)))


def drag_(weight: Tensor, sign: Tensor, mu: float, pull: float) -> None:
    """``w <- w - s sign(s w - mu) pull``; both lie alike in memory."""
    total = weight.numel()
    _drag[(triton.cdiv(total, SIZE),)](weight, sign, total, mu, pull, SIZE=SIZE)
    torch.autograd.graph.increment_version(weight)  # as torch does for its own writes


def rectify(latent: Tensor, sign: Tensor) -> Tensor:
    """Return ``s relu(s u)``; both lie alike in memory."""
    out, total = torch.empty_like(latent), latent.numel()
    _rectify[(triton.cdiv(total, SIZE),)](latent, sign, out, total, SIZE=SIZE)
    return out


def kth_largest(flat: Tensor, k: int) -> Tensor:
    """Return the k-th largest of float32 values: eight counting passes, no answer read back."""
    counts = torch.zeros(DIGITS, BASE, dtype=torch.int32, device=flat.device)
    out = torch.empty((), dtype=torch.int32, device=flat.device)
    bits, total = flat.contiguous().view(torch.int32), flat.numel()
    key = {"DIGITS": DIGITS, "BASE": BASE}
    for digit in range(DIGITS):
        _count[(triton.cdiv(total, COUNT_SIZE),)](
            bits, counts, total, k, digit, SIZE=COUNT_SIZE, num_warps=8, **key
        )
    _answer[(1,)](counts, out, k, **key)
    return out.view(torch.float32)
