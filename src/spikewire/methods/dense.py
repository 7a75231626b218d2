"""No pruning: the baseline every other method is measured against, under the same contract."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Masked


@dataclass(kw_only=True)
class Dense(Masked):
    """Every synapse exists, always."""

    name = "dense"

    def init(self, layers: Sequence[Layer]) -> None:
        """Mark every synapse as present."""
        for layer in layers:
            layer.state["mask"] = torch.ones_like(layer.weight, dtype=torch.bool)
