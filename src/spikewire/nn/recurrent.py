"""Recurrent layers: neurons that also receive their own spikes of the time step before.

      I[t] = x[t] + W S[t-1],  S[-1] = 0, then the neuron equations of `spikewire.nn.neurons`.

Backward through time, with the reset detached, h' the surrogate and g[t] = dL/dS[t] of the output:

      a[t] = (g[t] + Wᵀ dL/dI[t+1]) h'(m[t] - threshold) + (1 - S[t]) (1 - 1 / tau) a[t+1]
      dL/dx[t] = dL/dI[t] = a[t] / tau         dL/dW = sum over t of dL/dI[t] S[t-1]ᵀ
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from spikewire.errors import check
from spikewire.nn.membrane import NeuronConstants, fire_
from spikewire.nn.neurons import PLIF, Neuron, step
from spikewire.nn.surrogates import SURROGATES

MAX_LOOP = 128  # time steps of a leaky integrator that are run one by one


class Cell(nn.Module):
    """Neurons that are advanced by one time step per call: `step` as a module.

    Args:
        constants: the constants of the neuron equations.

    Example:
        >>> spikes, voltage = Cell(LIF().constants)(torch.rand(16, 40))
    """

    def __init__(self, constants: NeuronConstants) -> None:
        super().__init__()
        self.constants = constants

    def forward(self, current: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return spikes and the next state, for the current of one time step."""
        return step(current, state, **self.constants.keywords())

    def extra_repr(self) -> str:
        """Show the constants."""
        return ", ".join(f"{key}={value!r}" for key, value in self.constants.keywords().items())


class Recurrent(nn.Module):
    """A layer of neurons with synapses among each other, over ``[time, batch, neurons]``.

    The recurrent weights are those of a linear layer, `synapses`: every method prunes them, and
    they are counted like all other synapses. All time steps run in one loop over matrix products;
    where `synapses` or `cell` has a hook, as when operations are counted, both are called at every
    time step instead, with the same results.

    Args:
        neurons: how many neurons the layer has.
        neuron: neurons whose constants to use; None: `LIF` with its defaults.

    Raises:
        SpikewireError: the neurons learn their time constant.

    Example:
        >>> Recurrent(40, LIF(tau=8.0))(torch.rand(256, 16, 40)).shape  # time, batch, neurons
        torch.Size([256, 16, 40])
    """

    def __init__(self, neurons: int, neuron: Neuron | None = None) -> None:
        super().__init__()
        fixed = not isinstance(neuron, PLIF)
        check(fixed, "neuron", type(neuron).__name__, "one with a fixed tau in a recurrent layer")
        self.synapses = nn.Linear(neurons, neurons, bias=False)
        self.cell = Cell(neuron.constants if neuron else NeuronConstants())

    @property
    def constants(self) -> NeuronConstants:
        """The constants of the neurons."""
        return self.cell.constants

    def forward(self, current: Tensor) -> Tensor:
        """Return spikes of the shape and dtype of `current`; every call starts at rest."""
        size = self.synapses.in_features
        shape = tuple(current.shape)
        check(len(shape) == 3 and shape[2] == size, "current", shape, f"[time, batch, {size}]")
        if is_hooked(self.synapses, self.cell):
            return self.stepwise(current)
        return _FireRecurrent.apply(current, self.synapses.weight, self.constants)  # pyright: ignore

    def stepwise(self, current: Tensor) -> Tensor:
        """Return the same spikes by calling `synapses` and `cell` at every time step."""
        spikes, state = self.cell(current[0])
        found = [spikes]
        for now in current[1:]:
            spikes, state = self.cell(now + self.synapses(spikes), state)
            found.append(spikes)
        return torch.stack(found)


