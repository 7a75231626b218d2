"""Triton programs for neurons over time, with BatchNorm before them and a 2x2 max-pool after.

Two tensors may be added: `add` to the currents of the neurons, `residual` to their spikes. The rate
``1 / tau`` is a constant of the program, or a learnt number that is read from memory.

Currents are stored as ``[time, rows, channels]``, one row per position of an image. One program
processes one tile of rows and channels and keeps its neurons in registers for all time steps. The
membrane is never stored: backward reads the currents and integrates them a second time, which costs
fewer bytes than reading what forward would have written. The equations, and the twin in plain
torch, are in `spikewire.nn.neurons`.
"""

# Triton's tensors carry no types a checker could follow, and masks are passed by position.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from spikewire.kernels.tiles import index_tile, load_channel, load_steps, locate


@triton.jit
def _rates(rate_ptr, GAIN: tl.constexpr, LEAK: tl.constexpr):
    """Return ``1 / tau`` and ``1 - 1 / tau``; without leak both are 1."""
    rate, leak = GAIN, LEAK
    if rate_ptr is not None:
        rate = tl.load(rate_ptr).to(tl.float32)
        leak = 1.0 - rate
    return rate, leak


@triton.jit
def _charge(u, x, mean, gain, push, leak, NORM: tl.constexpr):
    """Return ``m = (1 - 1 / tau) u + current / tau``, the current's part as one multiply-add."""
    d = x.to(tl.float32)
    if NORM:
        d = d - mean
    return u * leak + (d * gain + push)


@triton.jit
def _reset(m, THRESHOLD: tl.constexpr, REST: tl.constexpr, SOFT: tl.constexpr):
    """Return the voltage after a step."""
    return tl.where(m >= THRESHOLD, m - (THRESHOLD - REST) if SOFT else REST, m)


@triton.jit
def _derivative(m, THRESHOLD: tl.constexpr, SURROGATE: tl.constexpr):
    """Return the surrogate's derivative at ``m - threshold``."""
    if SURROGATE == "atan":
        y = m * 3.141592653589793 - THRESHOLD * 3.141592653589793
        root = tl.rsqrt(y * y + 1.0)  # a division takes twice the instructions
        d = root * root
    elif SURROGATE == "sigmoid":
        s = 1.0 / (1.0 + tl.exp((m - THRESHOLD) * -4.0))
        d = 4.0 * s * (1.0 - s)
    elif SURROGATE == "rectangle":
        d = tl.where(tl.abs(m - THRESHOLD) < 0.5, 1.0, 0.0)
    else:
        d = tl.maximum(1.0 - tl.abs(m - THRESHOLD), 0.0)
    return d


