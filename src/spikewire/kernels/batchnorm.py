"""Triton programs for the statistics of BatchNorm: mean and variance per channel.

The twin in plain torch is the training path of `torch.nn.BatchNorm2d`.
"""

# Triton's tensors carry no types a checker could follow, and masks are passed by position.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from spikewire.kernels.tiles import index_tile


@triton.jit(do_not_specialize=["programs", "rounds"])
def moments(
    x_ptr, out_ptr, total, channels, programs, rounds,
    UNROLL: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write mean and squared deviation of this program's rows: ``[2, programs, channels]``.

    Every slot of the tile sums its own ``d = x - x_first`` and ``d^2``, where x_first is the first
    value of the slot, so that large means cancel; the slots are merged once, at the end.
    """
    first = tl.program_id(0)
    row, column, offset, inside = index_tile(first * ROWS, total, channels, ROWS, WIDTH)
    origin = tl.load(x_ptr + offset, mask=inside, other=0.0)
    shift = origin.to(tl.float32)
    sums = tl.zeros((ROWS, WIDTH), tl.float32)
    squares = tl.zeros((ROWS, WIDTH), tl.float32)
    i = 0
    while i < rounds:
        xs = ()
        for j in tl.static_range(UNROLL):  # all reads start before the first is used
            first_row = (first + (i + j) * programs).to(tl.int64) * ROWS
            _, _, offset, inside = index_tile(first_row, total, channels, ROWS, WIDTH)
            xs = xs + (tl.load(x_ptr + offset, mask=inside, other=origin),)
        for j in tl.static_range(UNROLL):
            d = xs[j].to(tl.float32) - shift
            sums += d
            squares += d * d
        i += UNROLL
    known = column < channels
    count = _count_rows(total // channels - row, programs * ROWS)[:, None]
    some = tl.maximum(count, 1.0)
    n = tl.maximum(tl.sum(count, 0), 1.0)
    mean = tl.where(count > 0, shift + sums / some, 0.0)
    centre = tl.sum(mean * count, 0) / n
    away = mean - centre[None, :]
    deviation = tl.sum(squares - sums * sums / some + count * away * away, 0)
    out = out_ptr + first * channels + column
    tl.store(out, centre, mask=known)
    tl.store(out + programs * channels, deviation, mask=known)


@triton.jit
def _count_rows(left, stride):
    """Return how many of the `left` remaining rows a slot reads at this stride, as float."""
    return tl.maximum((left + stride - 1) // stride, 0).to(tl.float32)


@triton.jit(do_not_specialize=["programs", "tile"])
def merge(
    part_ptr, mean_ptr, var_ptr, running_mean_ptr, running_var_ptr,
    total, channels, programs, tile, momentum,
    ROUNDS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Merge `moments` of all programs (Chan) around the first mean; update running statistics.

    How many rows a program has read follows from the `tile` rows it reads at a time.
    """
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    known = column < channels
    shift = tl.load(part_ptr + column, mask=known, other=0.0)
    weighted = tl.zeros((ROWS, WIDTH), tl.float32)
    spread = tl.zeros((ROWS, WIDTH), tl.float32)
    rows = total // channels
    for i in tl.static_range(ROUNDS):
        row = i * ROWS + tl.arange(0, ROWS)
        inside = (row < programs)[:, None] & known[None, :]
        part = part_ptr + row[:, None] * channels + column[None, :]
        period = programs * tile
        turns = rows // period
        rest = tl.minimum(tl.maximum(rows - turns * period - row.to(tl.int64) * tile, 0), tile)
        count = (turns * tile + rest).to(tl.float32)[:, None]
        away = tl.load(part, mask=inside, other=0.0) - shift[None, :]
        away = tl.where(inside, away, 0.0)
        weighted += count * away
        spread += tl.load(part + programs * channels, mask=inside, other=0.0) + count * away * away
    n = rows.to(tl.float32)
    moved = tl.sum(weighted, 0) / n
    mean = shift + moved
    variance = tl.maximum(tl.sum(spread, 0) / n - moved * moved, 0.0)
    tl.store(mean_ptr + column, mean, mask=known)
    tl.store(var_ptr + column, variance, mask=known)
    _lerp(running_mean_ptr + column, mean, momentum, known)
    _lerp(running_var_ptr + column, variance * (n / (n - 1.0)), momentum, known)


@triton.jit
def _lerp(pointer, value, momentum, known):
    """Move what is stored towards `value`."""
    old = tl.load(pointer, mask=known, other=0.0).to(tl.float32)
    tl.store(pointer, (old + momentum * (value - old)).to(pointer.dtype.element_ty), mask=known)
