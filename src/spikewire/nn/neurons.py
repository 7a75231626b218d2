"""Spiking neurons over time: functions, their one-step twin for streaming, and modules.

The equations are in `spikewire.nn.membrane`. On a GPU they run as one Triton kernel,
`spikewire.kernels.lif`.
"""

import math

import torch
from torch import Tensor, nn

from spikewire.errors import check
from spikewire.kernels import fusible
from spikewire.nn.membrane import RESETS, Fire, NeuronConstants, fire_, validate
from spikewire.nn.surrogates import SURROGATES

__all__ = [
    "IF",
    "LIF",
    "NEURONS",
    "PLIF",
    "RESETS",
    "Neuron",
    "NeuronConstants",
    "fire_",
    "integrate_and_fire",
    "lif",
    "step",
]


def _fire(current: Tensor, constants: NeuronConstants, rate: Tensor | None = None) -> Tensor:
    check(current.is_floating_point(), "current", current.dtype, "of a floating-point dtype")
    check(current.ndim >= 1 and len(current) >= 1, "current", tuple(current.shape), "[time, ...]")
    if fusible(current, len(current)):
        from spikewire.kernels.lif import fire  # imported here: Triton may not be installed

        return fire(current, rate, **constants.keywords())
    learns = current.requires_grad or (rate is not None and rate.requires_grad)
    keep = torch.is_grad_enabled() and learns
    return Fire.apply(current, rate, constants, keep)  # pyright: ignore


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
        surrogate: "atan", "sigmoid", "triangle" or "rectangle": the gradient of a spike.
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
        surrogate: "atan", "sigmoid", "triangle" or "rectangle": the gradient of a spike.
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
        surrogate: "atan", "sigmoid", "triangle" or "rectangle": the gradient of a spike.
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

    @property
    def rate(self) -> Tensor | None:
        """A learnt ``1 / tau``; None where `tau` is a constant."""
        return None

    def forward(self, current: Tensor) -> Tensor:
        """Return spikes of the shape and dtype of `current`."""
        return _fire(current, self.constants, self.rate)

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


class PLIF(Neuron):
    """Leaky integrate-and-fire neurons that learn their time constant (Fang et al., ICCV 2021).

    One number per layer is learnt: ``1 / tau = sigmoid(w)``.

    Args:
        tau: initial time constant, above 1; the attribute `tau` is the current one.
        threshold: membrane potential at which a neuron fires; above `rest`.
        rest: resting potential.
        surrogate: "atan", "sigmoid", "triangle" or "rectangle": the gradient of a spike.
        reset: "hard" (to `rest`) or "soft" (lowered by ``threshold - rest``).

    Raises:
        SpikewireError: a constant is out of its range.

    Example:
        >>> neurons = PLIF(tau=4.0)
        >>> neurons(torch.rand(8, 16, 100)).shape, neurons.w.item()
        (torch.Size([8, 16, 100]), -1.0986...)
    """

    def __init__(
        self,
        tau: float = 2.0,
        threshold: float = 1.0,
        rest: float = 0.0,
        surrogate: str = "atan",
        reset: str = "hard",
    ) -> None:
        check(tau > 1, "tau", tau, "above 1 for a time constant that is learnt")
        super().__init__(NeuronConstants(tau, threshold, rest, surrogate, reset))
        self.w = nn.Parameter(torch.tensor(-math.log(tau - 1)))

    @property
    def rate(self) -> Tensor:
        """The learnt ``1 / tau``."""
        return self.w.sigmoid()

    @property
    def tau(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The time constant as it is now; reading it waits for the device."""
        return 1 / float(self.w.detach().sigmoid())

    @tau.setter
    def tau(self, value: float) -> None:
        if hasattr(self, "w"):  # not while the base class is set up
            with torch.no_grad():
                self.w.fill_(-math.log(value - 1))

    @property
    def constants(self) -> NeuronConstants:
        """The constants without `tau`, which is not one."""
        return NeuronConstants(None, self.threshold, self.rest, self.surrogate, self.reset)


NEURONS = {"lif": LIF, "if": IF, "plif": PLIF}
