"""Spiking neurons over time: functions, their one-step twin for streaming, and modules.

LIF:  m[t] = u[t-1] + (I[t] - (u[t-1] - rest)) / tau        IF:  m[t] = u[t-1] + I[t]
      S[t] = 1 if m[t] >= threshold else 0
      u[t] = S[t] * rest + (1 - S[t]) * m[t]                      u[0] = rest
      soft reset:  u[t] = m[t] - S[t] * (threshold - rest)

Backward, with the reset detached, h' the surrogate and g[t] = dL/dS[t]:

      a[t] = g[t] * h'(m[t] - threshold) + (1 - S[t]) * (1 - 1 / tau) * a[t+1]
      dL/dI[t] = a[t] / tau                                       IF: both factors of tau are 1
      soft reset: without the factor 1 - S[t]

On a GPU the same equations run as one Triton kernel, `spikewire.kernels.lif`.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from spikewire.errors import check, check_word
from spikewire.kernels import fusible
from spikewire.nn.surrogates import SURROGATES

RESETS = ("hard", "soft")


class NeuronConstants(NamedTuple):
    """The constants of the neuron equations.

    Args:
        tau: membrane time constant in time steps, at least 1; None: no leak (IF).
        threshold: membrane potential at which the neuron fires; above `rest`.
        rest: resting potential, where every neuron starts.
        surrogate: name of the surrogate gradient, one of `SURROGATES`.
        reset: "hard" (to `rest`) or "soft" (lowered by ``threshold - rest``).
    """

    tau: float | None = 2.0
    threshold: float = 1.0
    rest: float = 0.0
    surrogate: str = "atan"
    reset: str = "hard"

    def keywords(self) -> dict[str, Any]:
        """Return the constants by name; `_asdict` would break the graph of torch.compile in 2.6."""
        return {
            "tau": self.tau,
            "threshold": self.threshold,
            "rest": self.rest,
            "surrogate": self.surrogate,
            "reset": self.reset,
        }


def validate(constants: NeuronConstants) -> None:
    """Check the constants against the ranges named in `NeuronConstants`.

    Raises:
        SpikewireError: a constant is out of its range, or a name is unknown.
    """
    tau, threshold, rest, surrogate, reset = constants
    if tau is not None:
        check(1 <= tau < math.inf, "tau", tau, "a finite number of at least 1")
    check(math.isfinite(rest), "rest", rest, "finite")
    check(rest < threshold < math.inf, "threshold", threshold, f"finite and above rest ({rest})")
    check_word("surrogate", surrogate, SURROGATES)
    check_word("reset", reset, RESETS)


def fire_(
    current: Tensor, u: Tensor, m: Tensor, spikes: Tensor, constants: NeuronConstants
) -> None:
    """Advance neurons by one time step in place, without gradients.

    Args:
        current: input current of this time step.
        u: membrane potential after the last reset; overwritten with that after this one.
        m: receives the membrane potential before the reset.
        spikes: receives 1 where a neuron fires, else 0.
        constants: the constants of the neurons.
    """
    tau, threshold, rest, _, reset = constants
    if tau is None:
        torch.add(u, current, out=m)
    else:
        torch.sub(current, u - rest if rest else u, out=m)
        m.div_(tau).add_(u)
    torch.ge(m, threshold, out=spikes)
    if reset == "soft":
        torch.sub(m, spikes, alpha=threshold - rest, out=u)
    else:
        torch.addcmul(m, m, spikes, value=-1, out=u)
        if rest:
            u.add_(spikes, alpha=rest)


class _Fire(torch.autograd.Function):
    """All time steps at once.

    A 0/1 mask is kept in floating point throughout: bool kernels are several times slower on a CPU,
    and ``m - m * S`` is exact. Half-precision currents are integrated in float32.
    """

    @staticmethod
    def forward(ctx: Any, current: Tensor, constants: NeuronConstants, keep: bool) -> Tensor:
        rest = constants.rest
        wide = torch.promote_types(current.dtype, torch.float32)
        spikes = torch.empty_like(current)
        membrane = torch.empty_like(current if keep else current[:1], dtype=wide)
        u = torch.full_like(current[0], rest, dtype=wide)
        for t in range(len(current)):
            fire_(current[t], u, membrane[t if keep else 0], spikes[t], constants)
        if keep:
            ctx.save_for_backward(membrane, spikes)
            ctx.constants = constants
        return spikes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        membrane, spikes = ctx.saved_tensors
        tau, threshold, _, surrogate, reset = ctx.constants
        derivative = SURROGATES[surrogate].derivative
        gain, leak = (1.0, 1.0) if tau is None else (1 / tau, 1 - 1 / tau)
        result = torch.empty_like(spikes)
        carry = torch.zeros_like(membrane[0])
        for t in reversed(range(len(membrane))):
            a = derivative(membrane[t] - threshold).mul_(grads[0][t])
            a.add_(carry if reset == "soft" else carry.addcmul_(carry, spikes[t], value=-1))
            torch.mul(a, gain, out=result[t])
            carry = a.mul_(leak)
        return result, None, None


def _fire(current: Tensor, constants: NeuronConstants) -> Tensor:
    check(current.is_floating_point(), "current", current.dtype, "of a floating-point dtype")
    check(current.ndim >= 1 and len(current) >= 1, "current", tuple(current.shape), "[time, ...]")
    if fusible(current, len(current)):
        from spikewire.kernels.lif import fire  # imported here: Triton may not be installed

        return fire(current, **constants.keywords())
    keep = torch.is_grad_enabled() and current.requires_grad
    return _Fire.apply(current, constants, keep)  # pyright: ignore


def lif(
    current: Tensor,
    tau: float = 2.0,
    threshold: float = 1.0,
    rest: float = 0.0,
    surrogate: str = "atan",
    reset: str = "hard",
) -> Tensor:
    """Return the spikes of leaky integrate-and-fire neurons, which start at rest.

    Args:
        current: input currents ``[time, ...]`` of any floating-point dtype.
        tau: membrane time constant in time steps, at least 1.
        threshold: membrane potential at which a neuron fires; above `rest`.
        rest: resting potential.
        surrogate: "atan", "sigmoid" or "triangle": the gradient of a spike.
        reset: "hard" (to `rest`) or "soft" (lowered by ``threshold - rest``).

    Returns:
        Spikes, 0 or 1, of the shape and dtype of `current`.

    Raises:
        SpikewireError: a constant is out of its range, or `current` has no time steps.

    Example:
        >>> lif(torch.tensor([1.0, 1.0, 2.0, 0.0, 3.0]))
        tensor([0., 0., 1., 0., 1.])
    """
    constants = NeuronConstants(tau, threshold, rest, surrogate, reset)
    validate(constants)
    return _fire(current, constants)


def integrate_and_fire(
    current: Tensor,
    threshold: float = 1.0,
    rest: float = 0.0,
    surrogate: str = "atan",
    reset: str = "hard",
) -> Tensor:
    """Return the spikes of integrate-and-fire neurons: `lif` without leak.

    Args:
        current: input currents ``[time, ...]`` of any floating-point dtype.
        threshold: membrane potential at which a neuron fires; above `rest`.
        rest: resting potential.
        surrogate: "atan", "sigmoid" or "triangle": the gradient of a spike.
        reset: "hard" (to `rest`) or "soft" (lowered by ``threshold - rest``).

    Returns:
        Spikes, 0 or 1, of the shape and dtype of `current`.

    Raises:
        SpikewireError: a constant is out of its range, or `current` has no time steps.

    Example:
        >>> integrate_and_fire(torch.tensor([0.5, 0.5, 0.5]))
        tensor([0., 1., 0.])
    """
    constants = NeuronConstants(None, threshold, rest, surrogate, reset)
    validate(constants)
    return _fire(current, constants)


def step(
    current: Tensor,
    voltage: Tensor | None = None,
    *,
    tau: float | None = 2.0,
    threshold: float = 1.0,
    rest: float = 0.0,
    surrogate: str = "atan",
    reset: str = "hard",
) -> tuple[Tensor, Tensor]:
    """Advance the neurons by one time step, for streaming; differentiable.

    Args:
        current: input current of this time step, of any shape.
        voltage: membrane potential returned by the previous call; None: `rest`.
        tau: membrane time constant in time steps, at least 1; None: no leak.
        threshold: membrane potential at which a neuron fires; above `rest`.
        rest: resting potential.
        surrogate: "atan", "sigmoid" or "triangle": the gradient of a spike.
        reset: "hard" (to `rest`) or "soft" (lowered by ``threshold - rest``).

    Returns:
        The spikes, and the membrane potential after the reset.

    Raises:
        SpikewireError: a constant is out of its range.

    Example:
        >>> spike, voltage = step(torch.tensor([1.0]))
        >>> spike, voltage = step(torch.tensor([2.0]), voltage)
    """
    validate(NeuronConstants(tau, threshold, rest, surrogate, reset))
    u = torch.full_like(current, rest) if voltage is None else voltage
    m = u + current if tau is None else u + (current - (u - rest)) / tau
    hard = (m >= threshold).to(m.dtype)
    smooth = SURROGATES[surrogate].primitive(m - threshold)
    after = m - hard * (threshold - rest) if reset == "soft" else hard * rest + (1 - hard) * m
    # The bracket is 0 in forward and the surrogate's derivative in backward.
    return hard + (smooth - smooth.detach()), after


class Neuron(nn.Module):
    """Base class of our neurons, over ``[time, batch, ...]``; every call starts at rest.

    The constants are plain attributes (`tau`, `threshold`, `rest`, `surrogate`, `reset`) that may
    be changed between calls.
    """

    tau: float | None

    def __init__(self, constants: NeuronConstants) -> None:
        super().__init__()
        validate(constants)
        self.tau, self.threshold, self.rest, self.surrogate, self.reset = constants

    @property
    def constants(self) -> NeuronConstants:
        """The constants as they are now."""
        return NeuronConstants(self.tau, self.threshold, self.rest, self.surrogate, self.reset)

    def forward(self, current: Tensor) -> Tensor:
        """Return spikes of the shape and dtype of `current`."""
        return _fire(current, self.constants)

    def extra_repr(self) -> str:
        """Show the constants."""
        tau = "" if self.tau is None else f"tau={self.tau}, "
        reset = "" if self.reset == "hard" else f", reset={self.reset!r}"
        constants = f"threshold={self.threshold}, rest={self.rest}"
        return f"{tau}{constants}, surrogate={self.surrogate!r}{reset}"


class LIF(Neuron):
    """Leaky integrate-and-fire neurons: `lif` as a module, with the same arguments.

    Example:
        >>> LIF(tau=4.0)(torch.rand(8, 16, 100)).shape  # time, batch, neurons
        torch.Size([8, 16, 100])
    """

    def __init__(
        self,
        tau: float = 2.0,
        threshold: float = 1.0,
        rest: float = 0.0,
        surrogate: str = "atan",
        reset: str = "hard",
    ) -> None:
        super().__init__(NeuronConstants(tau, threshold, rest, surrogate, reset))


class IF(Neuron):
    """Integrate-and-fire neurons: `integrate_and_fire` as a module, with the same arguments.

    Example:
        >>> IF(threshold=2.0)(torch.rand(8, 16, 100)).shape  # time, batch, neurons
        torch.Size([8, 16, 100])
    """

    def __init__(
        self,
        threshold: float = 1.0,
        rest: float = 0.0,
        surrogate: str = "atan",
        reset: str = "hard",
    ) -> None:
        super().__init__(NeuronConstants(None, threshold, rest, surrogate, reset))


NEURONS = {"lif": LIF, "if": IF}
