"""One time step of neurons with adaptive thresholds, forward and backward, in one pass each.

The twins in plain torch are `advance_` and `retreat_` in `spikewire.nn.adaptive`, which call these
where `same_layout` holds.
"""

# Triton's tensors carry no types a checker could follow.
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportReturnType=false

import triton
import triton.language as tl
from torch import Tensor

SIZE = 256  # neurons per program


@triton.jit
def _place(total, size, SIZE: tl.constexpr):
    """Return index, sample and neuron of each element, and whether it exists."""
    index = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    return index, index // size, index % size, index < total


@triton.jit
def _is_rested(spike_ptr, inside, size, REFRACTORY: tl.constexpr):
    """Return whether there was no spike in the steps before."""
    recent = tl.load(spike_ptr, mask=inside, other=0.0) * 0
    for k in tl.static_range(REFRACTORY):
        recent += tl.load(spike_ptr - (k + 1) * size, mask=inside, other=0.0)
    return recent == 0


@triton.jit(do_not_specialize=["now"])
def _advance(
    current_ptr, spikes_ptr, v_ptr, b_ptr, old_ptr, level_ptr, beta_ptr, now, steps, size, total,
    alpha, rho, threshold, REFRACTORY: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Fire, adapt and integrate."""
    index, sample, neuron, inside = _place(total, size, SIZE)
    spike_ptr = spikes_ptr + (sample.to(tl.int64) * steps + now) * size + neuron
    before = tl.load(spike_ptr - size, mask=inside, other=0.0)
    b = rho * tl.load(b_ptr + index, mask=inside, other=0.0) + (1 - rho) * before
    level = threshold + tl.load(beta_ptr + neuron, mask=inside, other=0.0) * b
    v = tl.load(v_ptr + index, mask=inside, other=0.0)
    fires = (v / level > 1) & _is_rested(spike_ptr, inside, size, REFRACTORY)
    current = tl.load(current_ptr + index, mask=inside, other=0.0)
    tl.store(spike_ptr, fires.to(tl.float32), mask=inside)
    tl.store(old_ptr + index, v, mask=inside)
    tl.store(level_ptr + index, level, mask=inside)
    tl.store(b_ptr + index, b, mask=inside)
    tl.store(v_ptr + index, alpha * v + (1 - alpha) * current - before * level, mask=inside)


@triton.jit(do_not_specialize=["now", "then"])
def _retreat(
    grad_ptr, spikes_ptr, old_ptr, level_ptr, beta_ptr, dv_ptr, db_ptr, dz_ptr, current_ptr,
    now, then, steps, spans, size, total, alpha, rho, damping,
    REFRACTORY: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Go one time step back."""
    index, sample, neuron, inside = _place(total, size, SIZE)
    spike_ptr = spikes_ptr + (sample.to(tl.int64) * steps + now) * size + neuron
    before = tl.load(spike_ptr - size, mask=inside, other=0.0)
    rested = _is_rested(spike_ptr, inside, size, REFRACTORY)
    v = tl.load(old_ptr + index, mask=inside, other=0.0)
    level = tl.load(level_ptr + index, mask=inside, other=1.0)
    slope = damping * tl.maximum(1 - tl.abs(v / level - 1), 0.0)
    dz = tl.load(grad_ptr + index, mask=inside, other=0.0)
    dz += tl.load(dz_ptr + index, mask=inside, other=0.0)
    ds = tl.where(rested, dz * slope, 0.0)
    dv = tl.load(dv_ptr + index, mask=inside, other=0.0)
    beta = tl.load(beta_ptr + neuron, mask=inside, other=0.0)
    db = rho * tl.load(db_ptr + index, mask=inside, other=0.0)
    db -= beta * (ds * v / (level * level) + before * dv)
    tl.store(db_ptr + index, db, mask=inside)
    tl.store(dz_ptr + index, (1 - rho) * db - level * dv, mask=inside)
    place = (sample.to(tl.int64) * spans + then) * size + neuron
    tl.store(current_ptr + place, (1 - alpha) * dv, mask=inside)
    tl.store(dv_ptr + index, alpha * dv + ds / level, mask=inside)


def advance_(
    current: Tensor, spikes: Tensor, now: int, state: tuple[Tensor, ...], beta: Tensor, constants
) -> None:
    """Advance all neurons by one time step, in place.

    The twin is `spikewire.nn.adaptive.advance_`.

    Args:
        current: ``[batch, neurons]``, float32.
        spikes: ``[batch, time, neurons]``; those of index `now` are written.
        now: the time step, as an index of `spikes`.
        state: voltage, adaptation; then the voltage and threshold of this step, written only.
        beta: strength of adaptation per neuron.
        constants: a `Dynamics`.
    """
    total, size = current.numel(), current.shape[1]
    _advance[(triton.cdiv(total, SIZE),)](
        current, spikes, *state, beta, now, spikes.shape[1], size, total, constants.decay,
        constants.adaptation_decay, constants.threshold, REFRACTORY=constants.refractory, SIZE=SIZE,
    )  # fmt: skip


def retreat_(
    grad: Tensor, spikes: Tensor, now: int, saved: tuple[Tensor, ...], beta: Tensor,
    state: tuple[Tensor, ...], currents: Tensor, then: int, constants, damping: float,
) -> None:  # fmt: skip
    """Go one time step back, in place.

    The twin is `spikewire.nn.adaptive.retreat_`.

    Args:
        grad: the gradient of the spikes from output and recurrent synapses, ``[batch, neurons]``.
        spikes: ``[batch, time, neurons]``.
        now: the time step, as an index of `spikes`.
        saved: voltage before the step, and its threshold.
        beta: strength of adaptation per neuron.
        state: gradients of voltage, adaptation and earlier spikes.
        currents: ``[batch, time, neurons]``, where the gradient of the current is written.
        then: the time step, as an index of `currents`.
        constants: a `Dynamics`.
        damping: the highest value of the surrogate.
    """
    total, size = grad.numel(), grad.shape[1]
    _retreat[(triton.cdiv(total, SIZE),)](
        grad, spikes, *saved, beta, *state, currents, now, then, spikes.shape[1],
        currents.shape[1], size, total, constants.decay, constants.adaptation_decay, damping,
        REFRACTORY=constants.refractory, SIZE=SIZE,
    )  # fmt: skip
