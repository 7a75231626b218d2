"""Checkpoint files: the settings and the training state of a run, with checksums."""

import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from spikewire.config import Config
from spikewire.errors import SpikewireError
from spikewire.files import atomic_write, damaged, io_errors

FORMAT = "spikewire checkpoint 1"


def save_checkpoint(path: Path, previous: Path, config: Config, state: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically and keep the one before it.

    Args:
        path: The checkpoint file.
        previous: Where the file now at `path` is moved.
        config: The settings of the run.
        state: The training state; tensors, numbers, strings and containers of them.

    Raises:
        SpikewireError: If the file cannot be written.
    """
    content = {"format": FORMAT, "config": asdict(config), "state": dict(state)}
    with io_errors(path.parent), atomic_write(path, previous) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch hides the OSError behind an error of its own
            raise error.__context__ or error from None


def load_checkpoint(path: Path, config: Config, hint: str = "") -> dict[str, Any]:
    """Read a checkpoint without executing anything in it.

    Args:
        path: The checkpoint file.
        config: The settings it must have been written with.
        hint: What to do about a damaged file, for the message.

    Returns:
        The training state, on the CPU.

    Raises:
        SpikewireError: If the file is damaged, is not a checkpoint or belongs to other settings.
    """
    content = read_checkpoint(path, hint)
    try:
        differing = config.differences(content["config"])
    except Exception as error:  # values of any type: a comparison with a tensor fails
        raise damaged(path, error, hint) from None
    if differing:
        names = ", ".join(differing)
        raise SpikewireError(f"{path}: was written by another config; differs: {names}")
    return content["state"]


def read_checkpoint(path: Path, hint: str = "") -> dict[str, Any]:
    """Return the whole content of a checkpoint, of whatever settings, as `load_checkpoint` does."""
    try:
        content = _read(path)
    except Exception as error:  # a damaged file fails anywhere inside zipfile, pickle or torch
        raise damaged(path, error, hint) from None
    valid = isinstance(content, dict) and content.get("format") == FORMAT
    if not valid or not all(isinstance(content.get(key), dict) for key in ("config", "state")):
        raise SpikewireError(f"{path}: is not a {FORMAT!r} file")
    return content


def _read(path: Path) -> Any:
    """Return the content; torch does not verify the zip file's checksums, so do it first."""
    with zipfile.ZipFile(path) as archive:
        if (member := archive.testzip()) is not None:
            raise ValueError(f"wrong checksum of {member}")
    return torch.load(path, map_location="cpu", weights_only=True)
