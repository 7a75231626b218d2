"""Recurrent neurons with adaptive thresholds: all time steps in one kernel, backward.

The equations are those of `spikewire.nn.adaptive`, whose plain-torch path is the twin.

One program has two samples, and a thread one source, whose gradient needs, for each synapse, dI of
the target as many steps later as the delay is::

      G_i[t] = sum over j of W_ji dI_j[t + 1 + d_ji]

dI of the last steps is kept in a ring of time slots per target, 8 bytes for both samples. At 16
slots the ring of a target is one line of the L1 cache, and a warp, whose threads need the same
target at different slots, reads it at once. The sum over targets stays in a thread. G[t - 1] needs
dI[t], which is known before step t: two steps are gone back at once, with one barrier. To read 4
bytes per synapse instead of 5, the lowest bits of a weight are its delay: 4 of 24 bits for up to 13
delays, which changes the weights of G by 1e-6 at most. As many synapses as fit stay in the L1 cache
beside the ring; the others pass it by, so that they do not displace those.

All tensors have one dimension, a neuron per thread: no value ever goes to another thread.
"""

# Triton's tensors carry no types a checker could follow.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportReturnType=false

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from spikewire.kernels.adaptive import FIRED, RESTED, Saved
from spikewire.kernels.delays import width

ROWS = 10  # targets whose synapses are read at once
FEW = 4  # the same with more than 8 warps, which have fewer registers per thread
CACHE = 200 * 1024  # bytes of the L1 cache for the ring and synapses
SMALLEST = 1e-37  # weights below it are 0: their bits would underflow


@triton.jit
def _synapses(synapse_ptr, SIZE: tl.constexpr, ROWS: tl.constexpr, CACHED: tl.constexpr):
    """Return the synapses of all sources to the next targets, a tensor per target.

    Those of the first `CACHED` targets go through the L1 cache.
    """
    found = ()
    for row in tl.static_range(ROWS):
        place = synapse_ptr + row * SIZE + tl.arange(0, SIZE)
        if row < CACHED:
            found = found + (tl.load(place),)
        else:
            found = found + (tl.load(place, cache_modifier=".cg"),)
    return found


@triton.jit
def _gather(ring_ptr, synapses, t, first, ROWS: tl.constexpr, SLOTS: tl.constexpr):
    """Return for each target dI of both samples in 64 bits, for ``G[t - 1]`` and for ``G[t]``."""
    found = ()
    for row in tl.static_range(ROWS):
        slot = ((synapses[row] + t) & (SLOTS - 1)) + first * (2 * SLOTS)
        place = ring_ptr + slot + row * (2 * SLOTS)
        found = found + (tl.load(place), tl.load(place + SLOTS))
    return found


@triton.jit
def _weighted(sums, weights, pair):
    """Add what a target contributes to two samples."""
    one = pair.to(tl.int32).to(tl.float32, bitcast=True)
    two = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return sums[0] + weights * one, sums[1] + weights * two


@triton.jit
def _add(sums, synapses, pairs, ROWS: tl.constexpr):
    """Add what some targets contribute to ``G[t - 1]`` and ``G[t]`` of both samples."""
    far, near = (sums[0], sums[1]), (sums[2], sums[3])
    for row in tl.static_range(ROWS):
        weights = synapses[row].to(tl.float32, bitcast=True)
        far = _weighted(far, weights, pairs[2 * row])
        near = _weighted(near, weights, pairs[2 * row + 1])
    return far + near


@triton.jit
def _keep(ring_ptr, one, two, t, SLOTS: tl.constexpr, SIZE: tl.constexpr, TARGETS: tl.constexpr):
    """Write ``dI[t]`` of both samples to the ring, in slot t and, for ``G[t - 1]``, in t - 1."""
    one, two = one.to(tl.uint32, bitcast=True), two.to(tl.uint32, bitcast=True)
    pair = (one.to(tl.uint64) | (two.to(tl.uint64) << 32)).to(tl.int64, bitcast=True)
    j = tl.arange(0, SIZE)
    row = ring_ptr + j * (2 * SLOTS)
    tl.store(row + (t & (SLOTS - 1)), pair, mask=j < TARGETS)
    tl.store(row + (SLOTS + ((t - 1) & (SLOTS - 1))), pair, mask=j < TARGETS)


