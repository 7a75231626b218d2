"""UPR, unstructured pruning with synaptic cost: Shi, Ding, Hao, Yu, ICLR 2024, https://openreview.net/forum?id=eoSeaK4QJo."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spikewire.pruning import (
    Counted,
    Latent,
    Layer,
    Pruner,
    all_present,
    cubic,
    highest_absent,
    setting,
)

BETAS = (0.9, 0.999)
DECIDED = 1e4  # of a hardened gate: its sigmoid is exactly 0 or 1, whatever the slope


@dataclass(frozen=True, kw_only=True)
class UPR(Latent, Counted):
    """A sigmoid gate on every synapse, trained against a price on open gates, then hardened.

    ``w = v sigmoid(k g)``; v and g both follow the gradient, and g also pays ``penalty * cost`` for
    an open gate, where cost is how often the weight is used (once in a linear layer, once per
    position in a convolution), scaled to mean 1 unless `per_use`. The slope k grows from
    `first_slope` to `slope`, by the same factor per step. At `harden` of the run gates become 0 or
    1, and v continues to train. With a target all gates of a layer are shifted by the same amount,
    so that the fraction that is open, in the unit of the target, follows a cubic schedule to it;
    the penalty then only ranks, and in a unit other than `connectivity` its cost is that unit's.

    The authors' settings for CIFAR-10 are ``penalty=1e-11, per_use=True, first_gate=0,
    first_slope=5, slope=1000, gate_rate=1, epsilon=1e-8, harden=0.8``; ours are for runs a hundred
    times as short. Their gates on neurons are not implemented; here a neuron goes with its last
    synapse.
    """

    name = "upr"

    penalty: float = setting(1e-6, "price of an open gate, lambda", within="[0, inf)")
    per_use: bool = setting(
        False, "the price is per use of the weight, as published; false: per mean use"
    )
    every: int = setting(4, "steps between shifts of the gates", within="[1, inf)")
    first_gate: float = setting(
        0.1, "gates start at this times |w| over its mean; 0: all equal", within="[0, inf)"
    )
    first_slope: float = setting(1.0, "slope of the gates at the start", within="(0, inf)")
    slope: float = setting(50.0, "slope of the gates when hardened", within="[first_slope, inf)")
    gate_rate: float = setting(
        5.0, "learning rate of gates, relative to that of weights", within="(0, inf)"
    )
    epsilon: float = setting(
        1e-12, "added to the denominator in the gates' Adam", within="(0, inf)"
    )
    harden: float = setting(
        0.6, "fraction of the run at which gates become 0 or 1", within="(0, 1]"
    )

    def init(self, pruner: Pruner) -> None:
        """Open every gate half, and a little more the larger its weight."""
        for layer in pruner.layers:
            weight = layer.weight.detach()
            # gates have at least float32: their moments and `epsilon` underflow in float16
            size = weight.abs().to(torch.promote_types(weight.dtype, torch.float32))
            layer.state["latent"] = weight.clone()
            layer.state["gate"] = size / size.mean().clamp(min=1e-12) * self.first_gate
            layer.state["first"] = torch.zeros_like(size)
            layer.state["second"] = torch.zeros_like(size)
            layer.state["mask"] = all_present(layer)
            layer.state["slope"] = weight.new_full((), self.first_slope, dtype=torch.float64)
        self.start_meter(pruner)
        if pruner.uses is None:
            pruner.count_uses(relative=not self.per_use)

    def before_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Split dL/dw between value and gate.

        ``dL/dv = s dL/dw`` and ``dL/dg = k s (1 - s) (v dL/dw + price)`` with ``s = sigmoid(k g)``.
        """
        if pruner.progress >= self.harden:
            for layer in layers:
                layer.weight.grad.mul_(layer.state["mask"])  # pyright: ignore
            return
        assert pruner.uses is not None
        pruner.uses.update_costs_(pruner.layers)
        mean = self.mean_cost(pruner)
        for layer in layers:
            gradient, k = layer.grad.to(layer.state["gate"].dtype), layer.state["slope"]
            soft = self.openness(layer)
            bend = k * soft * (1 - soft)
            price = self.penalty * (layer.state["cost"] / mean).to(gradient.dtype)
            self.move_gate_(
                layer, bend * (gradient * layer.state["latent"] + price), pruner.step + 1
            )
            layer.weight.grad.mul_(soft)  # pyright: ignore[reportOptionalMemberAccess]

    def mean_cost(self, pruner: Pruner) -> Any:
        """Return what costs are divided by: their mean per weight, 1 where they have that mean."""
        if self.per_use or self.unit in ("", "connectivity"):
            return 1
        sizes = [layer.weight.numel() for layer in pruner.layers]
        means = [layer.state["cost"].double().mean() for layer in pruner.layers]
        return sum(n * mean for n, mean in zip(sizes, means, strict=True)) / sum(sizes)

    def openness(self, layer: Layer) -> Tensor:
        """Return ``sigmoid(k g)``."""
        return torch.sigmoid(layer.state["slope"] * layer.state["gate"])

    def move_gate_(self, layer: Layer, gradient: Tensor, step: int) -> None:
        """Take a step of Adam on the gate, whose moments are in the layer's state."""
        first, second = layer.state["first"], layer.state["second"]
        first.lerp_(gradient, 1 - BETAS[0])
        second.lerp_(gradient.square(), 1 - BETAS[1])
        scale = (second / (1 - BETAS[1] ** step)).sqrt_().add_(self.epsilon)
        rate = layer.lr * self.gate_rate / (1 - BETAS[0] ** step)
        layer.state["gate"].sub_(first / scale * rate)

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Steepen the gates and shift them along the schedule; harden them once."""
        layers = pruner.all_layers()
        growth = (self.slope / self.first_slope) ** min(1.0, pruner.progress / self.harden)
        for layer in layers:
            layer.state["slope"].fill_(self.first_slope * growth)
        if pruner.passes(self.harden):
            self.harden_(layers, self.shift_(pruner, layers))
        elif self.due(pruner):
            self.shift_(pruner, layers)

    def due(self, pruner: Pruner) -> bool:
        """Return whether gates are shifted after this step."""
        soft = pruner.progress < self.harden
        return soft and bool(self.unit) and pruner.step % self.every == 0

    def shift_(self, pruner: Pruner, layers: Sequence[Layer]) -> list[Tensor]:
        """Shift gates until as many are open as the schedule says; return which are open."""
        if not self.unit:
            return [self.open_gates(layer) for layer in layers]
        done = pruner.progress / self.harden
        gates = [layer.state["gate"] for layer in layers]
        masks = self.select(pruner, layers, gates, lambda target: cubic(done, 1.0, target))
        for gate, level in zip(gates, highest_absent(gates, masks), strict=True):
            gate.sub_(level)
        return masks

    def harden_(self, layers: Sequence[Layer], masks: Sequence[Tensor]) -> None:
        """Make gates 0 or 1; they stay so until the end."""
        for layer, mask in zip(layers, masks, strict=True):
            layer.state["mask"].copy_(mask)
            layer.state["gate"].copy_(torch.where(mask, DECIDED, -DECIDED))

    def open_gates(self, layer: Layer) -> Tensor:
        """Return which gates are open; at least one, so that no layer dies."""
        gate = layer.state["gate"]
        return (gate > 0) | (gate == gate.max())

    def mask(self, layer: Layer) -> Tensor:
        """Return the hardened gates; soft ones leave every synapse in place."""
        return layer.state["mask"]

    def project(self, layer: Layer) -> Tensor:
        """``w = v sigmoid(k g)``."""
        return layer.state["latent"] * self.openness(layer)

    def unproject(self, layer: Layer) -> Tensor:
        """``v = w / sigmoid(k g)``."""
        return layer.weight / self.openness(layer)
