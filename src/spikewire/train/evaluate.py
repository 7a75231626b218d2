"""Evaluation: accuracy and loss of a network, in training or of a finished run."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spikewire.data import Batches
from spikewire.distributed import ALONE, Ranks
from spikewire.errors import SpikewireError
from spikewire.nn.losses import LOSSES, count_correct
from spikewire.pruning.masks import connectivity, layer_rows
from spikewire.runs.environment import changed_files
from spikewire.runs.names import ENV
from spikewire.runs.rundir import RunDir
from spikewire.train.build import (
    autocast,
    choose_device,
    errors_of_model,
    forward_of,
    load_data,
    test_batches,
)
from spikewire.train.pretrained import load_trained


@dataclass
class Score:
    """A finished network on the test set; `nonzero` is the fraction of weights that are not 0."""

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
    tally: Callable[[Tensor, Tensor], None] | None = None,
) -> tuple[float, float]:
    """Return accuracy and mean loss of a network.

    Args:
        forward: the network in evaluation mode, perhaps compiled.
        batches: the test images.
        loss: loss of an output and its labels.
        ranks: the processes that each evaluate a part.
        tally: called with the output and the labels of each batch of this process.
    """
    count = batches.count
    sums = torch.zeros(2, dtype=torch.float64, device=batches.device)
    right, lost = sums
    for images, labels in batches.epoch(0, part=ranks.part):
        output = forward(images)
        right += count_correct(output, labels)
        lost += loss(output, labels).double() * len(labels)
        if tally:
            tally(output, labels)
    ranks.sum_(sums)
    return float(right) / count, float(lost) / count


def evaluate_run(
    run: str | Path, flags: Mapping[str, str] | None = None, train_images: int = 0
) -> Score:
    """Evaluate the network of a finished run on the test set, or on training images.

    Args:
        run: run directory.
        flags: settings as text that replace those of the run, such as ``{"device": "cpu"}``; a
            Python file that the run uses must be named here again, ``{"model": "my.py:build"}``.
        train_images: how many of the images that the run was trained on to use instead of the test
            set, the same ones every time, without `augment`; an accuracy far above that of the test
            set means that the network has learnt these images rather than the task.

    Raises:
        SpikewireError: if the run has not finished, its data is missing, or it has no more images.

    Example:
        >>> evaluate_run("runs/digits-gradr-1").accuracy
    """
    config = RunDir.open(run).config(flags)
    for change in changed_files(Path(run) / ENV, config):
        warnings.warn(change, stacklevel=2)
    device = choose_device(config.device)
    data = load_data(config)
    if train_images:
        trained = data.hold_out(config.hold_out) if config.hold_out else data
        data = trained.hold_out(train_images, "train_images")
    model, masks = load_trained(run, config, data, device)

    def loss(output: Tensor, labels: Tensor) -> Tensor:
        return LOSSES[config.loss](output, labels, config.rate_scale, 0.0)

    with autocast(config, device), errors_of_model(config):
        batches = test_batches(config, data, device)
        accuracy, mean_loss = evaluate(forward_of(model), batches, loss)
    if not masks:
        raise SpikewireError(f"{run}: its network has no masks")
    layers = layer_rows(masks, model.state_dict())
    nonzero = sum(row["nonzero"] for row in layers) / sum(row["total"] for row in layers)
    return Score(accuracy, mean_loss, connectivity(masks), nonzero, layers)