@triton.jit
def _read(grad_ptr, v_ptr, level_ptr, mark_ptr, place, known):
    """Return what a step needs; it is read once, so the L1 cache is left to the others."""
    grad = tl.load(grad_ptr + place, mask=known, other=0.0, cache_modifier=".cg")
    v = tl.load(v_ptr + place, mask=known, other=0.0, cache_modifier=".cg")
    level = tl.load(level_ptr + place, mask=known, other=1.0, cache_modifier=".cg")
    mark = tl.load(mark_ptr + place, mask=known, other=0, cache_modifier=".cg")
    return grad.to(tl.float32), v, level, mark


@triton.jit
def _retreat(state, recurrent, inputs, last, beta, alpha, rho, damping):
    """Go one time step back."""
    dz, dv, db = state
    grad, v, level, mark = inputs
    slope = damping * tl.maximum(1 - tl.abs(tl.div_rn(v, level) - 1), 0.0)
    ds = tl.where((mark & RESTED) != 0, (dz + (grad + recurrent)) * slope, 0.0)
    fired = (last & FIRED).to(tl.float32)
    db = rho * db - beta * (ds * v / (level * level) + fired * dv)
    return (1 - rho) * db - level * dv, alpha * dv + ds / level, db


@triton.jit
def _reverse(
    grad_ptr, synapse_ptr, beta_ptr, ring_ptr, v_ptr, level_ptr, mark_ptr, current_ptr,
    time, batch, alpha, rho, damping,
    NEURONS: tl.constexpr, SLOTS: tl.constexpr, SIZE: tl.constexpr, TARGETS: tl.constexpr,
    ROWS: tl.constexpr, CACHED: tl.constexpr,
):  # fmt: skip
    """Go back over all time steps with two samples, two steps at once.

    Other threads need dI, which goes through memory of this program alone. No thread reads what
    another writes without the barrier between: steps t and t - 1 read the slots t to t + span - 1
    and write t - 1 to t - 3, which are others, since there are span + 3 slots or more.

    While the sums of some targets are made, dI of the next ones and the synapses of those after
    them are on their way; after the last ones come the first of the next steps.
    """
    first, i = 2 * tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    known_1 = i < NEURONS
    known_2 = known_1 & (first + 1 < batch)
    ring_ptr += first * (TARGETS * SLOTS)
    beta = tl.load(beta_ptr + i, mask=known_1, other=0.0)
    zero = tl.zeros((SIZE,), tl.float32)
    state_1, state_2 = (zero, zero, zero), (zero, zero, zero)
    step = tl.cast(batch, tl.int64) * NEURONS
    place_1 = (time - 1) * step + first * NEURONS + i
    place_2 = place_1 + NEURONS
    tl.store(current_ptr + place_1, zero, mask=known_1)
    tl.store(current_ptr + place_2, zero, mask=known_2)
    ahead = _synapses(synapse_ptr, SIZE, ROWS, CACHED)
    for t in range(time - 1, -1, -2):
        now_1 = _read(grad_ptr, v_ptr, level_ptr, mark_ptr, place_1, known_1)
        now_2 = _read(grad_ptr, v_ptr, level_ptr, mark_ptr, place_2, known_2)
        place_1 -= step
        place_2 -= step
        soon_1, soon_2 = known_1 & (t > 0), known_2 & (t > 0)
        next_1 = _read(grad_ptr, v_ptr, level_ptr, mark_ptr, place_1, soon_1)
        next_2 = _read(grad_ptr, v_ptr, level_ptr, mark_ptr, place_2, soon_2)
        later_1, later_2 = known_1 & (t > 1), known_2 & (t > 1)
        last_1 = tl.load(mark_ptr + (place_1 - step), later_1, 0, cache_modifier=".cg")
        last_2 = tl.load(mark_ptr + (place_2 - step), later_2, 0, cache_modifier=".cg")
        tl.debug_barrier()  # other threads have written dI
        sums, synapses = (zero, zero, zero, zero), ahead
        pairs = _gather(ring_ptr, synapses, t, 0, ROWS, SLOTS)
        ahead = _synapses(synapse_ptr + (ROWS % TARGETS) * SIZE, SIZE, ROWS, CACHED)
        for row in range(ROWS, TARGETS, ROWS):
            sums = _add(sums, synapses, pairs, ROWS)
            synapses = ahead
            pairs = _gather(ring_ptr, synapses, t, row, ROWS, SLOTS)
            after = tl.where(row + ROWS < TARGETS, row + ROWS, 0)
            ahead = _synapses(synapse_ptr + after * SIZE, SIZE, ROWS, CACHED)
        far_1, far_2, near_1, near_2 = _add(sums, synapses, pairs, ROWS)
        state_1 = _retreat(state_1, near_1, now_1, next_1[3], beta, alpha, rho, damping)
        state_2 = _retreat(state_2, near_2, now_2, next_2[3], beta, alpha, rho, damping)
        one, two = (1 - alpha) * state_1[1], (1 - alpha) * state_2[1]
        _keep(ring_ptr, one, two, t - 1, SLOTS, SIZE, TARGETS)
        tl.store(current_ptr + place_1, one, mask=soon_1)
        tl.store(current_ptr + place_2, two, mask=soon_2)
        state_1 = _retreat(state_1, far_1, next_1, last_1, beta, alpha, rho, damping)
        state_2 = _retreat(state_2, far_2, next_2, last_2, beta, alpha, rho, damping)
        one, two = (1 - alpha) * state_1[1], (1 - alpha) * state_2[1]
        _keep(ring_ptr, one, two, t - 2, SLOTS, SIZE, TARGETS)
        place_1 -= step
        place_2 -= step
        tl.store(current_ptr + place_1, one, mask=later_1)
        tl.store(current_ptr + place_2, two, mask=later_2)


