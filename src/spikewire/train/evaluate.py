"""How good a network is, and what of it is there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spikewire.data import Batches
from spikewire.distributed import ALONE, Ranks
from spikewire.nn.losses import LOSSES, correct
from spikewire.runs.rundir import RunDir
from spikewire.train.build import autocast, choose_device, load_data, test_batches
from spikewire.train.trained import trained


@dataclass
class Score:
    """A finished network on the test set; `nonzero` is the share of weights that are not 0."""

    accuracy: float
    loss: float
    connectivity: float
    nonzero: float
    layers: list[dict[str, Any]]


@torch.no_grad()
def evaluate(
    forward: Callable[[Tensor], Tensor],
    batches: Batches,
    loss: Callable[[Tensor, Tensor], Tensor],
    ranks: Ranks = ALONE,
) -> tuple[float, float]:
    """Return accuracy and mean loss of a network in evaluation mode, perhaps compiled."""
    count = len(batches.labels)
    sums = torch.zeros(2, dtype=torch.float64, device=batches.labels.device)
    right, lost = sums
    for images, labels in batches.epoch(0, part=ranks.part):
        output = forward(images)
        right += correct(output, labels)
        lost += loss(output, labels).double() * len(labels)
    ranks.sum_(sums)
    return float(right) / count, float(lost) / count


def connectivity(masks: dict[str, Tensor]) -> float:
    """Return the share of synapses that exist."""
    return sum(int(mask.sum()) for mask in masks.values()) / sum(map(Tensor.numel, masks.values()))


def describe(weights: dict[str, Tensor], masks: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Return one row a layer: synapses that exist by mask, and weights that are not zero."""
    return [
        {
            "name": name,
            "shape": tuple(mask.shape),
            "present": int(mask.sum()),
            "nonzero": int(weights[name].count_nonzero()),
            "total": mask.numel(),
            "connectivity": int(mask.sum()) / mask.numel(),
        }
        for name, mask in masks.items()
    ]


def score(run: str | Path, flags: Mapping[str, str] | None = None) -> Score:
    """Test the network in a run directory on the test set; `flags` go over its config."""
    config = RunDir.open(run).config(flags)
    device = choose_device(config.device)
    data = load_data(config)
    model, masks = trained(run, config, data, device)

    def loss(output: Tensor, labels: Tensor) -> Tensor:
        return LOSSES[config.loss](output, labels, config.rate_scale, 0.0)

    with autocast(config, device):
        accuracy, mean_loss = evaluate(model, test_batches(config, data, device), loss)
    layers = describe(model.state_dict(), masks)
    nonzero = sum(row["nonzero"] for row in layers) / sum(row["total"] for row in layers)
    return Score(accuracy, mean_loss, connectivity(masks), nonzero, layers)
