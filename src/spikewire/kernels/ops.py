"""The Triton programs as torch operators: autograd, shapes for `torch.compile`, launch sizes.

Images are ``[time * batch, channels, height, width]`` in channels-last memory, for inputs and
outputs: the compiler uses the same layout around convolutions, so it adds no copies. A static
current has no time: ``[batch, ...]``. No operator waits for the device.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from spikewire.kernels import batchnorm as _batchnorm
from spikewire.kernels import programs as _programs

TILE = 1024  # neurons per program: eight per thread, which is one 16-byte read of bf16
BACKWARD_TILE = 512  # half, since the membrane of all time steps stays in registers
UNROLL = 4  # tiles that a program of `moments` reads at once
WIDEST = 256
MOMENT_PROGRAMS = 1056  # eight on each of an H200's 132 multiprocessors
SUM_PROGRAMS = 2112

batchnorm: Any = _batchnorm  # Triton types a launch by the signature inside the kernel
programs: Any = _programs


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _rows(x: Tensor) -> Tensor:
    """Return images as ``[..., height, width, channels]``, contiguous; no copy if channels-last."""
    return x.permute(0, 2, 3, 1).contiguous() if x.ndim == 4 else x.contiguous()


def _images(rows: Tensor) -> Tensor:
    """Return contiguous ``[..., height, width, channels]`` as channels-last images."""
    return rows.permute(0, 3, 1, 2) if rows.ndim == 4 else rows


def _tile(channels: int, size: int, time_steps: int = 1) -> dict[str, int]:
    """Return rows and channels of a program; beyond 16 time steps fewer, for the registers."""
    width = min(1 << (channels - 1).bit_length(), WIDEST)
    size = size if time_steps <= 16 else size // 2
    return {"ROWS": max(1, size // width), "WIDTH": width}


def _constants(tau: float | None, threshold: float, rest: float, reset: str) -> dict[str, Any]:
    gain, leak = (1.0, 1.0) if tau is None else (1.0 / tau, 1.0 - 1.0 / tau)
    constants = {"GAIN": gain, "LEAK": leak, "THRESHOLD": threshold, "REST": rest}
    return constants | {"SOFT": reset.startswith("soft")}


@torch.library.custom_op("spikewire::statistics", mutates_args=("running_mean", "running_var"))
def statistics(
    x: Tensor, running_mean: Tensor, running_var: Tensor, *, momentum: float
) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance per channel of the images, in float32.

    The twin is the training path of `torch.nn.BatchNorm2d`.

    Args:
        x: images.
        running_mean: updated in place towards the mean.
        running_var: updated in place towards the unbiased variance.
        momentum: weight of the new values in the running ones.

    Returns:
        Mean and variance, ``[channels]`` each.
    """
    x = _rows(x)
    channels, total = x.shape[-1], x.numel()
    tile = _tile(channels, TILE)
    tiles = _ceil(total // channels, tile["ROWS"])
    count = min(tiles, MOMENT_PROGRAMS)
    parts = x.new_empty(2, count, channels, dtype=torch.float32)
    mean, variance = (x.new_empty(channels, dtype=torch.float32) for _ in range(2))
    grid = (count, _ceil(channels, tile["WIDTH"]))
    sizes = total, channels, count
    batchnorm.moments[grid](x, parts, *sizes, _ceil(tiles, count), UNROLL=UNROLL, **tile)
    batchnorm.merge[(_ceil(channels, 8),)](
        parts,
        mean,
        variance,
        running_mean,
        running_var,
        *sizes,
        tile["ROWS"],
        momentum,
        ROUNDS=_ceil(count, 128),
        ROWS=128,
        WIDTH=8,
    )
    return mean, variance


@statistics.register_fake
def _(x: Tensor, *running: Any, **constants: Any) -> tuple[Tensor, Tensor]:
    return tuple(x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(2))  # pyright: ignore


@torch.library.custom_op("spikewire::fire", mutates_args=())
def fire(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    residual: Tensor | None,
    rate: Tensor | None,
    *,
    eps: float,
    batch_statistics: bool,
    time_steps: int,
    static: bool,
    pool: bool,
    tau: float | None,
    threshold: float,
    rest: float,
    surrogate: str,
    reset: str,
) -> tuple[Tensor, Tensor]:
    """Return the spikes of BatchNorm, neurons and a 2x2 max-pool in a row.

    ``residual + neurons(BatchNorm(x) + add)``, or ``pool(neurons(BatchNorm(x)))``. The twin is
    these layers run one after another, the neurons by `spikewire.nn.neurons.lif`.

    Args:
        x: images; with `mean` None, currents of any shape ``[time, ...]``.
        mean: per channel; None: the currents go to the neurons without BatchNorm.
        variance: per channel, biased.
        weight: of BatchNorm, per channel.
        bias: of BatchNorm, per channel.
        add: added to the currents of the neurons, of the shape of x; not with `static` or `pool`.
        residual: added to the spikes, of the shape of x; not with `static` or `pool`.
        rate: a learnt ``1 / tau``, one number; `tau` is then not used.
        eps: of BatchNorm.
        batch_statistics: whether `mean` and `variance` are functions of x in backward.
        time_steps: at most 32.
        static: whether x has no time and is fed at every time step.
        pool: whether to apply the max-pool.
        tau: membrane time constant; None: no leak.
        threshold: membrane potential at which a neuron fires.
        rest: resting potential.
        surrogate: name of the surrogate gradient, used in backward only.
        reset: "hard" or "soft", whose gradient is detached; with " attached" behind it is not.

    Returns:
        The spikes, and which neuron of each pooling window won; empty without `pool`.
    """
    spikes, winners = _empty(x, time_steps, static, pool)
    x, add, residual = _rows(x), _rows_or_none(add), _rows_or_none(residual)
    total = x.numel() if static else x.numel() // time_steps
    flags = {"TIME": time_steps, "STATIC": static, **_constants(tau, threshold, rest, reset)}
    norm = mean, variance, weight, bias
    if pool:
        channels, pooled_total = x.shape[-1], winners.numel()
        tile = _tile(channels, TILE, time_steps)
        flags["HALF"] = _half(time_steps)
        rows = pooled_total // channels
        grid = (_ceil(rows, tile["ROWS"]), _ceil(channels, tile["WIDTH"]))
        sizes = total, pooled_total, channels, x.shape[1], x.shape[2], eps
        if rows:
            programs.fire_and_pool[grid](x, *norm, rate, spikes, winners, *sizes, **flags, **tile)
        return spikes, winners
    channels = _channels(x, mean)
    tile = _tile(channels, TILE, time_steps)
    rows = _ceil(total, channels)
    grid = (_ceil(rows, tile["ROWS"]), _ceil(channels, tile["WIDTH"]))
    flags["NORM"] = mean is not None
    inputs = x, *norm, add, residual, rate
    programs.fire[grid](*inputs, spikes, total, channels, eps, **flags, **tile)
    return spikes, winners


def _channels(x: Tensor, mean: Tensor | None) -> int:
    """Return the width of a row; without BatchNorm any width is correct."""
    return WIDEST if mean is None else x.shape[-1]


def _rows_or_none(x: Tensor | None) -> Tensor | None:
    return None if x is None else _rows(x)


def _half(time_steps: int) -> int:
    """Return how many bits of a winner hold columns; as many more hold rows."""
    return 16 if time_steps <= 16 else 32


def _empty(x: Tensor, time_steps: int, static: bool, pool: bool) -> tuple[Tensor, Tensor]:
    images, *shape = x.shape
    batch = images if static else images // time_steps
    if pool:
        shape = [shape[0], shape[1] // 2, shape[2] // 2]
    kind = torch.int32 if time_steps <= 16 else torch.int64
    winners = x.new_empty(batch * prod(shape) if pool else 0, dtype=kind)
    shape = time_steps * batch, *shape
    memory = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    spikes = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory)
    return spikes, winners  # no view: autograd lets no view of an operator be modified in place


@fire.register_fake
def _(
    x: Tensor, *norm: Tensor | None, time_steps: int, static: bool, pool: bool, **constants: Any
) -> tuple[Tensor, Tensor]:
    return _empty(x, time_steps, static, pool)


@torch.library.custom_op("spikewire::fire_backward", mutates_args=())
def fire_backward(
    grad: Tensor,
    winners: Tensor,
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    rate: Tensor | None,
    *,
    eps: float,
    batch_statistics: bool,
    time_steps: int,
    static: bool,
    pool: bool,
    tau: float | None,
    threshold: float,
    rest: float,
    surrogate: str,
    reset: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x and of `add`, and ``sum dy``, ``sum dy (x - mean)`` per channel.

    The twin is autograd through the layers that are the twin of `fire`. `grad` is the gradient of
    the spikes, `winners` comes from `fire`, and all other arguments are those of `fire`. The sums
    are ``[2, channels]`` in float32, empty without BatchNorm; with a learnt rate they have a third
    row, whose sum is its gradient. The gradient of `add` is empty without it.
    """
    grad, x, add = _rows(grad), _rows(x), _rows_or_none(add)
    dx = torch.empty_like(x)
    dadd = None if add is None else torch.empty_like(add)
    total = x.numel() if static else x.numel() // time_steps
    norm, channels = mean is not None, _channels(x, mean)
    tile = _tile(channels, BACKWARD_TILE, time_steps)
    height, width = x.shape[1:3] if pool else (1, 1)
    rows = _ceil(total, channels)
    if pool:
        rows = rows // (height * width) * _ceil(height, 2) * _ceil(width, 2)
    tiles, blocks = _ceil(rows, tile["ROWS"]), _ceil(channels, tile["WIDTH"])
    kinds = 2 if rate is None else 3
    sums = x.new_empty(kinds, channels if kinds == 3 or norm else 0, dtype=torch.float32)
    inputs = grad, winners, x, mean, variance, weight, bias, add, rate
    sizes = total, winners.numel(), rows, channels, height, width
    count = x.numel() // channels
    flags = {"TIME": time_steps, "STATIC": static, "NORM": norm, "POOL": pool}
    flags |= {"HALF": _half(time_steps), "BATCH": batch_statistics, "SURROGATE": surrogate, **tile}
    flags |= {"ATTACHED": reset.endswith("attached"), **_constants(tau, threshold, rest, reset)}
    if sums.numel():
        some = min(tiles, SUM_PROGRAMS)
        parts = x.new_empty(kinds, some, channels, dtype=torch.float32)
        programs.fire_backward[(some, blocks)](
            *inputs,
            sums,
            parts,
            dx,
            None,
            *sizes,
            some,
            _ceil(tiles, some),
            count,
            eps,
            REDUCE=True,
            **flags,
        )
        sums = parts.sum(1)
    programs.fire_backward[(tiles, blocks)](
        *inputs, sums, sums, dx, dadd, *sizes, tiles, 1, count, eps, REDUCE=False, **flags
    )
    return _images(dx), sums, x.new_empty(0) if dadd is None else _images(dadd)


@fire_backward.register_fake
def _(
    grad: Tensor,
    winners: Tensor,
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    add: Tensor | None,
    rate: Tensor | None,
    **constants: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    kinds = 2 if rate is None else 3
    channels = _channels(_rows(x), mean) if kinds == 3 or mean is not None else 0
    sums = x.new_empty(kinds, channels, dtype=torch.float32)
    dadd = x.new_empty(0) if add is None else _images(torch.empty_like(_rows(add)))
    return _images(torch.empty_like(_rows(x))), sums, dadd


def _save(
    ctx: Any,
    inputs: tuple[Tensor | None, ...],
    keyword_only_inputs: dict[str, Any],
    output: tuple[Tensor, Tensor],
) -> None:
    *norm, add, residual, rate = inputs
    ctx.save_for_backward(output[1], *norm, add, rate)
    ctx.constants, ctx.has_residual = keyword_only_inputs, residual is not None
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 8
    winners, *inputs = ctx.saved_tensors
    _, _, variance, weight, bias, add, rate = inputs
    dx, sums, dadd = fire_backward(grad, winners, *inputs, **ctx.constants)
    dweight = dbias = None
    if weight is not None:
        dweight = (sums[1] * torch.rsqrt(variance + ctx.constants["eps"])).to(weight.dtype)
        dbias = sums[0].to(bias.dtype)
    drate = None if rate is None else sums[2].sum().to(rate.dtype).view_as(rate)
    dresidual = grad if ctx.has_residual else None
    return dx, None, None, dweight, dbias, None if add is None else dadd, dresidual, drate


fire.register_autograd(_backward, setup_context=_save)
