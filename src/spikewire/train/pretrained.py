"""Trained networks, of finished runs or packed files: to evaluate, start from, distill from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from spikewire.config import Config
from spikewire.data import AnyDataset
from spikewire.errors import SpikewireError
from spikewire.runs.rundir import RunDir
from spikewire.train.build import build_model
from spikewire.train.unpack import is_packed, load_packed_


def load_trained(
    run: str | Path, config: Config, data: AnyDataset, device: torch.device
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return the network of a finished run, in evaluation mode, and its masks.

    Args:
        run: run directory.
        config: its settings, perhaps with some changed that do not affect the weights.
        data: the data set, which the network must fit.
        device: where to put the network.

    Raises:
        SpikewireError: if the run has not finished or its weights do not fit.
    """
    model = build_model(config, data, device)
    masks = load_weights_(model, run)
    return model.eval(), masks


def load_start_(model: nn.Module, start: str, data: AnyDataset, images: Tensor) -> None:
    """Load the weights that training starts from.

    Args:
        model: the network.
        start: run directory, packed file or ``zoo:NAME``.
        data: the data set.
        images: a batch of training images.

    Raises:
        SpikewireError: if there is no such network, or it does not fit.
    """
    if is_packed(start):
        load_packed_(model, start, data, images)
    else:
        load_weights_(model, start)


def load_weights_(model: nn.Module, run: str | Path) -> dict[str, Tensor]:
    """Load the weights and buffers of a finished run into `model`; return its masks."""
    weights, masks = RunDir.open(run).load_model()
    own = model.state_dict()
    kinds = {name: (x.shape, x.dtype) for name, x in own.items()}
    if kinds != {name: (x.shape, x.dtype) for name, x in weights.items()}:
        raise SpikewireError(f"{run}: its weights do not fit the network")
    if any(name not in own or own[name].shape != mask.shape for name, mask in masks.items()):
        raise SpikewireError(f"{run}: its masks do not fit the network")
    model.load_state_dict(weights)
    return masks


@contextmanager
def field_of_errors(field: str) -> Iterator[None]:
    """Put the name of a setting in front of errors inside."""
    try:
        yield
    except SpikewireError as error:
        raise SpikewireError(f"{field}: {error}") from None
