"""The neurons of a recorded network: their constants, their equation, and one time step of it.

    update             m[t]                                  used by
    divide             u + (I - (u - rest)) / tau            spikewire, SpikingJelly
    multiply           u + (I - (u - rest)) * (1 / tau)      parametric LIF, Norse
    divide then add    u - (u - rest) / tau + I              SpikingJelly, decay_input=False
    multiply then add  u - (u - rest) * (1 / tau) + I        parametric LIF, decay_input=False
    decay              beta u + I,  beta = 1 - 1 / tau       snnTorch, SpikingJelly's CUBALIFNode

Without leak (`tau` None) all of them are ``u + I``. ``S = 1`` if ``m >= threshold``, or only above
it if `strict`. A hard reset sets ``u = rest`` where S, a soft one ``u = m - S (threshold - rest)``;
a delayed soft one lowers ``m[t+1]`` by ``S[t] (threshold - rest)`` instead, and a delayed hard one
sets ``m[t+1] = rest`` where S[t]. The updates are equal up to rounding and a factor of the current;
keeping them apart keeps spikes equal to the bit.

With a `current_decay` d above 0, what the synapses deliver, X, is summed to a synaptic current
that decays, and I is that current:

    I[t] = (I[t-1] - (1 - d) I[t-1]) + X[t]    Norse
    I[t] = d I[t-1] + X[t]                     snnTorch, SpikingJelly: update "decay"

Again the two differ only in rounding. I = 0 before the first time step; a spike does not reset it.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spikewire.errors import check, check_word

UPDATES = ("divide", "multiply", "divide then add", "multiply then add", "decay")
MAX_CONSTANT = 1e38  # also their difference is finite in float32
RESETS = ("hard", "soft", "delayed soft", "delayed hard")


class Neuron(NamedTuple):
    """Constants of the neurons of one stage; the equation is in `spikewire.formats.neuron`.

    Args:
        tau: Membrane time constant in time steps, at least 1; None for a neuron without leak (IF).
        threshold: Membrane potential at which the neuron fires; above `rest`.
        rest: Resting potential, and the reset value of a hard reset.
        reset: ``"hard"`` (to `rest`), ``"soft"`` (subtract ``threshold - rest``),
            ``"delayed soft"`` or ``"delayed hard"`` (the same, one time step later).
        update: How current and leak are added, one of `UPDATES`.
        strict: Whether the neuron fires only above the threshold, not at it.
        current_decay: Fraction of the synaptic current that is kept per time step, in [0, 1); 0 for
            neurons that only receive the current of the present time step.
    """

    tau: float | None
    threshold: float
    rest: float
    reset: str = "hard"
    update: str = "divide"
    strict: bool = False
    current_decay: float = 0.0

    @property
    def synapse(self) -> "Neuron | None":
        """The synaptic current, as the membrane of a neuron that never fires; None without one."""
        if not self.current_decay:
            return None
        update = self.update if self.update == "decay" else "multiply then add"
        return Neuron(1 / (1 - self.current_decay), math.inf, 0.0, update=update)

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
    tau, threshold, rest, reset, update, strict, kept = neuron
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
    fits = 0 <= kept < 1 and np.float32(kept) < 1
    check(bool(fits), "current_decay", kept, "at least 0 and below 1, also in float32")


def charge(neuron: Neuron, current: Tensor, voltage: Tensor) -> Tensor:
    """Return ``m`` of the current of a time step, by the update of the neuron."""
    u, factor = voltage, neuron.factor
    if neuron.tau is None:
        return u + current
    if neuron.update == "divide":
        return u + (current - (u - neuron.rest)) / factor
    if neuron.update == "multiply":
        return u + (current - (u - neuron.rest)) * factor
    if neuron.update == "divide then add":
        return u - (u - neuron.rest) / factor + current
    if neuron.update == "multiply then add":
        return u - (u - neuron.rest) * factor + current
    return factor * u + current


def step_(
    neuron: Neuron, current: Tensor, voltage: Tensor, synaptic: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Advance neurons by one time step.

    Args:
        neuron: The constants.
        current: What the synapses deliver in this time step, of any shape.
        voltage: Membrane potential, updated in place.
        synaptic: Synaptic current of neurons with a `current_decay`, updated in place.

    Returns:
        The spikes as floats, and the membrane potential ``m`` before the reset.
    """
    if (synapse := neuron.synapse) is not None:
        assert synaptic is not None
        current = synaptic.copy_(charge(synapse, current, synaptic))
    m = charge(neuron, current, voltage)
    if neuron.reset.startswith("delayed"):
        late = (
            m - neuron.fall if neuron.reset == "delayed soft" else torch.full_like(m, neuron.rest)
        )
        m = torch.where(voltage >= neuron.fires_at, late, m)
    fires = m >= neuron.fires_at
    if neuron.reset == "hard":
        voltage.copy_(torch.where(fires, torch.full_like(m, neuron.rest), m))
    else:
        voltage.copy_(torch.where(fires, m - neuron.fall, m) if neuron.reset == "soft" else m)
    return fires.to(current.dtype), m


def has_exact_inverse(tau: float) -> bool:
    """Return whether multiplying by 1 / tau equals dividing by tau, as for a power of two."""
    return bool(np.frexp(np.float32(tau))[0] == 0.5)
