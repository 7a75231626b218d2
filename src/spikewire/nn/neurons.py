"""Spiking neurons over time: one autograd function, its one-step twin, and thin modules.

LIF:  m[t] = u[t-1] + (I[t] - (u[t-1] - rest)) / tau        IF:  m[t] = u[t-1] + I[t]
      S[t] = 1 if m[t] >= threshold else 0
      u[t] = S[t] * rest + (1 - S[t]) * m[t]                      u[0] = rest
      soft reset:  u[t] = m[t] - S[t] * (threshold - rest)

Backward, with the reset detached, h' the surrogate and g[t] = dL/dS[t]:

      a[t] = g[t] * h'(m[t] - threshold) + (1 - S[t]) * (1 - 1 / tau) * a[t+1]
      dL/dI[t] = a[t] / tau                                       IF: both factors of tau are 1
      soft reset: without the factor 1 - S[t]
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spikewire.errors import check, check_word, unknown
from spikewire.kernels import fusible


class Surrogate(NamedTuple):
    """A smooth step and its derivative, which stands in for the derivative of the hard step."""

    primitive: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]


def atan(x: Tensor) -> Tensor:
    """Step ``atan(pi x) / pi + 1/2``."""
    return torch.atan(math.pi * x) / math.pi + 0.5


def atan_derivative(x: Tensor) -> Tensor:
    """Return ``1 / (1 + (pi x)^2)``."""
    return torch.addcmul(x.new_ones(()), x, x, value=math.pi**2).reciprocal_()


SIGMOID_SLOPE = 4.0  # the derivative then peaks at 1, as for the other two


def sigmoid(x: Tensor) -> Tensor:
    """Step ``1 / (1 + exp(-4 x))``."""
    return torch.sigmoid(SIGMOID_SLOPE * x)


def sigmoid_derivative(x: Tensor) -> Tensor:
    """Return ``4 s (1 - s)`` with ``s = sigmoid(4 x)``."""
    s = sigmoid(x)
    return torch.addcmul(s, s, s, value=-1).mul_(SIGMOID_SLOPE)


def triangle(x: Tensor) -> Tensor:
    """Step ``1/2 + x - x |x| / 2`` with x clipped to [-1, 1]."""
    x = x.clamp(-1, 1)
    return 0.5 + x - 0.5 * x * x.abs()


def triangle_derivative(x: Tensor) -> Tensor:
    """Return ``max(0, 1 - |x|)``."""
    return x.abs().neg_().add_(1).clamp_(min=0)


SURROGATES = {
    "atan": Surrogate(atan, atan_derivative),
    "sigmoid": Surrogate(sigmoid, sigmoid_derivative),
    "triangle": Surrogate(triangle, triangle_derivative),
}


RESETS = ("hard", "soft")


def validate(tau: float | None, threshold: float, rest: float, surrogate: str, reset: str) -> None:
    """Refuse what the equations do not allow; `tau` None means no leak."""
    if tau is not None:
        check(1 <= tau < math.inf, "tau", tau, "a finite number of at least 1")
    check(math.isfinite(rest), "rest", rest, "finite")
    check(rest < threshold < math.inf, "threshold", threshold, f"finite and above rest ({rest})")
    if surrogate not in SURROGATES:
        raise unknown("surrogate", surrogate, SURROGATES)
    check_word("reset", reset, RESETS)


class _Fire(torch.autograd.Function):
    """All time steps at once.

    A 0/1 mask is kept in floating point throughout: bool kernels are several times slower on a CPU,
    and ``m - m * S`` is exact. Half-precision currents are integrated in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        current: Tensor,
        tau: float | None,
        threshold: float,
        rest: float,
        surrogate: str,
        reset: str,
        keep: bool,
    ) -> Tensor:
        wide = torch.promote_types(current.dtype, torch.float32)
        spikes = torch.empty_like(current)
        membrane = torch.empty_like(current if keep else current[:1], dtype=wide)
        u = torch.full_like(current[0], rest, dtype=wide)
        for t in range(len(current)):
            m, s = membrane[t if keep else 0], spikes[t]
            if tau is None:
                torch.add(u, current[t], out=m)
            else:
                torch.sub(current[t], u - rest if rest else u, out=m)
                m.div_(tau).add_(u)
            torch.ge(m, threshold, out=s)
            if reset == "soft":
                torch.sub(m, s, alpha=threshold - rest, out=u)
            else:
                torch.addcmul(m, m, s, value=-1, out=u)
                if rest:
                    u.add_(s, alpha=rest)
        if keep:
            ctx.save_for_backward(membrane, spikes)
            ctx.tau, ctx.threshold, ctx.surrogate, ctx.reset = tau, threshold, surrogate, reset
        return spikes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        membrane, spikes = ctx.saved_tensors
        derivative = SURROGATES[ctx.surrogate].derivative
        gain, leak = (1.0, 1.0) if ctx.tau is None else (1 / ctx.tau, 1 - 1 / ctx.tau)
        result = torch.empty_like(spikes)
        carry = torch.zeros_like(membrane[0])
        for t in reversed(range(len(membrane))):
            a = derivative(membrane[t] - ctx.threshold).mul_(grads[0][t])
            a.add_(carry if ctx.reset == "soft" else carry.addcmul_(carry, spikes[t], value=-1))
            torch.mul(a, gain, out=result[t])
            carry = a.mul_(leak)
        return result, None, None, None, None, None, None


