"""Networks that finished runs have left."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from rewire.config import Config
from rewire.data import Dataset
from rewire.errors import RewireError
from rewire.models import Spiking
from rewire.parts import build_model
from rewire.rundir import RunDir


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
        raise RewireError(f"{run}: its weights do not fit the network") from None
    return masks


@contextmanager
def blame(field: str) -> Iterator[None]:
    """Let a refusal inside name the setting that led there."""
    try:
        yield
    except RewireError as error:
        raise RewireError(f"{field}: {error}") from None
