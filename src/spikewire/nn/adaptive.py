"""Recurrent layers with adaptive thresholds: the LSNN of Bellec et al. (NeurIPS 2018).

With α and ρ the decay per time step of voltage and adaptation, β the strength of adaptation (0 for
the neurons without), a the base threshold, and z[-1] = v[-1] = b[-1] = 0::

      b[t] = ρ b[t-1] + (1 - ρ) z[t-1]            A[t] = a + β b[t]
      s[t] = v[t-1] / A[t] - 1                    z[t] = 1 where s[t] > 0, not within `refractory`
                                                         steps after a spike
      v[t] = α v[t-1] + (1 - α) I[t] - z[t-1] A[t]
      I[t] = sum of the delayed input x[t - d] and the delayed own spikes z[t - 1 - d]

Backward through time, nothing detached, with h[t] = 0.3 max(0, 1 - |s[t]|), 0 while refractory, g
the gradient of the output, and Wᵀ the recurrent synapses with their delays reversed::

      dz[t]   = g[t] + Wᵀ dI[t+1...] - A[t+1] dv[t+1] + (1 - ρ) db[t+1]       ds[t] = dz[t] h[t]
      db[t]   = ρ db[t+1] - β (ds[t] v[t-1] / A[t]² + z[t-1] dv[t])
      dv[t-1] = α dv[t] + ds[t] / A[t]                                        dI[t] = (1 - α) dv[t]
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spikewire.errors import check
from spikewire.kernels import event_driven
from spikewire.nn.balance import balance_
from spikewire.nn.delays import DelayedLinear
from spikewire.nn.recurrent import is_hooked
from spikewire.nn.surrogates import triangle_derivative

DAMPING = 0.3  # the highest value of the surrogate


class Dynamics(NamedTuple):
    """Constants of the equations; time constants are in time steps."""

    tau: float = 20.0
    tau_adaptation: float = 700.0
    threshold: float = 0.01
    adaptation: float = 1.8
    refractory: int = 5

    @property
    def decay(self) -> float:
        """α."""
        return math.exp(-1 / self.tau)

    @property
    def adaptation_decay(self) -> float:
        """ρ."""
        return math.exp(-1 / self.tau_adaptation)


class _Spike(torch.autograd.Function):
    """A step at 0 where the neuron has rested, with the surrogate as its derivative."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, rested: Tensor) -> Tensor:
        ctx.save_for_backward(s, rested)
        return ((s > 0) & rested).to(s.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        s, rested = ctx.saved_tensors
        return grads[0] * triangle_derivative(s).mul_(DAMPING) * rested, None


class AdaptiveCell(nn.Module):
    """The neurons of an `AdaptiveRecurrent`, advanced by one time step per call.

    Args:
        neurons: number of neurons.
        adaptive: how many of them, the last ones, adapt.
        dynamics: constants of the equations.
    """

    beta: Tensor

    def __init__(self, neurons: int, adaptive: int, dynamics: Dynamics) -> None:
        super().__init__()
        check(0 <= adaptive <= neurons, "adaptive", adaptive, f"between 0 and {neurons}")
        self.dynamics = dynamics
        beta = torch.zeros(neurons)
        beta[neurons - adaptive :] = dynamics.adaptation
        self.register_buffer("beta", beta, persistent=False)

    def forward(self, current: Tensor, state: list[Tensor] | None = None) -> Any:
        """Return spikes and the next state (voltage, adaptation, spikes, steps since the last)."""
        alpha, rho = self.dynamics.decay, self.dynamics.adaptation_decay
        if state is None:
            zero = torch.zeros_like(current)
            state = [zero, zero, zero, zero + self.dynamics.refractory]
        v, b, z, quiet = state
        b = rho * b + (1 - rho) * z
        level = self.dynamics.threshold + self.beta * b
        spikes: Any = _Spike.apply(v / level - 1, quiet >= self.dynamics.refractory)
        v = alpha * v + (1 - alpha) * current - z * level
        return spikes, [v, b, spikes, (quiet + 1) * (1 - spikes.detach())]

    def extra_repr(self) -> str:
        """Show the constants."""
        return ", ".join(f"{key}={value}" for key, value in self.dynamics._asdict().items())


class AdaptiveRecurrent(nn.Module):
    """A layer of neurons with and without adaptive thresholds, and synapses among each other.

    Input and recurrent synapses, `inputs` and `synapses`, are linear layers with delays: every
    method prunes them, and they are counted like all other synapses. Weights start normal with a
    standard deviation of ``1 / sqrt(inputs)``. With `inhibitory` all synapses of a source have one
    sign at first (Dale), see `balance_`: the first neurons and random inputs inhibit. Methods that
    keep signs (Grad R, Deep R) keep these.

    Args:
        inputs: number of inputs.
        neurons: number of neurons.
        adaptive: how many of them, the last ones, have adaptive thresholds.
        span: number of different delays; 1: none.
        inhibitory: fraction of inputs and of neurons that inhibit, rounded down; None: signs are
            random.
        dynamics: constants of the equations; None: those of the paper.

    Raises:
        SpikewireError: an argument is out of its range.

    Example:
        >>> AdaptiveRecurrent(80, 220, adaptive=100)(torch.zeros(840, 16, 80)).shape
        torch.Size([840, 16, 220])
    """

    def __init__(
        self,
        inputs: int,
        neurons: int,
        *,
        adaptive: int = 0,
        span: int = 10,
        inhibitory: float | None = None,
        dynamics: Dynamics | None = None,
    ) -> None:
        super().__init__()
        self.inputs = DelayedLinear(inputs, neurons, span)
        self.synapses = DelayedLinear(neurons, neurons, span, self_connections=False)
        self.cell = AdaptiveCell(neurons, adaptive, dynamics or Dynamics())
        for layer in (self.inputs, self.synapses):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        self.synapses.weight.data.fill_diagonal_(0.0)
        if inhibitory is not None:
            first = torch.arange(int(inhibitory * neurons))
            balance_(self.inputs.weight, torch.randperm(inputs)[: int(inhibitory * inputs)])
            balance_(self.synapses.weight, first, self_connections=False)

    @property
    def dynamics(self) -> Dynamics:
        """The constants of the equations."""
        return self.cell.dynamics

    def forward(self, x: Tensor) -> Tensor:
        """Return spikes ``[time, batch, neurons]`` for inputs ``[time, batch, inputs]``."""
        size = self.inputs.in_features
        shape = tuple(x.shape)
        check(len(shape) == 3 and shape[2] == size, "input", shape, f"[time, batch, {size}]")
        current = self.inputs(x)
        if is_hooked(self.synapses, self.cell):
            return self.stepwise(current)
        return self.at_once(current)

    def at_once(self, current: Tensor) -> Tensor:
        """Return the spikes for the currents of all time steps, ``[time, batch, neurons]``."""
        synapses, beta = self.synapses, self.cell.beta
        if event_driven(current, synapses.weight, synapses.span):
            places = synapses.weight, synapses.delays, synapses.span
            return _FireFused.apply(current, *places, beta, self.dynamics)  # pyright: ignore
        parts = torch.stack(synapses.parts())
        return _FireAdaptive.apply(current, parts, beta, self.dynamics)  # pyright: ignore

    def stepwise(self, current: Tensor) -> Tensor:
        """Return the same spikes by calling `synapses` and `cell` at every time step."""
        spikes, state = self.cell(current[0])
        found = [spikes]
        for now in current[1:]:
            spikes, state = self.cell(now + self.synapses(spikes, found[-2::-1]), state)
            found.append(spikes)
        return torch.stack(found)


class _FireAdaptive(torch.autograd.Function):
    """All time steps at once. Spikes and dI are kept ``[batch, time, neurons]``.

    The inputs of all delays of a time step are then one row, without a copy, and one matrix product
    applies all recurrent synapses.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, parts: Tensor, beta: Tensor, dynamics: Dynamics) -> Tensor:
        time, batch, size = x.shape
        span = len(parts)
        wide = torch.promote_types(x.dtype, torch.float32)
        pad = max(span, dynamics.refractory, 1)
        spikes = x.new_zeros(batch, pad + time, size, dtype=wide)
        past = parts.to(wide).flip(0).transpose(1, 2).reshape(span * size, size)
        voltages, levels = x.new_empty(2, time, batch, size, dtype=wide)
        v, b = x.new_zeros(2, batch, size, dtype=wide)
        beta = beta.to(wide)
        with torch.autocast(x.device.type, enabled=False):
            for t in range(time):
                inputs = spikes[:, pad + t - span : pad + t].flatten(1)
                current = torch.addmm(x[t].to(wide), inputs, past)
                state = v, b, voltages[t], levels[t]
                advance_(current, spikes, pad + t, state, beta, dynamics)
        ctx.save_for_backward(spikes, voltages, levels, parts, beta)
        ctx.dynamics = dynamics
        return spikes[:, pad:].transpose(0, 1).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        spikes, voltages, levels, parts, beta = ctx.saved_tensors
        time, batch, size = voltages.shape
        span, pad = len(parts), spikes.shape[1] - len(voltages)
        future = parts.to(spikes.dtype).reshape(span * size, size)
        output = grads[0].to(spikes.dtype)
        currents = spikes.new_zeros(batch, time + span, size)
        state = tuple(spikes.new_zeros(3, batch, size))
        with torch.autocast(spikes.device.type, enabled=False):
            for t in reversed(range(time)):
                later = currents[:, t + 1 : t + 1 + span].flatten(1)
                grad = torch.addmm(output[t], later, future)
                saved = voltages[t], levels[t]
                retreat_(grad, spikes, pad + t, saved, beta, state, currents, t, ctx.dynamics)
            change = _weight_gradients(currents[:, :time], spikes, span, pad)
        dx = currents[:, :time].transpose(0, 1).to(grads[0].dtype)
        return dx, change.to(parts.dtype), None, None


class _FireFused(torch.autograd.Function):
    """All time steps in one kernel each, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, delays: Tensor, span: int, beta: Tensor,
        dynamics: Dynamics,
    ) -> Tensor:  # fmt: skip
        from spikewire.kernels import adaptive  # imports Triton, which is optional

        spikes, saved = adaptive.fire(x, weight, delays, span, beta, dynamics)
        ctx.save_for_backward(spikes, weight, delays, beta, *saved)
        ctx.span, ctx.dynamics = span, dynamics
        return spikes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from spikewire.kernels import adaptive, adaptive_reverse
        from spikewire.kernels import delays as kernel

        spikes, weight, delays, beta, *saved = ctx.saved_tensors
        places = weight, delays, ctx.span, beta, ctx.dynamics, DAMPING
        dx = adaptive_reverse.reverse(grads[0], adaptive.Saved(*saved), *places)
        change = None
        if ctx.needs_input_grad[1]:
            change = kernel.weight_gradient(spikes, dx, delays, shift=1).to(weight.dtype)
        return dx.to(spikes.dtype), change, None, None, None, None


