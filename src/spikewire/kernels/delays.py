"""Synapses with a delay each, event by event: work is done only where an input is not 0.

With shift 0 for inputs of the same time step, and 1 for those of the step before::

      y_j[t]  = sum over i of W_ji x_i[t - d_ji]
      dW_ji   = sum over t and samples of dy_j[t] x_i[t - shift - d_ji]

The twins in plain torch are in `spikewire.nn.delays`. Sums have a fixed order, so results are equal
bit for bit from run to run.
"""

# Triton's tensors carry no types a checker could follow.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportReturnType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64  # time steps per program of `currents`
WORD = 32  # time steps per word of events
GROUP = 32  # inputs per program of `weight_gradient`
SPLITS = 64  # its partial sums per weight


def width(size: int) -> int:
    """Return the lanes of a row of `size` values: a power of two, at least one warp."""
    return max(32, triton.next_power_of_2(size))


@triton.jit
def synapses_of(source, weight_ptr, delay_ptr, j, sources, targets):
    """Return delays and weights of a source's synapses; weight 0 where there is none."""
    known = (j < targets) & (source < sources)
    delay = tl.load(delay_ptr + source * targets + j, mask=known, other=-1).to(tl.int32)
    weight = tl.load(weight_ptr + source * targets + j, mask=known, other=0.0)
    return delay, tl.where(delay >= 0, weight, 0.0)