class _FireRecurrent(torch.autograd.Function):
    """All time steps at once; half-precision currents are integrated in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, constants: NeuronConstants) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        current, weight = x.to(wide), weight.to(wide)
        membrane, spikes = torch.empty_like(current), torch.empty_like(current)
        u, total = torch.full_like(current[0], constants.rest), current[0]
        with torch.autocast(x.device.type, enabled=False):
            for t in range(len(current)):
                if t:
                    total = torch.addmm(current[t], spikes[t - 1], weight.T)
                fire_(total, u, membrane[t], spikes[t], constants)
        ctx.save_for_backward(membrane, spikes, weight)
        ctx.constants = constants
        return spikes.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        membrane, spikes, weight = ctx.saved_tensors
        tau, threshold, _, surrogate, reset = ctx.constants
        gain, leak = (1.0, 1.0) if tau is None else (1 / tau, 1 - 1 / tau)
        slopes = SURROGATES[surrogate].derivative(membrane - threshold)
        decay = torch.full_like(spikes[0], leak) if reset == "soft" else (1 - spikes).mul_(leak)
        output = grads[0].to(weight.dtype)
        result = torch.empty_like(spikes)
        a = torch.zeros_like(spikes[0])
        with torch.autocast(spikes.device.type, enabled=False):
            for t in reversed(range(len(spikes))):
                later = t + 1 < len(spikes)
                total = torch.addmm(output[t], result[t + 1], weight) if later else output[t]
                a.mul_(decay if reset == "soft" else decay[t]).addcmul_(total, slopes[t])
                torch.mul(a, gain, out=result[t])
            change = result[1:].flatten(0, 1).T @ spikes[:-1].flatten(0, 1)
        return result.to(grads[0].dtype), change, None


class LeakyIntegrator(nn.Module):
    """A readout of neurons that never fire: ``y[t] = y[t-1] + (I[t] - y[t-1]) / tau``, y[-1] = 0.

    Args:
        tau: time constant in time steps, at least 1; 1 returns the current itself.

    Raises:
        SpikewireError: `tau` is out of its range.

    Example:
        >>> LeakyIntegrator(2.0)(torch.tensor([1.0, 1.0, 0.0]))
        tensor([0.5000, 0.7500, 0.3750])
    """

    def __init__(self, tau: float = 2.0) -> None:
        super().__init__()
        check(1 <= tau < float("inf"), "tau", tau, "a finite number of at least 1")
        self.tau = tau

    def forward(self, current: Tensor) -> Tensor:
        """Return the voltages ``[time, ...]``; every call starts at 0."""
        if len(current) > MAX_LOOP:
            return self.at_once(current)
        voltage, found = torch.zeros_like(current[0]), []
        for now in current:
            voltage = torch.lerp(voltage, now, 1 / self.tau)
            found.append(voltage)
        return torch.stack(found)

    def at_once(self, current: Tensor) -> Tensor:
        """Return the same voltages by one matrix product, which is faster for long sequences.

        ``y[t] = sum over s <= t of (1 - 1 / tau)^(t - s) I[s] / tau``
        """
        return (self.window(current) @ current.flatten(1)).view_as(current)

    def window(self, current: Tensor, last: int | None = None) -> Tensor:
        """Return what each time step adds to the voltage of each of the last steps: a matrix."""
        steps = torch.arange(len(current), device=current.device)
        age = steps[-last if last else 0 :, None] - steps
        decay = (1 - 1 / self.tau) ** age.clamp(min=0).to(current.dtype) / self.tau
        return decay.where(age >= 0, 0.0)

    def extra_repr(self) -> str:
        """Show the time constant."""
        return f"tau={self.tau}"


class LastSteps(nn.Module):
    """The last time steps of an output over time: those it is read from.

    Args:
        fraction: how much of the time is kept, in (0, 1]; at least one step.

    Example:
        >>> LastSteps(0.25)(torch.zeros(8, 2, 10)).shape
        torch.Size([2, 2, 10])
    """

    def __init__(self, fraction: float) -> None:
        super().__init__()
        check(0 < fraction <= 1, "fraction", fraction, "in (0, 1]")
        self.fraction = fraction

    def forward(self, x: Tensor) -> Tensor:
        """Return the last part of ``[time, ...]``."""
        return x[-self.count(len(x)) :]

    def count(self, steps: int) -> int:
        """Return how many of `steps` time steps are kept."""
        return max(1, round(self.fraction * steps))

    def extra_repr(self) -> str:
        """Show the fraction."""
        return f"fraction={self.fraction:g}"


def read_last(linear: nn.Linear, leaky: LeakyIntegrator, last: LastSteps, x: Tensor) -> Tensor:
    """Return ``last(leaky(linear(x)))``, where only the time steps that are read are computed.

    Filter and synapses commute, so the filter, over few steps, comes first::

        y[t] = W (D x)[t] + b (D 1)[t]

    Args:
        linear: synapses.
        leaky: the filter over time.
        last: the steps that are read.
        x: ``[time, batch, inputs]``.
    """
    window = leaky.window(x, last.count(len(x)))
    y = (window @ x.flatten(1)).unflatten(1, x.shape[1:])
    y = functional.linear(y, linear.weight)
    return y if linear.bias is None else y + window.sum(1)[:, None, None] * linear.bias


def is_hooked(*modules: nn.Module) -> bool:
    """Return whether one of the modules has a hook that must see its calls."""
    return any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in modules
    )
