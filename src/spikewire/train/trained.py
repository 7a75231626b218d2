"""Networks that finished runs have left."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from spikewire.config import Config
from spikewire.data import Dataset
from spikewire.errors import SpikewireError
from spikewire.nn.models import Spiking
from spikewire.runs.rundir import RunDir
from spikewire.train.build import build_model


def trained(
    run: str | Path, config: Config, data: Dataset, device: torch.device
) -> tuple[Spiking, dict[str, Tensor]]:
    """Return the network of a finished run, for evaluation, and its masks."""
    model = build_model(config, data, device)
    masks = load_weights_(model, run)
    return model.eval(), masks


def load_weights_(model: nn.Module, run: str | Path) -> dict[str, Tensor]:
    """Give `model` the weights and buffers of a finished run's network; return its masks."""
    weights, masks = RunDir.open(run).load_model()
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise SpikewireError(f"{run}: its weights do not fit the network") from None
    return masks


@contextmanager
def field_of_errors(field: str) -> Iterator[None]:
    """Let a refusal inside name the setting that led there."""
    try:
        yield
    except SpikewireError as error:
        raise SpikewireError(f"{field}: {error}") from None
