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
delays, which changes the weights of G by 1e-6 at most. The synapses of some targets stay in
registers, those of the others in the L1 cache.
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

ROWS = 16  # targets whose dI are read at once
HELD = 64  # half the targets whose synapses stay in registers
WARPS = 16  # at most: a source per thread
SMALLEST = 1e-37  # weights below it are 0: their bits would underflow


@triton.jit
def _synapses(synapse_ptr, SIZE: tl.constexpr, ROWS: tl.constexpr):
    """Return the synapses of all sources to the next targets, ``[ROWS, SIZE]``."""
    place = synapse_ptr + tl.arange(0, SIZE)[None, :]
    return tl.load(place + tl.arange(0, ROWS)[:, None] * SIZE)


@triton.jit
def _weighted(weights, pairs):
    """Return the sums over the targets, ``[2, SIZE]``, from two samples in 64 bits each."""
    one = pairs.to(tl.int32).to(tl.float32, bitcast=True)
    two = (pairs >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.trans(tl.join(tl.sum(weights * one, 0), tl.sum(weights * two, 0)))


@triton.jit
def _recurrent(ring_ptr, synapses, t, ROWS: tl.constexpr, SLOTS: tl.constexpr):
    """Return what some targets add to ``G[t]`` and to ``G[t - 1]``."""
    weights = synapses.to(tl.float32, bitcast=True)
    place = ring_ptr + ((synapses + t) & (SLOTS - 1))
    place += tl.arange(0, ROWS)[:, None] * (2 * SLOTS)
    return _weighted(weights, tl.load(place + SLOTS)), _weighted(weights, tl.load(place))


@triton.jit
def _keep(ring_ptr, currents, t, SLOTS: tl.constexpr, SIZE: tl.constexpr, TARGETS: tl.constexpr):
    """Write ``dI[t]`` of both samples to the ring, in slot t and, for ``G[t - 1]``, in t - 1."""
    one, two = tl.split(tl.trans(currents).to(tl.uint32, bitcast=True))
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
    return grad.to(tl.float32), v, level, tl.load(mark_ptr + place, mask=known, other=0)


@triton.jit
def _retreat(dz, dv, db, v, level, mark, last, beta, alpha, rho, damping):
    """Go one time step back."""
    slope = damping * tl.maximum(1 - tl.abs(tl.div_rn(v, level) - 1), 0.0)
    ds = tl.where((mark & RESTED) != 0, dz * slope, 0.0)
    fired = (last & FIRED).to(tl.float32)
    db = rho * db - beta * (ds * v / (level * level) + fired * dv)
    return (1 - rho) * db - level * dv, alpha * dv + ds / level, db


@triton.jit(do_not_specialize=["origin"])
def _reverse(
    grad_ptr, synapse_ptr, beta_ptr, ring_ptr, v_ptr, level_ptr, mark_ptr, current_ptr,
    origin, time, batch, alpha, rho, damping,
    NEURONS: tl.constexpr, SLOTS: tl.constexpr, SIZE: tl.constexpr, TARGETS: tl.constexpr,
    ROWS: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """Go back over all time steps with two samples, two steps at once.

    Other threads need dI, which goes through memory of this program alone. No thread reads what
    another writes without the barrier between: steps t and t - 1 read the slots t to t + span - 1
    and write t - 1 to t - 3, which are others, since there are span + 3 slots or more.
    """
    first = 2 * tl.program_id(0).to(tl.int64)
    i, sample = tl.arange(0, SIZE)[None, :], first + tl.arange(0, 2)[:, None]
    known = (i < NEURONS) & (sample < batch)
    ring_ptr += first * (TARGETS * SLOTS)
    beta = tl.load(beta_ptr + i, mask=i < NEURONS, other=0.0)
    dv = tl.zeros((2, SIZE), tl.float32)
    db, dz = dv, dv
    step = tl.cast(batch, tl.int64) * NEURONS
    # origin is 0, which the compiler does not know: one value per thread and row, not four
    synapse_ptr += origin
    place = (time - 1) * step + sample * NEURONS + (i + origin)
    tl.store(current_ptr + place, dv, mask=known)
    if HELD:
        held = _synapses(synapse_ptr, SIZE, HELD)
        also_held = _synapses(synapse_ptr + HELD * SIZE, SIZE, HELD)
    for t in range(time - 1, -1, -2):
        earlier, soon, later = place - step, known & (t > 0), known & (t > 1)
        grad, v, level, mark = _read(grad_ptr, v_ptr, level_ptr, mark_ptr, place, known)
        grad_2, v_2, level_2, mark_2 = _read(grad_ptr, v_ptr, level_ptr, mark_ptr, earlier, soon)
        last = tl.load(mark_ptr + earlier - step, mask=later, other=0)
        tl.debug_barrier()  # other threads have written dI
        near, far = tl.zeros_like(dv), tl.zeros_like(dv)
        if HELD:
            near, far = _recurrent(ring_ptr, held, t, HELD, SLOTS)
            a, b = _recurrent(ring_ptr + HELD * (2 * SLOTS), also_held, t, HELD, SLOTS)
            near, far = near + a, far + b
        for row in range(2 * HELD, TARGETS, ROWS):
            synapses = _synapses(synapse_ptr + row * SIZE, SIZE, ROWS)
            a, b = _recurrent(ring_ptr + row * (2 * SLOTS), synapses, t, ROWS, SLOTS)
            near, far = near + a, far + b
        dz += grad + near
        dz, dv, db = _retreat(dz, dv, db, v, level, mark, mark_2, beta, alpha, rho, damping)
        _keep(ring_ptr, (1 - alpha) * dv, t - 1, SLOTS, SIZE, TARGETS)
        tl.store(current_ptr + earlier, (1 - alpha) * dv, mask=soon)
        dz += grad_2 + far
        dz, dv, db = _retreat(dz, dv, db, v_2, level_2, mark_2, last, beta, alpha, rho, damping)
        place = earlier - step
        _keep(ring_ptr, (1 - alpha) * dv, t - 2, SLOTS, SIZE, TARGETS)
        tl.store(current_ptr + place, (1 - alpha) * dv, mask=later)


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
    targets, pairs = triton.cdiv(neurons, ROWS) * ROWS, triton.cdiv(batch, 2)
    ring = grad.new_zeros(pairs, targets, 2, slots, dtype=torch.int64)
    currents = torch.empty_like(saved.voltages)
    synapses = F.pad(_packed(weight, delays, slots), (0, size - neurons, 0, targets - neurons))
    _reverse[(pairs,)](
        grad.contiguous(), synapses, beta.float(), ring, *saved, currents, 0, time, batch,
        constants.decay, constants.adaptation_decay, damping,
        NEURONS=neurons, SLOTS=slots, SIZE=size, TARGETS=targets, ROWS=ROWS,
        HELD=HELD if size <= 256 and targets >= 2 * HELD else 0,
        num_warps=min(size // 32, WARPS),
    )  # fmt: skip
    return currents


def _packed(weight: Tensor, delays: Tensor, slots: int) -> Tensor:
    """Return for each weight the nearest number whose lowest bits are the delay, as int32."""
    weight, bits = weight.detach().float().contiguous(), delays.int()
    near = ((weight.view(torch.int32) - bits + slots // 2) & -slots) | bits
    return torch.where(weight.abs() < SMALLEST, bits, near).where(delays >= 0, 0)
