"""The neuron equations in plain torch, forward and backward over all time steps.

LIF:  m[t] = u[t-1] + (I[t] - (u[t-1] - rest)) / tau        IF:  m[t] = u[t-1] + I[t]
      S[t] = 1 if m[t] >= threshold else 0
      u[t] = S[t] * rest + (1 - S[t]) * m[t]                      u[0] = rest
      soft reset:  u[t] = m[t] - S[t] * (threshold - rest)

Backward, with the reset detached, h' the surrogate and g[t] = dL/dS[t]:

      a[t] = g[t] * h'(m[t] - threshold) + (1 - S[t]) * (1 - 1 / tau) * a[t+1]
      dL/dI[t] = a[t] / tau                                       IF: both factors of tau are 1
      soft reset: without the factor 1 - S[t]

Parametric LIF learns ``r = 1 / tau = sigmoid(w)``::

      dL/dr = sum over t of a[t] (I[t] - (u[t-1] - rest)) = sum over t of a[t] (m[t] - u[t-1]) / r

The modules are in `spikewire.nn.neurons`.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from spikewire.errors import check, check_word
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
    current: Tensor,
    u: Tensor,
    m: Tensor,
    spikes: Tensor,
    constants: NeuronConstants,
    rate: Tensor | None = None,
) -> None:
    """Advance neurons by one time step in place, without gradients.

    Args:
        current: input current of this time step.
        u: membrane potential after the last reset; overwritten with that after this one.
        m: receives the membrane potential before the reset.
        spikes: receives 1 where a neuron fires, else 0.
        constants: the constants of the neurons.
        rate: a learnt ``1 / tau``, one number; `tau` is then not used.
    """
    tau, threshold, rest, _, reset = constants
    if rate is not None:
        torch.sub(current, u - rest if rest else u, out=m)
        m.mul_(rate).add_(u)
    elif tau is None:
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


class Fire(torch.autograd.Function):
    """All time steps at once.

    A 0/1 mask is kept in floating point throughout: bool kernels are several times slower on a CPU,
    and ``m - m * S`` is exact. Half-precision currents are integrated in float32.
    """

    @staticmethod
    def forward(
        ctx: Any, current: Tensor, rate: Tensor | None, constants: NeuronConstants, keep: bool
    ) -> Tensor:
        """Return the spikes; `keep`: save what backward needs."""
        rest = constants.rest
        wide = torch.promote_types(current.dtype, torch.float32)
        spikes = torch.empty_like(current)
        membrane = torch.empty_like(current if keep else current[:1], dtype=wide)
        u = torch.full_like(current[0], rest, dtype=wide)
        for t in range(len(current)):
            fire_(current[t], u, membrane[t if keep else 0], spikes[t], constants, rate)
        if keep:
            ctx.save_for_backward(membrane, spikes, rate)
            ctx.constants = constants
        return spikes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of current and rate."""
        membrane, spikes, rate = ctx.saved_tensors
        tau, threshold, _, surrogate, reset = ctx.constants
        derivative = SURROGATES[surrogate].derivative
        gain, leak = (1.0, 1.0) if tau is None else (1 / tau, 1 - 1 / tau)
        if rate is not None:
            gain, leak = rate, 1 - rate
        result = torch.empty_like(spikes)
        carry = torch.zeros_like(membrane[0])
        drate = None if rate is None else torch.zeros_like(rate)
        for t in reversed(range(len(membrane))):
            a = derivative(membrane[t] - threshold).mul_(grads[0][t])
            a.add_(carry if reset == "soft" else carry.addcmul_(carry, spikes[t], value=-1))
            torch.mul(a, gain, out=result[t])
            if drate is not None:
                drate += (a * (membrane[t] - _voltage(ctx.constants, membrane, spikes, t))).sum()
            carry = a.mul_(leak)
        drate = None if drate is None or rate is None else drate / rate
        return result, drate, None, None


def _voltage(constants: NeuronConstants, m: Tensor, spikes: Tensor, t: int) -> Tensor | float:
    """Return the membrane potential before time step t, after the reset of the step before."""
    rest = constants.rest
    if t == 0:
        return rest
    if constants.reset == "soft":
        return m[t - 1] - spikes[t - 1] * (constants.threshold - rest)
    return torch.where(spikes[t - 1] > 0, rest, m[t - 1])
