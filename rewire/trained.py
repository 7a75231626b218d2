"""Networks that finished runs have left."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from rewire.data import Dataset
from rewire.errors import RewireError
from rewire.models import Spiking
from rewire.parts import build_model
from rewire.rundir import RunDir


def trained(
    run: str | Path, data: Dataset, device: torch.device, flags: Mapping[str, str] | None = None
) -> Spiking:
    """Return the network of a finished run, for evaluation; `flags` go over its config."""
    model = build_model(RunDir.open(run).config(flags), data, device)
    load_weights_(model, run)
    return model.eval()


def load_weights_(model: nn.Module, run: str | Path) -> None:
    """Give `model` the weights and buffers of a finished run's network."""
    weights, _ = RunDir.open(run).load_model()
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise RewireError(f"{run}: its weights do not fit the network") from None


@contextmanager
def blame(field: str) -> Iterator[None]:
    """Let a refusal inside name the setting that led there."""
    try:
        yield
    except RewireError as error:
        raise RewireError(f"{field}: {error}") from None
