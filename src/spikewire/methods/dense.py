"""No pruning: the baseline every other method is measured against, under the same contract."""

from dataclasses import dataclass

from spikewire.pruning import Masked, Pruner, all_present


@dataclass(frozen=True, kw_only=True)
class Dense(Masked):
    """Every synapse exists, always."""

    name = "dense"
    counts = "it prunes nothing"

    def init(self, pruner: Pruner) -> None:
        """Mark every synapse as present."""
        for layer in pruner.layers:
            layer.state["mask"] = all_present(layer)
