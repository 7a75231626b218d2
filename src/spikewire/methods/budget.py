"""Budget: Grad R's idea under an exact synapse budget; our own. Ablations: docs/budget.md, https://arxiv.org/abs/2105.04916."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spikewire.errors import check, check_word
from spikewire.pruning.asked import asked
from spikewire.pruning.costs import Uses
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Latent
from spikewire.pruning.selection import SCOPES, levels, require_finite, wire
from spikewire.schedules import cubic

COSTS = ("weights", "synapses", "synops")


@dataclass(kw_only=True)
class Budget(Latent):
    """Every synapse has a latent weight that feels the gradient; the strongest are the network.

    ``w = u where |u| is among the count(progress) strongest of all layers, else 0``, and u moves
    with dL/dw whether its synapse is present or not: an absent one returns, with either sign, as
    soon as it outgrows a present one. The count follows ``c + (b - c)(1 - x)^3``, b being `first`
    and x from 0 to 1 at `ramp`, exactly, and is `connectivity` from there on.

    Layers of n weights are compared by ``|u| / n^balance``: by size alone a small output layer, all
    of whose inputs matter, loses its places to a large hidden one. Where synapses have a `cost`,
    their strength is divided by ``cost^price`` too: the same count of weights goes where it costs
    less.

    Absent latents crowd just below the cut, so present ones must crowd just above it to stay, and
    their weights hardly differ. `shrink` takes a share of the level of the cut from all of them:
    ``w = u - clip(u, -shrink level, shrink level)``, level being the strongest absent ``|u|`` of
    the layer; 0 is the hard threshold, 1 the soft one.
    """

    name = "budget"

    connectivity: float = asked(0.05)
    first: float = field(
        default=1.0, metadata={"help": "share of synapses at first; less for a sparse start"}
    )
    ramp: float = field(
        default=0.5, metadata={"help": "share of the run by which the budget is reached"}
    )
    every: int = field(default=8, metadata={"help": "steps between rewirings"})
    fixed: float = field(
        default=1.0, metadata={"help": "share of the run after which the wiring is fixed"}
    )
    floor: float = field(
        default=0.1, metadata={"help": "least part of its even share a layer keeps"}
    )
    balance: float = field(
        default=0.25, metadata={"help": "favour of small layers over large ones"}
    )
    shrink: float = field(
        default=0.0,
        metadata={"help": "share of the cut's level taken from present weights: 0 hard, 1 soft"},
    )
    scope: str = field(default="global", metadata={"help": "who competes: global or layer"})
    cost: str = field(
        default="weights",
        metadata={
            "help": "what a synapse costs: weights (all alike), synapses (the uses of its weight) "
            "or synops (its uses by inputs that fire)"
        },
    )
    price: float = field(default=0.1, metadata={"help": "exponent of the cost"})

    def __post_init__(self) -> None:
        check(0 < self.first <= 1, "first", self.first, "in (0, 1]")
        check(0 < self.ramp <= 1, "ramp", self.ramp, "in (0, 1]")
        check(self.ramp <= self.fixed <= 1, "fixed", self.fixed, "in [ramp, 1]")
        check(self.every >= 1, "every", self.every, "1 or more")
        check(0 <= self.floor <= 1, "floor", self.floor, "in [0, 1]")
        check(0 <= self.balance <= 1, "balance", self.balance, "in [0, 1]")
        check(0 <= self.shrink <= 1, "shrink", self.shrink, "in [0, 1]")
        check_word("scope", self.scope, SCOPES)
        check_word("cost", self.cost, COSTS)
        check(0 <= self.price <= 1, "price", self.price, "in [0, 1]")
        self._uses: Uses | None = None

    def init(self, layers: Sequence[Layer]) -> None:
        """Begin dense, or with the strongest."""
        for layer in layers:
            layer.state["latent"] = layer.weight.detach().clone()
            layer.state["mask"] = torch.ones_like(layer.weight, dtype=torch.bool)
            if self.shrink:
                layer.state["level"] = layer.weight.new_zeros(())
        if self.cost != "weights":
            assert self._model is not None
            for layer in layers:
                layer.state["cost"] = layer.weight.new_ones(())
            due = (lambda: self._due(self.step + 1)) if self.cost == "synops" else None
            self._uses = Uses(self._model, layers, due)
        if self.first < 1:
            self.rewire(layers)

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Let all latents compete for the places there are now."""
        if self._due(self.step) or self.crosses(self.ramp):
            self.rewire(self.everyone())

    def _due(self, step: int) -> bool:
        return step % self.every == 0 and self.progress <= self.fixed

    def rewire(self, layers: Sequence[Layer]) -> None:
        """Give the places to the strongest."""
        if self._uses is not None:
            self._uses.settle(layers)
        strengths = [self.strength(layer) for layer in layers]
        masks = wire(layers, strengths, self.places, self.scope, self.floor)
        for layer, mask in zip(layers, masks, strict=True):
            layer.state["mask"].copy_(mask)
            if self.shrink:
                (level,) = levels([layer.state["latent"].abs()], [mask])
                layer.state["level"].copy_(level)

    def places(self, layer: Layer) -> float:
        """Return the share of a layer's synapses there is room for now."""
        share = self.share(layer)
        return cubic(self.progress / self.ramp, max(self.first, share), share)

    def strength(self, layer: Layer) -> Tensor:
        """Return ``|u| / n^balance``, n the size of the layer, over ``cost^price``."""
        size = layer.state["latent"].abs()
        size = size.to(torch.promote_types(size.dtype, torch.float32))  # halves would underflow
        strength = size.div_(layer.weight.numel() ** self.balance)
        return (
            strength.div_(layer.state["cost"] ** self.price) if "cost" in layer.state else strength
        )

    def end(self, layers: Sequence[Layer]) -> None:
        """Refuse to hand over what is not finite: no latent would be among the strongest."""
        require_finite([layer.state["latent"] for layer in layers])

    @property
    def sees_images(self) -> str:
        """SynOps are counted in the images of this process."""
        return "cost" if self.cost == "synops" else ""

    def detach(self) -> None:
        """Also stop watching the forward pass."""
        if self._uses is not None:
            self._uses.stop()
        super().detach()

    def mask(self, layer: Layer) -> Tensor:
        """Return the chosen ones, even one whose latent happens to be 0."""
        return layer.state["mask"]

    def project(self, layer: Layer) -> Tensor:
        """``w = (u - clip(u, -shrink level, shrink level)) mask``."""
        weight = torch.empty_like(layer.weight)
        self._project(layer, weight)
        return weight

    def project_(self, layer: Layer) -> None:
        """Write straight into the weight."""
        self._project(layer, layer.weight)

    def _project(self, layer: Layer, out: Tensor) -> None:
        latent = layer.state["latent"]
        if self.shrink:
            taken: Any = self.shrink * layer.state["level"]
            taken = taken if taken.is_cuda else taken.item()  # a CPU clips by numbers much faster
            latent = torch.sub(latent, torch.clamp(latent, -taken, taken, out=out), out=out)
        # a CPU reads bytes several times as fast as bools
        torch.mul(latent, layer.state["mask"].view(torch.uint8), out=out)
