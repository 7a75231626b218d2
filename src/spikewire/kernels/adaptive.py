"""Recurrent neurons with adaptive thresholds: all time steps in one kernel, forward.

The equations are those of `spikewire.nn.adaptive`, whose plain-torch path is the twin; backward is
`spikewire.kernels.adaptive_reverse`.

One program per sample advances all neurons, two steps at once: a spike changes no spike of the next
step. It adds the neuron's synapses to the currents of the later steps, which are kept in a ring of
time slots, in registers; neurons that do not spike cost nothing.
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

NEURONS_PER_WARP = 32
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
def _decide(v, b, z, quiet, beta, refractory, rho, threshold):
    """Return adaptation and threshold of a step, who has rested, and who fires."""
    b = rho * b + (1 - rho) * z
    level = threshold + beta * b
    rested = quiet >= refractory
    return b, level, rested, (tl.div_rn(v, level) > 1) & rested


@triton.jit
def _save(spike_ptr, v_ptr, level_ptr, mark_ptr, place, mask, v, level, rested, fires):
    """Write the spikes of a step, and what the backward pass needs."""
    tl.store(spike_ptr + place, fires.to(tl.float32).to(spike_ptr.dtype.element_ty), mask=mask)
    tl.store(v_ptr + place, v, mask=mask)
    tl.store(level_ptr + place, level, mask=mask)
    mark = tl.where(fires, FIRED, 0) + tl.where(rested, RESTED, 0)
    tl.store(mark_ptr + place, mark.to(tl.int8), mask=mask)


@triton.jit
def _take(ring, t, SLOTS: tl.constexpr):
    """Return what the ring has for a step, and the ring without it."""
    here = tl.arange(0, SLOTS)[:, None] == (t & (SLOTS - 1))
    return tl.sum(tl.where(here, ring, 0.0), 0), tl.where(here, 0.0, ring)


@triton.jit
def _list(list_ptr, fires, also, SIZE: tl.constexpr):
    """Write who fires in the step, from ``SIZE - 1`` down, and one later, from `SIZE` up."""
    j = tl.arange(0, SIZE)
    counts = tl.cumsum(fires.to(tl.int32) + (also.to(tl.int32) << 16), 0)
    tl.store(list_ptr + (SIZE - (counts & 0xFFFF)), j, mask=fires)
    tl.store(list_ptr + (SIZE - 1 + (counts >> 16)), j, mask=also)
    tl.store(list_ptr + 2 * SIZE + tl.zeros_like(j), counts, mask=j == SIZE - 1)


@triton.jit
def _listed(list_ptr, at, end, SIZE: tl.constexpr):
    """Return a neuron of a list; `SIZE` after its end."""
    return tl.load(list_ptr + at, mask=at < end, other=SIZE)


@triton.jit
def _reached(source, late, weight_ptr, delay_ptr, neurons, SIZE: tl.constexpr):
    """Return when the synapses of a neuron are reached, in steps from the list's, and weights."""
    j = tl.arange(0, SIZE)
    delay, weight = synapses_of(source, weight_ptr, delay_ptr, j, neurons, neurons)
    return delay + late + 1, weight


@triton.jit
def _add(ring, time, weight, SLOTS: tl.constexpr):
    """Add weights to the slots of some times."""
    here = tl.arange(0, SLOTS)[:, None] == (time & (SLOTS - 1))[None, :]
    return tl.where(here, ring + weight[None, :], ring)


