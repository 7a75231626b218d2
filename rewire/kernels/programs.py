"""Triton programs for neurons over time, with BatchNorm before them and a 2x2 max-pool after.

Currents lie in memory as ``[time, rows, channels]``, a row being one position of one image. One
program owns a tile of rows and channels and keeps every neuron of it in registers for all time
steps. The membrane is never stored: backward reads the currents again and integrates anew, which
costs fewer bytes than reading what forward would have written. Equations: `rewire.neurons`.
"""

# Triton's tensors carry no types a checker could follow, and masks are passed by position.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def _tile(first_row, total, channels, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return rows ``[ROWS]``, columns ``[WIDTH]``, offsets and what of them exists."""
    row = first_row.to(tl.int64) + tl.arange(0, ROWS)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    offset = row[:, None] * channels + column[None, :]
    return row, column, offset, (column < channels)[None, :] & (offset < total)


@triton.jit
def _channel(pointer, column, channels):
    """Load one float per channel as ``[1, WIDTH]``."""
    return tl.load(pointer + column, mask=column < channels, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _load(pointer, offset, inside, total, TIME: tl.constexpr):
    """Load all time steps before the first is used, so that the reads overlap."""
    stride = tl.cast(total, tl.int64)  # the last step of a large batch lies beyond 2^31
    values = ()
    for t in tl.static_range(TIME):
        values = values + (tl.load(pointer + t * stride + offset, mask=inside, other=0.0),)
    return values


@triton.jit
def _charge(u, current, GAIN: tl.constexpr, REST: tl.constexpr, LEAKY: tl.constexpr):
    """Return ``m``."""
    return u + (current - (u - REST)) * GAIN if LEAKY else u + current


@triton.jit
def _derivative(x, SURROGATE: tl.constexpr):
    """Return the surrogate's derivative."""
    if SURROGATE == "atan":
        y = x * 3.141592653589793
        d = 1.0 / (1.0 + y * y)
    elif SURROGATE == "sigmoid":
        s = 1.0 / (1.0 + tl.exp(x * -4.0))
        d = 4.0 * s * (1.0 - s)
    else:
        d = tl.maximum(1.0 - tl.abs(x), 0.0)
    return d


@triton.jit
def _normal(x, mean, scale, bias, NORM: tl.constexpr):
    """Return the current a neuron gets for the raw value `x`."""
    y = x.to(tl.float32)
    if NORM:
        y = (y - mean) * scale + bias
    return y


@triton.jit
def moments(
    x_ptr, out_ptr, total, channels, programs,
    ROUNDS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write count, mean and squared deviation of this program's rows: ``[3, programs, channels]``.

    Every slot of the tile runs Welford's update on its own; the slots are merged once, at the end.
    """
    first = tl.program_id(0)
    mean = tl.zeros((ROWS, WIDTH), tl.float32)
    deviation = tl.zeros((ROWS, WIDTH), tl.float32)
    count = tl.zeros((ROWS, WIDTH), tl.float32)
    for i in range(ROUNDS):
        tile = (first + i * programs) * ROWS
        _, _, offset, inside = _tile(tile, total, channels, ROWS, WIDTH)
        x = tl.load(x_ptr + offset, mask=inside, other=0.0).to(tl.float32)
        count += tl.where(inside, 1.0, 0.0)
        delta = tl.where(inside, x - mean, 0.0)
        # Only the last tiles can be cut off, so a slot still growing has met all i before this.
        mean += delta * (1.0 / (i + 1))
        deviation += delta * tl.where(inside, x - mean, 0.0)
    n = tl.sum(count, 0)
    centre = tl.sum(mean * count, 0) / tl.maximum(n, 1.0)
    away = mean - centre[None, :]
    deviation = tl.sum(deviation + count * away * away, 0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    out = out_ptr + first * channels + column
    known = column < channels
    tl.store(out, n, mask=known)
    tl.store(out + programs * channels, centre, mask=known)
    tl.store(out + 2 * programs * channels, deviation, mask=known)


@triton.jit
def merge(
    part_ptr, mean_ptr, var_ptr, channels, programs,
    ROUNDS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Merge `moments` of all programs (Chan): mean and biased variance of every channel."""
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    n = tl.zeros((ROWS, WIDTH), tl.float32)
    weighted = tl.zeros((ROWS, WIDTH), tl.float32)
    for i in range(ROUNDS):
        row = i * ROWS + tl.arange(0, ROWS)
        inside = (row < programs)[:, None] & (column < channels)[None, :]
        part = part_ptr + row[:, None] * channels + column[None, :]
        count = tl.load(part, mask=inside, other=0.0)
        n += count
        weighted += count * tl.load(part + programs * channels, mask=inside, other=0.0)
    total = tl.maximum(tl.sum(n, 0), 1.0)
    centre = tl.sum(weighted, 0) / total
    spread = tl.zeros((ROWS, WIDTH), tl.float32)
    for i in range(ROUNDS):
        row = i * ROWS + tl.arange(0, ROWS)
        inside = (row < programs)[:, None] & (column < channels)[None, :]
        part = part_ptr + row[:, None] * channels + column[None, :]
        count = tl.load(part, mask=inside, other=0.0)
        away = tl.load(part + programs * channels, mask=inside, other=0.0) - centre[None, :]
        spread += tl.load(part + 2 * programs * channels, mask=inside, other=0.0)
        spread += count * away * away
    tl.store(mean_ptr + column, centre, mask=column < channels)
    tl.store(var_ptr + column, tl.sum(spread, 0) / total, mask=column < channels)


@triton.jit
def fire(
    x_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, spike_ptr, total, channels, eps,
    TIME: tl.constexpr, STATIC: tl.constexpr, NORM: tl.constexpr, LEAKY: tl.constexpr,
    GAIN: tl.constexpr, THRESHOLD: tl.constexpr, REST: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the spikes of one tile; STATIC: the same current at every step, read once."""
    _, column, offset, inside = _tile(tl.program_id(0) * ROWS, total, channels, ROWS, WIDTH)
    mean, scale, bias = 0.0, 1.0, 0.0
    if NORM:
        mean = _channel(mean_ptr, column, channels)
        scale = _channel(weight_ptr, column, channels) * tl.rsqrt(
            _channel(var_ptr, column, channels) + eps
        )
        bias = _channel(bias_ptr, column, channels)
    xs = _load(x_ptr, offset, inside, total, 1 if STATIC else TIME)
    u = tl.full((ROWS, WIDTH), REST, tl.float32)
    for t in tl.static_range(TIME):
        current = _normal(xs[0 if STATIC else t], mean, scale, bias, NORM)
        m = _charge(u, current, GAIN, REST, LEAKY)
        u = tl.where(m >= THRESHOLD, REST, m)
        spike = tl.where(m >= THRESHOLD, 1.0, 0.0).to(spike_ptr.dtype.element_ty)
        tl.store(spike_ptr + t * tl.cast(total, tl.int64) + offset, spike, mask=inside)


@triton.jit
def fire_and_pool(
    x_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, spike_ptr, winner_ptr,
    total, pooled_total, channels, height, width, eps,
    TIME: tl.constexpr, STATIC: tl.constexpr, LEAKY: tl.constexpr,
    GAIN: tl.constexpr, THRESHOLD: tl.constexpr, REST: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the spikes of 2x2 windows and, two bits a time step, which neuron of it won.

    The first neuron that fires wins, in reading order; in a silent window the first one does. Time
    step t lives in bits 2t and 2t + 1 of an int32: at most 16 time steps.
    """
    row, column, offset, inside = _tile(
        tl.program_id(0) * ROWS, pooled_total, channels, ROWS, WIDTH
    )
    mean = _channel(mean_ptr, column, channels)
    scale = _channel(weight_ptr, column, channels) * tl.rsqrt(
        _channel(var_ptr, column, channels) + eps
    )
    bias = _channel(bias_ptr, column, channels)
    down, right = height // 2, width // 2
    image = row // (down * right)
    corner = (image * height + row // right % down * 2) * width + row % right * 2
    winner = tl.zeros((ROWS, WIDTH), tl.int32)
    fired = tl.zeros((ROWS, WIDTH), tl.int32)
    for k in tl.static_range(4):
        source = (corner + (k // 2) * width + k % 2)[:, None] * channels + column[None, :]
        xs = _load(x_ptr, source, inside, total, 1 if STATIC else TIME)
        u = tl.full((ROWS, WIDTH), REST, tl.float32)
        spikes = tl.zeros((ROWS, WIDTH), tl.int32)
        for t in tl.static_range(TIME):
            current = _normal(xs[0 if STATIC else t], mean, scale, bias, True)
            m = _charge(u, current, GAIN, REST, LEAKY)
            u = tl.where(m >= THRESHOLD, REST, m)
            spikes |= tl.where(m >= THRESHOLD, 1, 0) << (2 * t)
        winner |= (spikes & ~fired) * k
        fired |= spikes
    tl.store(winner_ptr + offset, winner, mask=inside)
    for t in tl.static_range(TIME):
        spike = tl.where(((fired >> (2 * t)) & 1) == 1, 1.0, 0.0).to(spike_ptr.dtype.element_ty)
        tl.store(spike_ptr + t * tl.cast(pooled_total, tl.int64) + offset, spike, mask=inside)


@triton.jit
def fire_backward(
    grad_ptr, winner_ptr, x_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, sum_ptr, part_ptr, dx_ptr,
    total, pooled_total, channels, height, width, programs, count, eps,
    TIME: tl.constexpr, STATIC: tl.constexpr, NORM: tl.constexpr, POOL: tl.constexpr,
    REDUCE: tl.constexpr, BATCH: tl.constexpr, LEAKY: tl.constexpr,
    GAIN: tl.constexpr, LEAK: tl.constexpr, THRESHOLD: tl.constexpr, REST: tl.constexpr,
    SURROGATE: tl.constexpr, ROUNDS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Integrate anew, go back in time, and either sum over rows or write the gradient of x.

    With y = BatchNorm(x), d = x - mean, n rows: REDUCE writes ``sum dy`` and ``sum dy d`` of each
    program as ``[2, programs, channels]``; otherwise `sum_ptr` holds them merged, and
    ``dx = weight rstd (dy - sum dy / n - d rstd^2 sum dy d / n)``, without the sums if not BATCH.
    """
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mean, scale, bias, slope, level = 0.0, 1.0, 0.0, 0.0, 0.0
    if NORM:
        rstd = tl.rsqrt(_channel(var_ptr, column, channels) + eps)
        mean = _channel(mean_ptr, column, channels)
        scale = _channel(weight_ptr, column, channels) * rstd
        bias = _channel(bias_ptr, column, channels)
        if BATCH and not REDUCE:
            level = _channel(sum_ptr, column, channels) / count
            slope = _channel(sum_ptr + channels, column, channels) * rstd * rstd / count
    first = tl.program_id(0)
    sum_dy = tl.zeros((ROWS, WIDTH), tl.float32)
    sum_dyd = tl.zeros((ROWS, WIDTH), tl.float32)
    for i in range(ROUNDS):
        tile = (first + i * programs) * ROWS
        row, _, offset, inside = _tile(tile, total, channels, ROWS, WIDTH)
        xs = _load(x_ptr, offset, inside, total, 1 if STATIC else TIME)
        winner = tl.zeros((ROWS, WIDTH), tl.int32)
        place = tl.zeros((ROWS, 1), tl.int32)
        if POOL:
            down, right = height // 2, width // 2
            h, w = row // width % height, row % width
            pooled = (row // (width * height) * down + h // 2) * right + w // 2
            source = pooled[:, None] * channels + column[None, :]
            felt = inside & ((h // 2 < down) & (w // 2 < right))[:, None]
            place = (h % 2 * 2 + w % 2).to(tl.int32)[:, None]
            winner = tl.load(winner_ptr + source, mask=felt, other=0)
            gs = _load(grad_ptr, source, felt, pooled_total, TIME)
        else:
            gs = _load(grad_ptr, offset, inside, total, TIME)
        u = tl.full((ROWS, WIDTH), REST, tl.float32)
        ms = ()
        for t in tl.static_range(TIME):
            current = _normal(xs[0 if STATIC else t], mean, scale, bias, NORM)
            m = _charge(u, current, GAIN, REST, LEAKY)
            u = tl.where(m >= THRESHOLD, REST, m)
            ms = ms + (m,)
        carry = tl.zeros((ROWS, WIDTH), tl.float32)
        static_dy = tl.zeros((ROWS, WIDTH), tl.float32)
        for t in tl.static_range(TIME - 1, -1, -1):
            g = gs[t].to(tl.float32)
            if POOL:
                g = tl.where(((winner >> (2 * t)) & 3) == place, g, 0.0)
            carry = g * _derivative(ms[t] - THRESHOLD, SURROGATE) + tl.where(
                ms[t] >= THRESHOLD, 0.0, carry * LEAK
            )
            if STATIC:
                static_dy += carry
            elif REDUCE:
                sum_dy += carry
                sum_dyd += carry * (xs[t].to(tl.float32) - mean)
            else:
                dy = carry * GAIN
                if NORM:
                    dy = (dy - level - (xs[t].to(tl.float32) - mean) * slope) * scale
                here = dx_ptr + t * tl.cast(total, tl.int64) + offset
                tl.store(here, dy.to(dx_ptr.dtype.element_ty), mask=inside)
        if STATIC:
            if REDUCE:
                sum_dy += static_dy
                sum_dyd += static_dy * (xs[0].to(tl.float32) - mean)
            else:
                dy = static_dy * GAIN
                if NORM:
                    dy = (dy - level - (xs[0].to(tl.float32) - mean) * slope) * scale
                tl.store(dx_ptr + offset, dy.to(dx_ptr.dtype.element_ty), mask=inside)
    if REDUCE:
        out = part_ptr + first * channels + column
        known = column < channels
        tl.store(out, tl.sum(sum_dy, 0) * GAIN, mask=known)
        tl.store(out + programs * channels, tl.sum(sum_dyd, 0) * GAIN, mask=known)