@triton.jit
def _norm(
    mean_ptr, var_ptr, weight_ptr, bias_ptr, column, channels, eps, rate, leak,
    REST: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Return mean, rstd, weight rstd, and the two factors of ``current / tau = d gain + push``."""
    mean, rstd, scale = 0.0, 1.0, 1.0
    gain, push = rate, REST * (1.0 - leak)
    if NORM:
        mean = load_channel(mean_ptr, column, channels)
        rstd = tl.rsqrt(load_channel(var_ptr, column, channels) + eps)
        scale = load_channel(weight_ptr, column, channels) * rstd
        gain, push = scale * rate, push + load_channel(bias_ptr, column, channels) * rate
    return mean, rstd, scale, gain, push


@triton.jit
def fire(
    x_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, add_ptr, residual_ptr, rate_ptr, spike_ptr,
    total, channels, eps,
    TIME: tl.constexpr, STATIC: tl.constexpr, NORM: tl.constexpr, LEAK: tl.constexpr,
    GAIN: tl.constexpr, THRESHOLD: tl.constexpr, REST: tl.constexpr,
    SOFT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the spikes of one tile; STATIC: the same current at every step, read once."""
    _, column, offset, inside = index_tile(tl.program_id(0) * ROWS, total, channels, ROWS, WIDTH)
    rate, leak = _rates(rate_ptr, GAIN, LEAK)
    mean, _, _, gain, push = _norm(
        mean_ptr, var_ptr, weight_ptr, bias_ptr, column, channels, eps, rate, leak, REST, NORM
    )
    xs = load_steps(x_ptr, offset, inside, total, 1 if STATIC else TIME)
    if add_ptr is not None:
        adds = load_steps(add_ptr, offset, inside, total, TIME)
    if residual_ptr is not None:
        residuals = load_steps(residual_ptr, offset, inside, total, TIME)
    u = tl.full((ROWS, WIDTH), REST, tl.float32)
    for t in tl.static_range(TIME):
        m = _charge(u, xs[0 if STATIC else t], mean, gain, push, leak, NORM)
        if add_ptr is not None:
            m += adds[t].to(tl.float32) * rate
        u = _reset(m, THRESHOLD, REST, SOFT)
        spike = tl.where(m >= THRESHOLD, 1.0, 0.0)
        if residual_ptr is not None:
            spike += residuals[t].to(tl.float32)
        here = spike_ptr + t * tl.cast(total, tl.int64) + offset
        tl.store(here, spike.to(spike_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["height", "width"])
def fire_and_pool(
    x_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, rate_ptr, spike_ptr, winner_ptr,
    total, pooled_total, channels, height, width, eps,
    TIME: tl.constexpr, STATIC: tl.constexpr, HALF: tl.constexpr, LEAK: tl.constexpr,
    GAIN: tl.constexpr, THRESHOLD: tl.constexpr, REST: tl.constexpr,
    SOFT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the spikes of 2x2 windows and, in two bits per time step, which neuron won.

    The first neuron that fires wins, row by row; in a silent window the first one does. Time step t
    has bit t (right column) and bit HALF + t (lower row): of an int32 for up to 16 time steps, else
    of an int64. The twin is `torch.nn.MaxPool2d(2)` after the neurons.
    """
    row, column, offset, inside = index_tile(
        tl.program_id(0) * ROWS, pooled_total, channels, ROWS, WIDTH
    )
    rate, leak = _rates(rate_ptr, GAIN, LEAK)
    mean, _, _, gain, push = _norm(
        mean_ptr, var_ptr, weight_ptr, bias_ptr, column, channels, eps, rate, leak, REST, True
    )
    image, h, w = locate(row, height // 2, width // 2)
    corner = ((image * height + h * 2) * width + w * 2).to(tl.int64)
    winner = tl.zeros((ROWS, WIDTH), winner_ptr.dtype.element_ty)
    fired = tl.zeros((ROWS, WIDTH), winner_ptr.dtype.element_ty)
    for k in tl.static_range(4):
        source = (corner + (k // 2) * width + k % 2)[:, None] * channels + column[None, :]
        xs = load_steps(x_ptr, source, inside, total, 1 if STATIC else TIME)
        u = tl.full((ROWS, WIDTH), REST, tl.float32)
        spikes = tl.zeros((ROWS, WIDTH), winner_ptr.dtype.element_ty)
        for t in tl.static_range(TIME):
            m = _charge(u, xs[0 if STATIC else t], mean, gain, push, leak, True)
            u = _reset(m, THRESHOLD, REST, SOFT)
            spikes |= (m >= THRESHOLD).to(winner_ptr.dtype.element_ty) << t
        winner |= (spikes & ~fired) * (k % 2 + (k // 2 << HALF))
        fired |= spikes
    tl.store(winner_ptr + offset, winner, mask=inside)
    for t in tl.static_range(TIME):
        spike = ((fired >> t) & 1).to(tl.float32).to(spike_ptr.dtype.element_ty)
        tl.store(spike_ptr + t * tl.cast(pooled_total, tl.int64) + offset, spike, mask=inside)


@triton.jit
def _through(carry, x, mean, gain, level, slope, BATCH: tl.constexpr):
    """Return the gradient of x, the input of BatchNorm."""
    dx = carry * gain
    if BATCH:
        dx -= (x.to(tl.float32) - mean) * slope + level
    return dx


@triton.jit(do_not_specialize=["rows", "height", "width", "programs", "rounds", "count"])
def fire_backward(
    grad_ptr, winner_ptr, x_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, add_ptr, rate_ptr,
    sum_ptr, part_ptr, dx_ptr, dadd_ptr, total, pooled_total, rows, channels, height, width,
    programs, rounds, count, eps,
    TIME: tl.constexpr, STATIC: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
    POOL: tl.constexpr, REDUCE: tl.constexpr, BATCH: tl.constexpr, LEAK: tl.constexpr,
    GAIN: tl.constexpr, THRESHOLD: tl.constexpr, REST: tl.constexpr,
    SOFT: tl.constexpr, ATTACHED: tl.constexpr, SURROGATE: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Integrate again, go back in time, and either sum over rows or write the gradient of x.

    With y = BatchNorm(x), d = x - mean, n rows: REDUCE writes ``sum dy`` and ``sum dy d`` of each
    program as ``[2, programs, channels]``; otherwise `sum_ptr` holds them merged, and
    ``dx = weight rstd (dy - sum dy / n - d rstd^2 sum dy d / n)``, without the sums if not BATCH.
    ATTACHED: the spike of the reset ``u = m - S fall(m)`` has its surrogate gradient too, so that
    ``du/dm = 1 - S - (m - rest) h'`` (hard) or ``1 - (threshold - rest) h'`` (soft).
    What is added to the currents gets ``dy``. A learnt rate r gets
    ``sum a (I - (u - rest)) = sum a (m - u) / r``, the third of the sums.

    With POOL a row is a 2x2 window, whose gradient is read once for its four neurons. Windows cut
    off by the edge of the image have no gradient, but their neurons get that of the sums. The twin
    is autograd through the layers in plain torch.
    """
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    rate, leak = _rates(rate_ptr, GAIN, LEAK)
    mean, rstd, scale, gain, push = _norm(
        mean_ptr, var_ptr, weight_ptr, bias_ptr, column, channels, eps, rate, leak, REST, NORM
    )
    level, slope = 0.0, 0.0
    if NORM and BATCH and not REDUCE:
        level = load_channel(sum_ptr, column, channels) * scale / count
        slope = load_channel(sum_ptr + channels, column, channels) * scale * rstd * rstd / count
    first = tl.program_id(0)
    sum_dy = tl.zeros((ROWS, WIDTH), tl.float32)
    sum_dyd = tl.zeros((ROWS, WIDTH), tl.float32)
    sum_rate = tl.zeros((ROWS, WIDTH), tl.float32)
    i = 0
    while i < rounds:
        first_row = (first + i * programs) * ROWS
        row, _, offset, inside = index_tile(first_row, total, channels, ROWS, WIDTH)
        winner = tl.zeros((ROWS, WIDTH), winner_ptr.dtype.element_ty)
        image, h, w = row, row, row
        if POOL:
            image, h, w = locate(row, (height + 1) // 2, (width + 1) // 2)
            pooled = ((image * (height // 2) + h) * (width // 2) + w).to(tl.int64)
            source = pooled[:, None] * channels + column[None, :]
            has_grad = (row < rows) & (h < height // 2) & (w < width // 2)
            has_grad = has_grad[:, None] & (column < channels)[None, :]
            winner = tl.load(winner_ptr + source, mask=has_grad, other=0)
            gs = load_steps(grad_ptr, source, has_grad, pooled_total, TIME)
        else:
            gs = load_steps(grad_ptr, offset, inside, total, TIME)
        for k in range(4 if POOL else 1):
            if POOL:
                down, right = h * 2 + k // 2, w * 2 + k % 2
                position = ((image * height + down) * width + right).to(tl.int64)
                offset = position[:, None] * channels + column[None, :]
                inside = (row < rows) & (down < height) & (right < width)
                inside = inside[:, None] & (column < channels)[None, :]
                won = ~((winner ^ -(k % 2)) | ((winner >> HALF) ^ -(k // 2)))
            xs = load_steps(x_ptr, offset, inside, total, 1 if STATIC else TIME)
            if add_ptr is not None:
                adds = load_steps(add_ptr, offset, inside, total, TIME)
            u = tl.full((ROWS, WIDTH), REST, tl.float32)
            ms = ()
            for t in tl.static_range(TIME):
                m = _charge(u, xs[0 if STATIC else t], mean, gain, push, leak, NORM)
                if add_ptr is not None:
                    m += adds[t].to(tl.float32) * rate
                u = _reset(m, THRESHOLD, REST, SOFT)
                ms = ms + (m,)
            carry = tl.zeros((ROWS, WIDTH), tl.float32)
            static_dy = tl.zeros((ROWS, WIDTH), tl.float32)
            for t in tl.static_range(TIME - 1, -1, -1):
                g = gs[t].to(tl.float32)
                if POOL:
                    g = tl.where(((won >> t) & 1) != 0, g, 0.0)
                carry = carry * leak
                bend = _derivative(ms[t], THRESHOLD, SURROGATE)
                if ATTACHED:
                    fall = THRESHOLD - REST if SOFT else ms[t] - REST
                    kept = tl.where(ms[t] >= THRESHOLD, 1.0 if SOFT else 0.0, 1.0)
                    carry = carry * (kept - fall * bend)
                elif not SOFT:
                    carry = tl.where(ms[t] >= THRESHOLD, 0.0, carry)
                carry += g * bend
                if REDUCE and rate_ptr is not None:
                    before = _reset(ms[t - 1], THRESHOLD, REST, SOFT) if t > 0 else REST
                    sum_rate += carry * (ms[t] - before)
                if dadd_ptr is not None:
                    here = dadd_ptr + t * tl.cast(total, tl.int64) + offset
                    tl.store(here, (carry * rate).to(dadd_ptr.dtype.element_ty), mask=inside)
                if STATIC:
                    static_dy += carry
                elif REDUCE:
                    sum_dy += carry
                    sum_dyd += carry * (xs[t].to(tl.float32) - mean)
                else:
                    dx = _through(carry, xs[t], mean, gain, level, slope, NORM and BATCH)
                    here = dx_ptr + t * tl.cast(total, tl.int64) + offset
                    tl.store(here, dx.to(dx_ptr.dtype.element_ty), mask=inside)
            if STATIC:
                if REDUCE:
                    sum_dy += static_dy
                    sum_dyd += static_dy * (xs[0].to(tl.float32) - mean)
                else:
                    dx = _through(static_dy, xs[0], mean, gain, level, slope, NORM and BATCH)
                    tl.store(dx_ptr + offset, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        i += 1
    if REDUCE:
        out = part_ptr + first * channels + column
        known = column < channels
        tl.store(out, tl.sum(sum_dy, 0) * rate, mask=known)
        tl.store(out + programs * channels, tl.sum(sum_dyd, 0) * rate, mask=known)
        if rate_ptr is not None:
            tl.store(out + 2 * programs * channels, tl.sum(sum_rate, 0) / rate, mask=known)
