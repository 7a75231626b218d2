"""Recurrent neurons with adaptive thresholds: all time steps in one kernel, forward and backward.

The equations are those of `spikewire.nn.adaptive`, whose plain-torch path is the twin.

Forward, one program per sample advances all neurons. A spike adds the neuron's synapses to the
currents of the next steps, which are kept in a ring of time slots, in registers; neurons that do
not spike cost nothing. Backward, one program has two samples. The gradient of the spikes needs,
for each synapse, dI of the target as many steps later as the delay is::

      G_i[t] = sum over j of W_ji dI_j[t + 1 + d_ji]

dI of the last steps is kept in a ring of time slots too, a row of both samples' slots per target,
and a warp has one row: each thread gets the dI of its synapse from the thread of the right slot.
G[t - 1] needs dI[t] but not ds[t], so it is computed while step t runs: one barrier per step. To
read 4 bytes per synapse instead of 5, the lowest bits of a weight are its delay: 4 of 24 bits for
up to 15 delays, which changes the weights of G by 1e-6 at most.
"""

# Triton's tensors carry no types a checker could follow.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportReturnType=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from spikewire.kernels.delays import synapses_of, width

LANES = 32  # sources whose synapses are read at once, backward: one per thread of a warp
NEURONS_PER_WARP = 32  # forward
WARPS = 16  # backward
SMALLEST = 1e-37  # weights below it are 0: their bits would underflow
FIRED, RESTED = tl.constexpr(1), tl.constexpr(2)  # bits of a mark


class Saved(NamedTuple):
    """What the backward pass needs of each time step, ``[time, batch, neurons]`` each.

    Attributes:
        voltages: before the step, float32.
        levels: the thresholds, float32.
        marks: int8; bit 0: it fired, bit 1: it was not refractory.
    """

    voltages: Tensor
    levels: Tensor
    marks: Tensor


