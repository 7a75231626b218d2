"""The neurons of a recorded network: their constants, their equation, and one time step of it.

    update             m[t]                                  used by
    divide             u + (I - (u - rest)) / tau            spikewire, SpikingJelly
    multiply           u + (I - (u - rest)) * (1 / tau)      parametric LIF, Norse
    divide then add    u - (u - rest) / tau + I              SpikingJelly, decay_input=False
    multiply then add  u - (u - rest) * (1 / tau) + I        parametric LIF, decay_input=False
    decay              beta u + I,  beta = 1 - 1 / tau       snnTorch

Without leak (`tau` None) all of them are ``u + I``. ``S = 1`` if ``m >= threshold``, or only above
it if `strict`. A hard reset sets ``u = rest`` where S, a soft one ``u = m - S (threshold - rest)``;
a delayed soft one lowers ``m[t+1]`` by ``S[t] (threshold - rest)`` instead. The updates are equal
up to rounding and a factor of the current; keeping them apart keeps spikes equal to the bit.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spikewire.errors import check, check_word

UPDATES = ("divide", "multiply", "divide then add", "multiply then add", "decay")
MAX_CONSTANT = 1e38  # also their difference is finite in float32
RESETS = ("hard", "soft", "delayed soft")


class Neuron(NamedTuple):
    """Constants of the neurons of one stage; the equation is in `spikewire.formats.neuron`.

    Args:
        tau: Membrane time constant in time steps, at least 1; None for a neuron without leak (IF).
        threshold: Membrane potential at which the neuron fires; above `rest`.
        rest: Resting potential, and the reset value of a hard reset.
        reset: ``"hard"`` (to `rest`), ``"soft"`` (subtract ``threshold - rest``) or
            ``"delayed soft"`` (the same, one time step later).
        update: How current and leak are added, one of `UPDATES`.
        strict: Whether the neuron fires only above the threshold, not at it.
    """

    tau: float | None
    threshold: float
    rest: float
    reset: str = "hard"
    update: str = "divide"
    strict: bool = False

    @property
    def factor(self) -> float:
        """What the leak multiplies or divides by, as float32 rounds it; 0 without leak."""
        if self.tau is None:
            return 0.0
        by_update = {"divide": self.tau, "divide then add": self.tau, "decay": 1 - 1 / self.tau}
        return float(np.float32(by_update.get(self.update, 1 / self.tau)))

    @property
    def fires_at(self) -> float:
        """The least float32 membrane potential that fires."""
        limit = np.float32(self.threshold)
        return float(np.nextafter(limit, np.float32(np.inf)) if self.strict else limit)

    @property
    def fall(self) -> float:
        """What a spike subtracts in a soft reset, as float32 rounds it."""
        return float(np.float32(self.threshold - self.rest))

    @property
    def gain(self) -> float:
        """Factor of the current compared with ``"divide"``, for formats with one equation."""
        driven = self.update in ("divide", "multiply") or self.tau is None
        return 1.0 if driven or self.tau is None else self.tau


def validate(neuron: Neuron) -> None:
    """Check the constants against the ranges named in `Neuron`.

    Raises:
        SpikewireError: A constant is out of its range, or a name is unknown.
    """
    tau, threshold, rest, reset, update, strict = neuron
    for field, value in (("tau", tau or 1.0), ("threshold", threshold), ("rest", rest)):
        check(abs(value) <= MAX_CONSTANT, field, value, "finite, also in float32")
    if tau is not None:
        check(1 <= tau < math.inf, "tau", tau, "a finite number of at least 1")
    check(math.isfinite(rest), "rest", rest, "finite")
    fits = rest < threshold < math.inf and math.isfinite(neuron.fires_at)
    check(fits, "threshold", threshold, f"finite and above rest ({rest})")
    check_word("reset", reset, RESETS)
    check_word("update", update, UPDATES)
    check(isinstance(strict, bool), "strict", strict, "True or False")
    check(update != "decay" or rest == 0, "rest", rest, "0 with update 'decay'")


def step_(neuron: Neuron, current: Tensor, voltage: Tensor) -> tuple[Tensor, Tensor]:
    """Advance neurons by one time step.

    Args:
        neuron: The constants.
        current: Current of this time step, of any shape.
        voltage: Membrane potential, updated in place.

    Returns:
        The spikes as floats, and the membrane potential ``m`` before the reset.
    """
    u, factor = voltage, neuron.factor
    if neuron.tau is None:
        m = u + current
    elif neuron.update == "divide":
        m = u + (current - (u - neuron.rest)) / factor
    elif neuron.update == "multiply":
        m = u + (current - (u - neuron.rest)) * factor
    elif neuron.update == "divide then add":
        m = u - (u - neuron.rest) / factor + current
    elif neuron.update == "multiply then add":
        m = u - (u - neuron.rest) * factor + current
    else:
        m = factor * u + current
    if neuron.reset == "delayed soft":
        m = torch.where(u >= neuron.fires_at, m - neuron.fall, m)
    fires = m >= neuron.fires_at
    if neuron.reset == "hard":
        voltage.copy_(torch.where(fires, torch.full_like(m, neuron.rest), m))
    else:
        voltage.copy_(torch.where(fires, m - neuron.fall, m) if neuron.reset == "soft" else m)
    return fires.to(current.dtype), m


def has_exact_inverse(tau: float) -> bool:
    """Return whether multiplying by 1 / tau equals dividing by tau, as for a power of two."""
    return bool(np.frexp(np.float32(tau))[0] == 0.5)
