"""UPR, unstructured pruning with synaptic cost: Shi, Ding, Chen, Yu, Huang, ICLR 2024, https://openreview.net/forum?id=eoSeaK4QJo."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spikewire.errors import check
from spikewire.pruning.asked import asked
from spikewire.pruning.costs import Uses
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Latent
from spikewire.pruning.selection import levels, wire
from spikewire.schedules import cubic

BETAS = (0.9, 0.999)


@dataclass(kw_only=True)
class Upr(Latent):
    """A sigmoid gate on every synapse, trained against a price on open gates, then hardened.

    ``w = v sigmoid(k g)``; v and g both follow the gradient, and g also pays ``penalty * cost`` for
    an open gate, where cost is how often the weight is used (once in a linear layer, once a
    position in a convolution), scaled to mean 1. The slope k grows from 1 to `slope`. At `harden`
    of the run gates become 0 or 1, and v trains on. With `connectivity` all gates of a layer are
    shifted alike, so that the share that is open follows a cubic path to the asked one; the penalty
    then only ranks. The paper also prunes neurons; here a neuron goes with its last synapse.
    """

    name = "upr"
    _uses = None

    connectivity: float | None = asked(
        None, "asked share of synapses; left out: the penalty decides"
    )
    penalty: float = field(default=1e-6, metadata={"help": "price of an open gate, lambda"})
    every: int = field(default=4, metadata={"help": "steps between shifts of the gates"})
    slope: float = field(default=50.0, metadata={"help": "steepness of the gates when hardened"})
    gate_rate: float = field(
        default=5.0, metadata={"help": "learning rate of gates over that of weights"}
    )
    harden: float = field(
        default=0.6, metadata={"help": "share of the run at which gates are decided"}
    )

    def __post_init__(self) -> None:
        check(0 <= self.penalty < math.inf, "penalty", self.penalty, "a finite number, 0 or more")
        check(self.every >= 1, "every", self.every, "1 or more")
        check(self.slope >= 1, "slope", self.slope, "1 or more")
        check(self.gate_rate > 0, "gate_rate", self.gate_rate, "above 0")
        check(0 < self.harden <= 1, "harden", self.harden, "in (0, 1]")

    def init(self, layers: Sequence[Layer]) -> None:
        """Open every gate a little; the stronger the weight, the more."""
        for layer in layers:
            weight = layer.weight.detach()
            strength = weight.abs()
            layer.state["latent"] = weight.clone()
            layer.state["gate"] = strength / strength.mean().clamp(min=1e-12) * 0.1
            layer.state["first"] = torch.zeros_like(weight)
            layer.state["second"] = torch.zeros_like(weight)
            layer.state["mask"] = torch.ones_like(weight, dtype=torch.bool)
            layer.state["cost"] = weight.new_ones(())
        assert self._model is not None
        self._uses = Uses(self._model, layers)

    @property
    def steepness(self) -> float:
        """``k = slope^(progress / harden)``."""
        return self.slope ** min(1.0, self.progress / self.harden)

    def before_step(self, layers: Sequence[Layer]) -> None:
        """Split dL/dw between value and gate.

        ``dL/dv = s dL/dw`` and ``dL/dg = k s (1 - s) (v dL/dw + price)`` with ``s = sigmoid(k g)``.
        """
        if self.progress >= self.harden:
            for layer in layers:
                layer.weight.grad.mul_(layer.state["mask"])  # pyright: ignore
            return
        assert self._uses is not None
        self._uses.settle(self._layers)
        for layer in layers:
            gradient, k = layer.grad, self.steepness
            soft = torch.sigmoid(k * layer.state["gate"])
            bend = k * soft * (1 - soft)
            price = self.penalty * layer.state["cost"]
            self.move_gate(layer, bend * (gradient * layer.state["latent"] + price))
            layer.weight.grad.mul_(soft)  # pyright: ignore[reportOptionalMemberAccess]

    def move_gate(self, layer: Layer, gradient: Tensor) -> None:
        """Adam on the gate, whose moments live with the layer."""
        first, second, step = layer.state["first"], layer.state["second"], self.step + 1
        first.lerp_(gradient, 1 - BETAS[0])
        second.lerp_(gradient.square(), 1 - BETAS[1])
        scale = (second / (1 - BETAS[1] ** step)).sqrt_().add_(1e-12)
        rate = layer.lr * self.gate_rate / (1 - BETAS[0] ** step)
        layer.state["gate"].sub_(first / scale * rate)

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Shift gates along the path, and decide them once."""
        last = self.crosses(self.harden)
        due = self.asked is not None and self.step % self.every == 0
        if not (last or (due and self.progress < self.harden)):
            return
        layers = self.everyone()
        masks = [self.open(x) for x in layers] if self.asked is None else self.steer(layers)
        if last:
            for layer, mask in zip(layers, masks, strict=True):
                layer.state["mask"].copy_(mask)

    def steer(self, layers: Sequence[Layer]) -> list[Tensor]:
        """Shift gates until as many are open as the path says; return which."""
        done = self.progress / self.harden
        gates = [layer.state["gate"] for layer in layers]
        masks = wire(layers, gates, lambda x: cubic(done, 1.0, self.share(x)))
        for gate, level in zip(gates, levels(gates, masks), strict=True):
            gate.sub_(level)
        return masks

    def open(self, layer: Layer) -> Tensor:
        """Return which gates are open; one at least, so that no layer dies."""
        gate = layer.state["gate"]
        return (gate > 0) | (gate == gate.max())

    def detach(self) -> None:
        """Also stop watching the forward pass."""
        if self._uses is not None:
            self._uses.stop()
        super().detach()

    def mask(self, layer: Layer) -> Tensor:
        """Soft gates leave every synapse in place; hardened ones do not."""
        return layer.state["mask"]

    def project(self, layer: Layer) -> Tensor:
        """``w = v sigmoid(k g)``, or ``v`` where the hardened gate is open."""
        hardened = self.progress >= self.harden
        soft = torch.sigmoid(self.steepness * layer.state["gate"])
        return layer.state["latent"] * (layer.state["mask"] if hardened else soft)