def reverse(
    grad: Tensor, saved: Saved, weight: Tensor, delays: Tensor, span: int, beta: Tensor,
    constants, damping: float,
) -> Tensor:  # fmt: skip
    """Return the gradient of the currents, ``[time, batch, neurons]``, float32.

    Args:
        grad: gradient of the spikes.
        saved: of `fire`.
        weight: recurrent weights, ``[neurons, neurons]``.
        delays: int8 of that shape, -1 where there is no synapse.
        span: number of different delays.
        beta: strength of adaptation per neuron.
        constants: a `Dynamics`.
        damping: the highest value of the surrogate.
    """
    time, batch, neurons = grad.shape
    slots, size = triton.next_power_of_2(max(span + 3, 16)), width(neurons)
    rows, pairs = ROWS if size <= 256 else FEW, triton.cdiv(batch, 2)
    targets = triton.cdiv(neurons, rows) * rows
    room = max(CACHE - targets * 2 * slots * 8, 0)
    ring = grad.new_zeros(pairs, targets, 2, slots, dtype=torch.int64)
    currents = torch.empty_like(saved.voltages)
    synapses = F.pad(_packed(weight, delays, slots), (0, size - neurons, 0, targets - neurons))
    _reverse[(pairs,)](
        grad.contiguous(), synapses, beta.float(), ring, *saved, currents, time, batch,
        constants.decay, constants.adaptation_decay, damping,
        NEURONS=neurons, SLOTS=slots, SIZE=size, TARGETS=targets, ROWS=rows,
        CACHED=min(rows * room // (targets * size * 4), rows), num_warps=min(size // 32, 32),
    )  # fmt: skip
    return currents


def _packed(weight: Tensor, delays: Tensor, slots: int) -> Tensor:
    """Return for each weight the nearest number whose lowest bits are the delay, as int32."""
    weight, bits = weight.detach().float().contiguous(), delays.int()
    near = ((weight.view(torch.int32) - bits + slots // 2) & -slots) | bits
    return torch.where(weight.abs() < SMALLEST, bits, near).where(delays >= 0, 0)
