"""The LSNN layer in float64 along spikes that are given: rounding cannot make it diverge.

Written from the equations of sheet A of Bellec et al. (NeurIPS 2018); one loop over time.
"""

import math

import torch
from torch import Tensor

BASE_SURROGATE = 0.3


def delayed(x: Tensor, weight: Tensor, delays: Tensor, shift: int = 0) -> Tensor:
    """Return ``y_j[t] = sum over i of W_ji x_i[t - shift - d_ji]``."""
    y = x.new_zeros(*x.shape[:2], len(weight))
    for d in range(int(delays.max()) + 1):
        late = d + shift
        if late < len(x):
            y[late:] += x[: len(x) - late] @ (weight * (delays == d)).T
    return y


def gradient(dy: Tensor, x: Tensor, delays: Tensor, shift: int = 0) -> Tensor:
    """Return ``dW_ji = sum of dy_j[t] x_i[t - shift - d_ji]``."""
    change = dy.new_zeros(delays.shape)
    for d in range(int(delays.max()) + 1):
        late = d + shift
        if late < len(x):
            part = dy[late:].flatten(0, 1).T @ x[: len(x) - late].flatten(0, 1)
            change += part * (delays == d)
    return change


class Forced:
    """State and gradients of the layer along its own spikes.

    Args:
        layer: an `AdaptiveRecurrent`.
        x: its input.
        spikes: what it returned.
    """

    def __init__(self, layer, x: Tensor, spikes: Tensor) -> None:
        constants = layer.dynamics
        self.alpha = math.exp(-1 / constants.tau)
        self.rho = math.exp(-1 / constants.tau_adaptation)
        self.x, self.z = x.detach().double(), spikes.detach().double()
        self.beta = layer.cell.beta.double()
        self.inputs, self.synapses = layer.inputs, layer.synapses
        current = delayed(self.x, layer.inputs.weight.detach().double(), layer.inputs.delays)
        current += delayed(
            self.z, layer.synapses.weight.detach().double(), layer.synapses.delays, 1
        )
        v, b, last = torch.zeros(3, *self.z.shape[1:], dtype=torch.float64, device=x.device)
        voltages, levels, rested = [], [], []
        quiet = torch.full_like(v, constants.refractory)
        for now, z in zip(current, self.z, strict=True):
            b = self.rho * b + (1 - self.rho) * last
            level = constants.threshold + self.beta * b
            voltages.append(v)
            levels.append(level)
            rested.append(quiet >= constants.refractory)
            v = self.alpha * v + (1 - self.alpha) * now - last * level
            quiet = torch.where(z > 0, 0, quiet + 1)
            last = z
        self.v, self.level = torch.stack(voltages), torch.stack(levels)
        self.rested = torch.stack(rested)

    def fires(self) -> Tensor:
        """Return where the equations let a neuron fire."""
        return (self.v > self.level) & self.rested

    def margin(self) -> Tensor:
        """Return the distance to the threshold, relative to it."""
        return (self.v / self.level - 1).abs()

    def gradients(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of ``sum(cost * spikes)`` by input and recurrent weights."""
        z, v, level, cost = self.z, self.v, self.level, cost.double()
        slope = BASE_SURROGATE * (1 - (v / level - 1).abs()).clamp(min=0) * self.rested
        weight, delays = self.synapses.weight.detach().double(), self.synapses.delays
        span = int(delays.max()) + 1
        back = torch.cat([weight * (delays == d) for d in range(span)])
        currents = z.new_zeros(len(z) + span + 1, *z.shape[1:])
        dv, db = torch.zeros_like(z[0]), torch.zeros_like(z[0])  # of v[t], b[t + 1]
        dv_after, level_after = torch.zeros_like(dv), torch.zeros_like(dv)
        for t in reversed(range(len(z))):
            later = torch.cat(list(currents[t + 1 : t + 1 + span]), -1)
            dz = cost[t] + later @ back - level_after * dv_after + (1 - self.rho) * db
            ds = dz * slope[t]
            before = z[t - 1] if t else torch.zeros_like(dv)
            db = self.rho * db - self.beta * (ds * v[t] / level[t] ** 2 + before * dv)
            currents[t] = (1 - self.alpha) * dv
            dv_after, level_after = dv, level[t]
            dv = self.alpha * dv + ds / level[t]
        change = currents[: len(z)]
        inputs = gradient(change, self.x, self.inputs.delays)
        return inputs, gradient(change, z, delays, 1)