State = tuple[Tensor, ...]


def advance_(
    current: Tensor, spikes: Tensor, now: int, state: State, beta: Tensor, dynamics: Dynamics
) -> None:
    """Advance all neurons by one time step, in place.

    Args:
        current: ``[batch, neurons]``.
        spikes: ``[batch, time, neurons]``; those of index `now` are written.
        now: the time step, as an index of `spikes`.
        state: voltage, adaptation; then the voltage and threshold of this step, written only.
        beta: strength of adaptation per neuron.
        dynamics: constants of the equations.
    """
    alpha, rho = dynamics.decay, dynamics.adaptation_decay
    v, b, old, level = state
    before = spikes[:, now - 1]
    b.mul_(rho).add_(before, alpha=1 - rho)
    torch.add(dynamics.threshold, beta * b, out=level)
    old.copy_(v)
    spikes[:, now] = (v / level > 1) & _rested(spikes, now, dynamics.refractory)
    v.mul_(alpha).add_(current, alpha=1 - alpha).sub_(before * level)


def retreat_(
    grad: Tensor, spikes: Tensor, now: int, saved: State, beta: Tensor,
    state: State, currents: Tensor, then: int, dynamics: Dynamics,
) -> None:  # fmt: skip
    """Go one time step back, in place.

    Args:
        grad: the gradient of the spikes from output and recurrent synapses, ``[batch, neurons]``.
        spikes: ``[batch, time, neurons]``.
        now: the time step, as an index of `spikes`.
        saved: voltage before the step, and its threshold.
        beta: strength of adaptation per neuron.
        state: gradients of voltage, adaptation and earlier spikes.
        currents: ``[batch, time, neurons]``, where the gradient of the current is written.
        then: the time step, as an index of `currents`.
        dynamics: constants of the equations.
    """
    alpha, rho = dynamics.decay, dynamics.adaptation_decay
    (v, level), (dv, db, dz), before = saved, state, spikes[:, now - 1]
    slope = triangle_derivative(v / level - 1).mul_(DAMPING)
    ds = (grad + dz) * slope * _rested(spikes, now, dynamics.refractory)
    db.mul_(rho).sub_(beta * (ds * v / level.square() + before * dv))
    torch.sub((1 - rho) * db, level * dv, out=dz)
    currents[:, then] = (1 - alpha) * dv
    dv.mul_(alpha).add_(ds / level)


def _rested(spikes: Tensor, now: int, refractory: int) -> Tensor | bool:
    """Return where no spike is in the steps before."""
    return spikes[:, now - refractory : now].amax(1) == 0 if refractory else True


def _weight_gradients(currents: Tensor, spikes: Tensor, span: int, pad: int) -> Tensor:
    """Return ``sum over t of dI[t] z[t - 1 - d]ᵀ`` for every delay d."""
    time = currents.shape[1]
    flat = currents.flatten(0, 1).T
    shifted = (spikes[:, pad - 1 - d : pad - 1 - d + time].flatten(0, 1) for d in range(span))
    return torch.stack([flat @ past for past in shifted])