@triton.jit
def _currents(
    x_ptr, weight_ptr, delay_ptr, y_ptr, time, batch, inputs, outputs, span,
    CHUNK: tl.constexpr, SLOTS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Sum the currents of some time steps of one sample, in a ring of later steps."""
    sample, first = tl.program_id(0), tl.program_id(1) * CHUNK
    i, j = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    slot = tl.arange(0, SLOTS)[:, None]
    ring = tl.zeros((SLOTS, OUTPUTS), tl.float32)
    start = tl.maximum(first - span + 1, 0)
    row = tl.cast(start, tl.int64) * batch + sample
    x = tl.load(x_ptr + row * inputs + i, mask=i < inputs, other=0.0)
    end = tl.minimum(first + CHUNK, time)
    for t in range(start, end):
        after = x_ptr + (row + batch) * inputs + i
        later = tl.load(after, mask=(i < inputs) & (t + 1 < end), other=0.0)
        values = x.to(tl.float32)
        waiting = tl.where(values != 0, i, INPUTS)
        source = tl.min(waiting, 0)
        while source < INPUTS:
            delay, weight = synapses_of(source, weight_ptr, delay_ptr, j, inputs, outputs)
            value = tl.sum(tl.where(i == source, values, 0.0), 0)
            waiting = tl.where(waiting == source, INPUTS, waiting)
            source = tl.min(waiting, 0)
            target = ((t + delay) & (SLOTS - 1))[None, :]
            ring = tl.where(slot == target, ring + (value * weight)[None, :], ring)
        here = slot == (t & (SLOTS - 1))
        y = tl.sum(tl.where(here, ring, 0.0), 0)
        ring = tl.where(here, 0.0, ring)
        tl.store(y_ptr + row * outputs + j, y, mask=(j < outputs) & (t >= first))
        x = later
        row += batch


@triton.jit
def _find_events(
    x_ptr, word_ptr, time, batch, inputs, WORD: tl.constexpr, INPUTS: tl.constexpr
):  # fmt: skip
    """Write for each input of one sample which of 32 time steps are not 0, as bits."""
    sample, word = tl.program_id(0), tl.program_id(1)
    bit, i = tl.arange(0, WORD)[:, None], tl.arange(0, INPUTS)[None, :]
    t = word * WORD + bit
    place = (t.to(tl.int64) * batch + sample) * inputs + i
    x = tl.load(x_ptr + place, mask=(t < time) & (i < inputs), other=0.0)
    words = tl.sum(tl.where(x != 0, 1 << bit, 0), 0)
    i = tl.arange(0, INPUTS)
    here = (sample.to(tl.int64) * tl.num_programs(1) + word) * inputs + i
    tl.store(word_ptr + here, words, mask=i < inputs)


@triton.jit
def _lowest_bit(bit):
    """Return the index of the only bit of `bit`, from the exponent of the same float."""
    return (bit.to(tl.uint32, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def _weight_gradient(
    x_ptr, word_ptr, dy_ptr, delay_ptr, part_ptr, time, batch, inputs, outputs, words, shift,
    BINARY: tl.constexpr, WORD: tl.constexpr, GROUP: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Sum what the events of some inputs, in some of the samples, contribute to their synapses.

    Inputs are taken together, 32 time steps at a time: their events read the same dy, from cache.
    """
    first, split = tl.program_id(0) * GROUP, tl.program_id(1)
    row, j = tl.arange(0, GROUP)[:, None], tl.arange(0, OUTPUTS)
    total = tl.zeros((GROUP, OUTPUTS), tl.float32)
    step = tl.cast(batch, tl.int64) * outputs
    for sample in range(split, batch, tl.num_programs(1)):
        for word in range(words):
            here = word_ptr + (tl.cast(sample, tl.int64) * words + word) * inputs
            for source in range(first, tl.minimum(first + GROUP, inputs)):
                bits = tl.load(here + source)
                while bits != 0:
                    bit = bits & -bits
                    bits = bits ^ bit
                    t = word * WORD + _lowest_bit(bit)
                    place = delay_ptr + source * outputs + j
                    delay = tl.load(place, mask=j < outputs, other=-1).to(tl.int32)
                    later = t + shift + delay
                    dy = dy_ptr + (later.to(tl.int64) * step + sample * outputs + j)
                    inside = (delay >= 0) & (later < time)
                    change = tl.load(dy, mask=inside, other=0.0).to(tl.float32)
                    if not BINARY:
                        x = x_ptr + (t.to(tl.int64) * batch + sample) * inputs + source
                        change *= tl.load(x).to(tl.float32)
                    total = tl.where(row == source - first, total + change[None, :], total)
    source = first + row
    place = (split * inputs + source) * outputs + j[None, :]
    tl.store(part_ptr + place, total, mask=(source < inputs) & (j < outputs)[None, :])


def currents(x: Tensor, weight: Tensor, delays: Tensor, span: int) -> Tensor:
    """Return the currents of synapses with delays; the twin is `DelayedLinear.forward`.

    Args:
        x: ``[time, batch, inputs]``, any dtype of floats.
        weight: ``[outputs, inputs]``.
        delays: int8 of that shape, -1 where there is no synapse.
        span: number of different delays.

    Returns:
        ``[time, batch, outputs]``, float32.
    """
    time, batch, inputs = x.shape
    outputs = len(weight)
    y = x.new_empty(time, batch, outputs, dtype=torch.float32)
    lanes = width(outputs)
    _currents[(batch, triton.cdiv(time, CHUNK))](
        x.contiguous(), weight.T.contiguous().float(), delays.T.contiguous(), y,
        time, batch, inputs, outputs, span,
        CHUNK=CHUNK, SLOTS=triton.next_power_of_2(span), INPUTS=width(inputs), OUTPUTS=lanes,
        num_warps=max(1, lanes // 64),
    )  # fmt: skip
    return y


def weight_gradient(
    x: Tensor, dy: Tensor, delays: Tensor, shift: int = 0, *, binary: bool = False
) -> Tensor:
    """Return the gradient of the weights; the twin is autograd through `DelayedLinear.forward`.

    Args:
        x: inputs ``[time, batch, inputs]``.
        dy: gradient of the currents, ``[time, batch, outputs]``.
        delays: ``[outputs, inputs]``, int8, -1 where there is no synapse.
        shift: steps by which all inputs are later still.
        binary: whether inputs are 0 or 1 only.

    Returns:
        ``[outputs, inputs]``, float32.
    """
    time, batch, inputs = x.shape
    outputs, x = len(delays), x.contiguous()
    words, splits = triton.cdiv(time, WORD), min(SPLITS, batch)
    events = x.new_empty(batch, words, inputs, dtype=torch.int32)
    parts = x.new_empty(splits, inputs, outputs, dtype=torch.float32)
    _find_events[(batch, words)](
        x, events, time, batch, inputs, WORD=WORD, INPUTS=width(inputs), num_warps=4
    )
    lanes = width(outputs)
    _weight_gradient[(triton.cdiv(inputs, GROUP), splits)](
        x, events, dy.contiguous(), delays.T.contiguous(), parts, time, batch, inputs, outputs,
        words, shift, BINARY=binary, WORD=WORD, GROUP=GROUP, OUTPUTS=lanes,
        num_warps=max(1, lanes // 32),
    )  # fmt: skip
    return parts.sum(0).T.contiguous()