@triton.jit
def _send(
    ring, list_ptr, weight_ptr, delay_ptr, t, neurons, SLOTS: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """Add the synapses of all listed neurons to the ring; those of four are read at once."""
    counts = tl.load(list_ptr + 2 * SIZE)
    end = SIZE + (counts >> 16)
    for at in range(SIZE - (counts & 0xFFFF), end, 4):
        a, b = _listed(list_ptr, at, end, SIZE), _listed(list_ptr, at + 1, end, SIZE)
        c, d = _listed(list_ptr, at + 2, end, SIZE), _listed(list_ptr, at + 3, end, SIZE)
        when_a, a = _reached(a, at // SIZE, weight_ptr, delay_ptr, neurons, SIZE)
        when_b, b = _reached(b, (at + 1) // SIZE, weight_ptr, delay_ptr, neurons, SIZE)
        when_c, c = _reached(c, (at + 2) // SIZE, weight_ptr, delay_ptr, neurons, SIZE)
        when_d, d = _reached(d, (at + 3) // SIZE, weight_ptr, delay_ptr, neurons, SIZE)
        ring = _add(_add(ring, t + when_a, a, SLOTS), t + when_b, b, SLOTS)
        ring = _add(_add(ring, t + when_c, c, SLOTS), t + when_d, d, SLOTS)
    return ring


@triton.jit
def _fire(
    current_ptr, weight_ptr, delay_ptr, beta_ptr, list_ptr, spike_ptr, v_ptr, level_ptr, mark_ptr,
    time, batch, neurons, refractory, alpha, rho, threshold,
    SLOTS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Advance the neurons of one sample over all time steps, two steps at once.

    Other threads need to know who fires, by lists in memory of this program alone. There are two,
    in turns: a thread writes a list only after the barrier that follows all reads of it.
    """
    sample, j = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    list_ptr += sample * (4 * SIZE + 4)
    known, step = j < neurons, tl.cast(batch, tl.int64) * neurons
    ring = tl.zeros((SLOTS, SIZE), tl.float32)
    beta = tl.load(beta_ptr + j, mask=known, other=0.0)
    v = tl.zeros((SIZE,), tl.float32)
    b, z = v, v
    quiet = tl.zeros((SIZE,), tl.int32) + refractory
    place = sample * neurons + j
    now = tl.load(current_ptr + place, mask=known, other=0.0)
    soon = tl.load(current_ptr + place + step, mask=known & (time > 1), other=0.0)
    for t in range(0, time, 2):
        after = current_ptr + place + 2 * step
        now_2 = tl.load(after, mask=known & (t + 2 < time), other=0.0)
        soon_2 = tl.load(after + step, mask=known & (t + 3 < time), other=0.0)
        b, level, rested, fires = _decide(v, b, z, quiet, beta, refractory, rho, threshold)
        _save(spike_ptr, v_ptr, level_ptr, mark_ptr, place, known, v, level, rested, fires)
        received, ring = _take(ring, t, SLOTS)
        v = alpha * v + (1 - alpha) * (now.to(tl.float32) + received) - z * level
        quiet, z = tl.where(fires, 0, quiet + 1), fires.to(tl.float32)
        b, level, rested, also = _decide(v, b, z, quiet, beta, refractory, rho, threshold)
        there, inside = place + step, known & (t + 1 < time)
        _save(spike_ptr, v_ptr, level_ptr, mark_ptr, there, inside, v, level, rested, also)
        turn = list_ptr + (t & 2) * (SIZE + 1)
        _list(turn, fires & known, also & known, SIZE)
        tl.debug_barrier()  # other threads have listed who fires
        ring = _send(ring, turn, weight_ptr, delay_ptr, t, neurons, SLOTS, SIZE)
        received, ring = _take(ring, t + 1, SLOTS)
        v = alpha * v + (1 - alpha) * (soon.to(tl.float32) + received) - z * level
        quiet, z = tl.where(also, 0, quiet + 1), also.to(tl.float32)
        now, soon = now_2, soon_2
        place += 2 * step


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
    lists = current.new_empty(batch, 4 * size + 4, dtype=torch.int32)
    _fire[(batch,)](
        current, weight.T.contiguous().float(), delays.T.contiguous(), beta.float(), lists, spikes,
        voltages, levels, marks, time, batch, neurons, constants.refractory, constants.decay,
        constants.adaptation_decay, constants.threshold, SLOTS=_slots(span), SIZE=size,
        num_warps=max(1, min(size // NEURONS_PER_WARP, 32)),
    )  # fmt: skip
    return spikes, Saved(voltages, levels, marks)


def _slots(span: int) -> int:
    """Return how many time slots a ring has: those of all delays and the present one."""
    return triton.next_power_of_2(span + 1)
