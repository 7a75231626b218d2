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
def _currents(
    x_ptr, weight_ptr, delay_ptr, y_ptr, time, batch, inputs, outputs, span,
    CHUNK: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Add the currents of all inputs that reach some time steps of one sample.

    A thread always reads and writes the same outputs j, so no two threads meet.
    """
    sample, first = tl.program_id(0), tl.program_id(1) * CHUNK
    end = tl.minimum(first + CHUNK, time)
    i, j = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    y_ptr += sample.to(tl.int64) * outputs + j
    for t in range(tl.maximum(first - span + 1, 0), end):
        row = x_ptr + (tl.cast(t, tl.int64) * batch + sample) * inputs
        x = tl.load(row + i, mask=i < inputs, other=0.0).to(tl.float32)
        waiting = tl.where(x != 0, i, INPUTS)
        source = tl.min(waiting, 0)
        while source < INPUTS:
            place = source * outputs + j
            delay = tl.load(delay_ptr + place, mask=j < outputs, other=-1).to(tl.int32)
            weight = tl.load(weight_ptr + place, mask=j < outputs, other=0.0)
            value = tl.sum(tl.where(i == source, x, 0.0), 0)
            waiting = tl.where(waiting == source, INPUTS, waiting)
            source = tl.min(waiting, 0)
            target = t + delay
            inside = (delay >= 0) & (target >= first) & (target < end)
            y = y_ptr + target.to(tl.int64) * (batch * outputs)
            tl.store(y, tl.load(y, mask=inside, other=0.0) + value * weight, mask=inside)


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
    y = x.new_zeros(time, batch, outputs, dtype=torch.float32)
    lanes = width(outputs)
    _currents[(batch, triton.cdiv(time, CHUNK))](
        x.contiguous(), weight.T.contiguous().float(), delays.T.contiguous(), y,
        time, batch, inputs, outputs, span,
        CHUNK=CHUNK, INPUTS=width(inputs), OUTPUTS=lanes, num_warps=warps(lanes),
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
