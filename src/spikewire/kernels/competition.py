"""Neurons that inhibit each other, and traces of spikes: all time steps in one kernel each.

The twins in plain torch are `Excitatory.forward` in `spikewire.plasticity.diehl_cook` and `trace`
in `spikewire.plasticity.spikes`, which call these where `same_layout` holds.
"""

# Triton's tensors carry no types a checker could follow.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportReturnType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 256  # traces per program


@triton.jit
def _compete(
    current_ptr, limit_ptr, spike_ptr, steps, batch, neurons, decay, reset, inhibition,
    BLIND: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Run all neurons of one image, kept in registers, over time."""
    image, column = tl.program_id(0), tl.arange(0, WIDTH)
    inside = column < neurons
    limit = tl.load(limit_ptr + column, mask=inside, other=0.0)
    u = tl.zeros((WIDTH,), tl.float32)
    blind_until = tl.zeros((WIDTH,), tl.int32)
    for t in range(steps):
        offset = (t * batch + image).to(tl.int64) * neurons + column
        now = tl.load(current_ptr + offset, mask=inside, other=0.0)
        u = u * decay + tl.where(t < blind_until, 0.0, now)
        above = tl.where(inside, u - limit, -float("inf"))
        best = tl.max(above, 0)
        first = tl.min(tl.where(above == best, column, WIDTH), 0)
        spikes = column == tl.where(best >= 0, first, WIDTH)
        tl.store(spike_ptr + offset, spikes.to(tl.float32), mask=inside)
        u = tl.where(spikes, reset, u - tl.where(best >= 0, inhibition, 0.0))
        blind_until = tl.where(spikes, t + 1 + BLIND, blind_until)


@triton.jit
def _trace(spike_ptr, trace_ptr, steps, total, decay, SIZE: tl.constexpr):
    """Write the traces of one tile of neurons over time."""
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = index < total
    x = tl.zeros((SIZE,), tl.float32)
    for _ in range(steps):
        x = tl.maximum(x * decay, tl.load(spike_ptr + index, mask=inside, other=0.0))
        tl.store(trace_ptr + index, x, mask=inside)
        index += total


def compete(
    current: Tensor, limit: Tensor, *, decay: float, reset: float, inhibition: float, blind: int
) -> Tensor:
    """Return the spikes of neurons of which one spikes per step, and then inhibits all others.

    The twin is `spikewire.plasticity.diehl_cook.Excitatory.forward`.

    Args:
        current: input ``[time, batch, neurons]``, float32, contiguous.
        limit: threshold of each neuron.
        decay: factor on the potential per step.
        reset: potential after a spike.
        inhibition: fall of the potential of all others at a spike.
        blind: steps without input after a spike.
    """
    spikes = torch.empty_like(current)
    steps, batch, neurons = current.shape
    _compete[(batch,)](
        current, limit.contiguous(), spikes, steps, batch, neurons, decay, reset, inhibition,
        BLIND=blind, WIDTH=triton.next_power_of_2(neurons), num_warps=8,
    )  # fmt: skip
    return spikes


def trace(spikes: Tensor, decay: float) -> Tensor:
    """Return the traces of spikes ``[time, ...]``; the twin is `spikewire.plasticity.spikes.trace`.

    Args:
        spikes: 0 or 1, float32, contiguous.
        decay: factor per step.
    """
    traces, total = torch.empty_like(spikes), spikes[0].numel()
    _trace[(triton.cdiv(total, SIZE),)](spikes, traces, len(spikes), total, decay, SIZE=SIZE)
    return traces