def _fire(
    current: Tensor, tau: float | None, threshold: float, rest: float, surrogate: str, reset: str
) -> Tensor:
    validate(tau, threshold, rest, surrogate, reset)
    check(current.is_floating_point(), "current", current.dtype, "of a floating-point dtype")
    check(current.ndim >= 1 and len(current) >= 1, "current", tuple(current.shape), "[time, ...]")
    if fusible(current, len(current)):
        from spikewire.kernels.lif import fire  # needs Triton, which need not be there

        return fire(current, tau, threshold, rest, surrogate, reset)
    keep = torch.is_grad_enabled() and current.requires_grad
    return _Fire.apply(current, tau, threshold, rest, surrogate, reset, keep)  # pyright: ignore


def lif(
    current: Tensor,
    tau: float = 2.0,
    threshold: float = 1.0,
    rest: float = 0.0,
    surrogate: str = "atan",
    reset: str = "hard",
) -> Tensor:
    """Return the spikes of leaky integrate-and-fire neurons for currents ``[time, ...]``."""
    return _fire(current, tau, threshold, rest, surrogate, reset)


def integrate_and_fire(
    current: Tensor,
    threshold: float = 1.0,
    rest: float = 0.0,
    surrogate: str = "atan",
    reset: str = "hard",
) -> Tensor:
    """Return the spikes of neurons without leak for currents ``[time, ...]``."""
    return _fire(current, None, threshold, rest, surrogate, reset)


def step(
    current: Tensor,
    voltage: Tensor | None = None,
    tau: float | None = 2.0,
    threshold: float = 1.0,
    rest: float = 0.0,
    surrogate: str = "atan",
    reset: str = "hard",
) -> tuple[Tensor, Tensor]:
    """Advance one time step, for streaming; return the spike and the next voltage.

    The equations as they stand, differentiable. `voltage` None is rest, `tau` None is no leak.
    """
    validate(tau, threshold, rest, surrogate, reset)
    u = torch.full_like(current, rest) if voltage is None else voltage
    m = u + current if tau is None else u + (current - (u - rest)) / tau
    hard = (m >= threshold).to(m.dtype)
    smooth = SURROGATES[surrogate].primitive(m - threshold)
    after = m - hard * (threshold - rest) if reset == "soft" else hard * rest + (1 - hard) * m
    # The bracket is 0 forward and the surrogate backward.
    return hard + (smooth - smooth.detach()), after


class Neuron(nn.Module):
    """Neurons over ``[time, batch, ...]`` that start at rest on every call."""

    tau: float | None

    def __init__(
        self, tau: float | None, threshold: float, rest: float, surrogate: str, reset: str
    ) -> None:
        super().__init__()
        validate(tau, threshold, rest, surrogate, reset)
        self.tau, self.threshold, self.rest = tau, threshold, rest
        self.surrogate, self.reset = surrogate, reset

    def forward(self, current: Tensor) -> Tensor:
        """Return spikes of the shape and dtype of `current`."""
        return _fire(current, self.tau, self.threshold, self.rest, self.surrogate, self.reset)

    def extra_repr(self) -> str:
        """Name the constants of the equations."""
        tau = "" if self.tau is None else f"tau={self.tau}, "
        reset = "" if self.reset == "hard" else f", reset={self.reset!r}"
        constants = f"threshold={self.threshold}, rest={self.rest}"
        return f"{tau}{constants}, surrogate={self.surrogate!r}{reset}"


class LIF(Neuron):
    """Leaky integrate-and-fire: `lif` as a module."""

    def __init__(
        self,
        tau: float = 2.0,
        threshold: float = 1.0,
        rest: float = 0.0,
        surrogate: str = "atan",
        reset: str = "hard",
    ) -> None:
        super().__init__(tau, threshold, rest, surrogate, reset)


class IF(Neuron):
    """Integrate-and-fire: `integrate_and_fire` as a module."""

    def __init__(
        self,
        threshold: float = 1.0,
        rest: float = 0.0,
        surrogate: str = "atan",
        reset: str = "hard",
    ) -> None:
        super().__init__(None, threshold, rest, surrogate, reset)


NEURONS = {"lif": LIF, "if": IF}
