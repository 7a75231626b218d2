"""Gates of a network's own learning rule: Qi et al., IJCAI 2018, https://doi.org/10.24963/ijcai.2018/221."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from spikewire.pruning import (
    Latent,
    Layer,
    Pruner,
    all_present,
    owning_modules,
    setting,
    warn_caller,
)


@dataclass(frozen=True, kw_only=True)
class Gated(Latent):
    """A synapse is present while the gate that the network learns for it is open.

    ``w = v where gate >= open_at, else 0``. The gate is a tensor `gate` beside the weight of a
    layer, moved by the network's own rule, as STDP moves those of ``--model tempotron``. v is what
    the optimizer moves; it waits behind a closed gate until the gate opens again. A layer without
    gates is dense; where no layer has any, `attach` warns. The connectivity is an outcome.
    """

    name = "gated"
    counts = "connectivity is an outcome of the network's gates"

    open_at: float = setting(0.5, "gate from which on a synapse is present", within="(0, 1]")

    def init(self, pruner: Pruner) -> None:
        """Take the weights over, with the gates as they are."""
        for layer in pruner.layers:
            layer.state["latent"] = layer.weight.detach().clone()
            layer.state["mask"] = all_present(layer)
        if not self.read_gates_(pruner, pruner.layers):
            warn_caller("gated: no layer has gates, so nothing is pruned; --model tempotron has")

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Read the gates."""
        self.read_gates_(pruner, pruner.all_layers())

    def read_gates_(self, pruner: Pruner, layers: Sequence[Layer]) -> int:
        """Set the masks from the gates of those layers that have some; return how many have."""
        owners, found = owning_modules(pruner.attached_model), 0
        for layer in layers:
            gate = getattr(owners[id(layer.weight)], "gate", None)
            if isinstance(gate, Tensor) and gate.shape == layer.weight.shape:
                layer.state["mask"].copy_(gate >= self.open_at)
                found += 1
        return found

    def mask(self, layer: Layer) -> Tensor:
        """Return the open gates."""
        return layer.state["mask"]

    def project(self, layer: Layer) -> Tensor:
        """``w = v`` where the gate is open, else 0."""
        return layer.state["latent"] * layer.state["mask"]