@triton.jit
def _fire(
    current_ptr, weight_ptr, delay_ptr, beta_ptr, spike_ptr, v_ptr, level_ptr, mark_ptr,
    time, batch, neurons, refractory, alpha, rho, threshold,
    SLOTS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Advance the neurons of one sample over all time steps."""
    sample = tl.program_id(0)
    j, slot = tl.arange(0, SIZE), tl.arange(0, SLOTS)[:, None]
    known = j < neurons
    ring = tl.zeros((SLOTS, SIZE), tl.float32)
    beta = tl.load(beta_ptr + j, mask=known, other=0.0)
    zero = tl.zeros((SIZE,), tl.float32)
    v, b, z = zero, zero, zero
    quiet = tl.zeros((SIZE,), tl.int32) + refractory
    place = sample.to(tl.int64) * neurons + j
    current = tl.load(current_ptr + place, mask=known, other=0.0)
    for t in range(time):
        soon = known & (t + 1 < time)
        after = tl.load(current_ptr + place + batch * neurons, mask=soon, other=0.0)
        b = rho * b + (1 - rho) * z
        level = threshold + beta * b
        rested = quiet >= refractory
        fires = (tl.div_rn(v, level) > 1) & rested & known
        spikes = fires.to(tl.float32)
        waiting = tl.where(fires, j, SIZE)
        source = tl.min(waiting, 0)
        delay, weight = synapses_of(source, weight_ptr, delay_ptr, j, neurons, neurons)
        tl.store(spike_ptr + place, spikes.to(spike_ptr.dtype.element_ty), mask=known)
        tl.store(v_ptr + place, v, mask=known)
        tl.store(level_ptr + place, level, mask=known)
        mark = tl.where(fires, FIRED, 0) + tl.where(rested, RESTED, 0)
        tl.store(mark_ptr + place, mark.to(tl.int8), mask=known)
        here = slot == (t & (SLOTS - 1))
        received = current.to(tl.float32) + tl.sum(tl.where(here, ring, 0.0), 0)
        ring = tl.where(here, 0.0, ring)
        v = alpha * v + (1 - alpha) * received - z * level
        quiet = tl.where(fires, 0, quiet + 1)
        z = spikes
        while source < SIZE:
            waiting = tl.where(waiting == source, SIZE, waiting)
            source = tl.min(waiting, 0)
            target = ((t + 1 + delay) & (SLOTS - 1))[None, :]
            ring = tl.where(slot == target, ring + weight[None, :], ring)
            delay, weight = synapses_of(source, weight_ptr, delay_ptr, j, neurons, neurons)
        current = after
        place += batch * neurons


@triton.jit
def _column(synapse_ptr, column, NEURONS: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr):
    """Return the synapses from `LANES` sources to all targets, ``[SIZE, LANES]``."""
    j, i = tl.arange(0, SIZE)[:, None], column * LANES + tl.arange(0, LANES)[None, :]
    place = synapse_ptr + (j * NEURONS + i)
    return tl.load(place, mask=(j < NEURONS) & (i < NEURONS), other=0)


@triton.jit
def _write_recurrent(
    recurrent_ptr, synapses, ring, t, column,
    SLOTS: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write ``G[t - 1]`` of some sources, for both samples."""
    weights = synapses.to(tl.float32, bitcast=True)
    slots = (synapses + t) & (SLOTS - 1)
    one, two = weights * tl.gather(ring, slots, 1), weights * tl.gather(ring, slots + SLOTS, 1)
    i = column * LANES + tl.arange(0, LANES)[:, None]
    place = recurrent_ptr + (i + tl.arange(0, 2)[None, :] * SIZE)
    tl.store(place, tl.sum(tl.join(one, two), 0))


@triton.jit(do_not_specialize=["origin"])
def _reverse(
    grad_ptr, synapse_ptr, beta_ptr, recurrent_ptr, v_ptr, level_ptr, mark_ptr, current_ptr,
    origin, time, batch, alpha, rho, damping,
    NEURONS: tl.constexpr, SLOTS: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr,
    HELD: tl.constexpr,
):  # fmt: skip
    """Go back over all time steps with two samples.

    dI and G go through memory, G in turns through two places: other threads need them.
    """
    first = 2 * tl.program_id(0).to(tl.int64)
    i, sample = tl.arange(0, SIZE)[None, :], first + tl.arange(0, 2)[:, None]
    known = (i < NEURONS) & (sample < batch)
    recurrent_ptr += 2 * first * SIZE
    lanes = recurrent_ptr + (i + tl.arange(0, 2)[:, None] * SIZE)
    beta = tl.load(beta_ptr + i, mask=i < NEURONS, other=0.0)
    zero = tl.zeros((2, SIZE), tl.float32)
    dv, db, dz = zero, zero, zero
    step = tl.cast(batch, tl.int64) * NEURONS
    place = (time - 1) * step + sample * NEURONS + i
    # origin is 0, which the compiler does not know: one value per thread and row, not four
    synapse_ptr += origin
    if HELD:
        held = _column(synapse_ptr, 0, NEURONS, SIZE, LANES)
        also_held = _column(synapse_ptr, 1, NEURONS, SIZE, LANES)
    j, slot = tl.arange(0, SIZE)[:, None], tl.arange(0, 2 * SLOTS)[None, :]
    held_by = slot // SLOTS
    theirs = (j < NEURONS) & (first + held_by < batch)
    # not contiguous along slots: this only orders the threads as the synapses
    offset = tl.max_contiguous(held_by * NEURONS + j, (1, 2))
    ring = tl.zeros((SIZE, 2 * SLOTS), tl.float32)
    for back in range(time):
        t = time - 1 - back
        # what is read once does not go through the L1 cache, which is for synapses
        grad = tl.load(grad_ptr + place, mask=known, other=0.0, cache_modifier=".cg")
        v = tl.load(v_ptr + place, mask=known, other=0.0, cache_modifier=".cg")
        level = tl.load(level_ptr + place, mask=known, other=1.0, cache_modifier=".cg")
        mark = tl.load(mark_ptr + place, mask=known, other=0)
        last = tl.load(mark_ptr + place - step, mask=known & (t > 0), other=0)
        tl.store(current_ptr + place, (1 - alpha) * dv, mask=known)
        tl.debug_barrier()  # other threads have written dI and G
        new = ((slot & (SLOTS - 1)) == (t & (SLOTS - 1))) & theirs
        ring = tl.load(current_ptr + origin + (t * step + first * NEURONS) + offset, new, ring)
        dz += grad.to(tl.float32) + tl.load(lanes + (back & 1) * (2 * SIZE))
        slope = damping * tl.maximum(1 - tl.abs(tl.div_rn(v, level) - 1), 0.0)
        ds = tl.where((mark & RESTED) != 0, dz * slope, 0.0)
        fired = (last & FIRED).to(tl.float32)
        db = rho * db - beta * (ds * v / (level * level) + fired * dv)
        dz = (1 - rho) * db - level * dv
        dv = alpha * dv + ds / level
        after = recurrent_ptr + ((back + 1) & 1) * (2 * SIZE)
        if HELD:
            _write_recurrent(after, held, ring, t, 0, SLOTS, SIZE, LANES)
            _write_recurrent(after, also_held, ring, t, 1, SLOTS, SIZE, LANES)
        for column in range(HELD, (NEURONS + LANES - 1) // LANES):
            synapses = _column(synapse_ptr, column, NEURONS, SIZE, LANES)
            _write_recurrent(after, synapses, ring, t, column, SLOTS, SIZE, LANES)
        place -= step


def fire(
    current: Tensor, weight: Tensor, delays: Tensor, span: int, beta: Tensor, constants
) -> tuple[Tensor, Saved]:
    """Return the spikes of all time steps, and what `reverse` needs.

    Args:
        current: ``[time, batch, neurons]``.
        weight: recurrent weights, ``[neurons, neurons]``.
        delays: int8 of that shape, -1 where there is no synapse.
        span: number of different delays.
        beta: strength of adaptation per neuron.
        constants: a `Dynamics`.

    Returns:
        Spikes of the shape and dtype of `current`.
    """
    current = current.contiguous()
    time, batch, neurons = current.shape
    spikes = torch.empty_like(current)
    voltages, levels = (torch.empty_like(current, dtype=torch.float32) for _ in range(2))
    marks = torch.empty_like(current, dtype=torch.int8)
    size = width(neurons)
    _fire[(batch,)](
        current, weight.T.contiguous().float(), delays.T.contiguous(), beta.float(), spikes,
        voltages, levels, marks, time, batch, neurons, constants.refractory, constants.decay,
        constants.adaptation_decay, constants.threshold,
        SLOTS=_slots(span), SIZE=size, num_warps=max(1, min(size // NEURONS_PER_WARP, 32)),
    )  # fmt: skip
    return spikes, Saved(voltages, levels, marks)


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
    slots, size = max(LANES // 2, _slots(span)), max(2 * LANES, width(neurons))
    pairs = triton.cdiv(batch, 2)
    recurrent = grad.new_zeros(pairs, 2, 2 * size, dtype=torch.float32)
    currents = torch.empty_like(saved.voltages)
    _reverse[(pairs,)](
        grad.contiguous(), _packed(weight, delays, slots), beta.float(), recurrent, *saved,
        currents, 0, time, batch, constants.decay, constants.adaptation_decay, damping,
        NEURONS=neurons, SLOTS=slots, SIZE=size, LANES=LANES,
        HELD=2 if size * slots <= 256 * 16 else 0, num_warps=WARPS,
    )  # fmt: skip
    return currents


def _slots(span: int) -> int:
    """Return how many time slots a ring has: those of all delays and the present one."""
    return triton.next_power_of_2(span + 1)


def _packed(weight: Tensor, delays: Tensor, slots: int) -> Tensor:
    """Return for each weight the nearest number whose lowest bits are the delay, as int32."""
    weight, bits = weight.detach().float().contiguous(), delays.int()
    near = ((weight.view(torch.int32) - bits + slots // 2) & -slots) | bits
    return torch.where(weight.abs() < SMALLEST, bits, near).where(delays >= 0, 0)
