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
SPLITS = 32  # partial sums per weight gradient


def width(size: int) -> int:
    """Return the lanes of a row of `size` values: a power of two, at least one warp."""
    return max(32, triton.next_power_of_2(size))


def warps(lanes: int) -> int:
    """Return how many warps share a row: eight values per thread."""
    return max(1, lanes // 256)


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
    here = (i.to(tl.int64) * batch + sample) * tl.num_programs(1) + word
    tl.store(word_ptr + here, words, mask=i < inputs)


@triton.jit
def _lowest_bit(bit):
    """Return the index of the only bit of `bit`, from the exponent of the same float."""
    return (bit.to(tl.uint32, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def _weight_gradient(
    x_ptr, word_ptr, dy_ptr, delay_ptr, part_ptr, time, batch, inputs, outputs, words, shift,
    splits, WORD: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Sum what the events of one input, in some of the samples, contribute to its synapses."""
    source, split = tl.program_id(0), tl.program_id(1)
    j = tl.arange(0, OUTPUTS)
    delay = tl.load(delay_ptr + source * outputs + j, mask=j < outputs, other=-1).to(tl.int32)
    later = delay + shift
    dy_ptr += later.to(tl.int64) * (batch * outputs) + j
    total = tl.zeros((OUTPUTS,), tl.float32)
    for sample in range(split, batch, splits):
        for word in range(words):
            bits = tl.load(word_ptr + (source.to(tl.int64) * batch + sample) * words + word)
            while bits != 0:
                bit = bits & -bits
                t = word * WORD + _lowest_bit(bit)
                row = t.to(tl.int64) * batch + sample
                x = tl.load(x_ptr + row * inputs + source).to(tl.float32)
                inside = (delay >= 0) & (later < time - t)
                dy = tl.load(dy_ptr + row * outputs, mask=inside, other=0.0).to(tl.float32)
                total += x * dy
                bits = bits ^ bit
    place = (split * inputs + source) * outputs + j
    tl.store(part_ptr + place, total, mask=j < outputs)


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


def weight_gradient(x: Tensor, dy: Tensor, delays: Tensor, shift: int = 0) -> Tensor:
    """Return the gradient of the weights; the twin is autograd through `DelayedLinear.forward`.

    Args:
        x: inputs ``[time, batch, inputs]``.
        dy: gradient of the currents, ``[time, batch, outputs]``.
        delays: ``[outputs, inputs]``, int8, -1 where there is no synapse.
        shift: steps by which all inputs are later still.

    Returns:
        ``[outputs, inputs]``, float32.
    """
    time, batch, inputs = x.shape
    outputs, x = len(delays), x.contiguous()
    words, splits = triton.cdiv(time, WORD), min(SPLITS, batch)
    events = x.new_empty(inputs, batch, words, dtype=torch.int32)
    parts = x.new_empty(splits, inputs, outputs, dtype=torch.float32)
    _find_events[(batch, words)](
        x, events, time, batch, inputs, WORD=WORD, INPUTS=width(inputs), num_warps=4
    )
    lanes = width(outputs)
    _weight_gradient[(inputs, splits)](
        x, events, dy.contiguous(), delays.T.contiguous(), parts, time, batch, inputs, outputs,
        words, shift, splits, WORD=WORD, OUTPUTS=lanes, num_warps=warps(lanes),
    )  # fmt: skip
    return parts.sum(0).T.contiguous()
