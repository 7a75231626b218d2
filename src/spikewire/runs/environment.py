"""The record of where a run was made: versions, machine, commit, seed and command."""

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

import spikewire
from spikewire import distributed
from spikewire.config import Config
from spikewire.data.reference import EXECUTABLE, fingerprint, named_path
from spikewire.errors import SpikewireError, check
from spikewire.files import damaged


def collect_environment(config: Config, device: torch.device) -> dict[str, Any]:
    """Return what is needed to repeat a run besides its settings.

    Args:
        config: The settings of the run.
        device: The device it trains on.

    Returns:
        The content of ``env.json``: versions, platform, device, threads, ranks, commit, seed,
        command line, and the user's own files.
    """
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "spikewire": spikewire.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "ranks": distributed.launched_ranks(),
        "commit": _commit(),
        "seed": config.seed,
        "command": sys.argv,
        "files": own_files(config),
    }


def own_files(config: Config, keys: Sequence[str] = EXECUTABLE) -> dict[str, dict[str, str]]:
    """Return path and sha256 of the user's own files that the settings name, by setting.

    Of a folder it is the sha256 of the names and sizes of its files.

    Args:
        config: All settings.
        keys: The settings to look at.

    Raises:
        SpikewireError: If one cannot be read.
    """
    paths = {key: named_path(getattr(config, key)) for key in keys}
    return {
        key: {"path": str(path), "sha256": fingerprint(path)}
        for key, path in paths.items()
        if path is not None
    }


def changed_files(
    path: Path, config: Config, keys: Sequence[str] = ("dataset", "model")
) -> list[str]:
    """Return one line per file of the user's own that is not the one recorded in ``env.json``.

    Args:
        path: The ``env.json`` of a run.
        config: Its settings.
        keys: The settings to look at; a trained network no longer needs its teacher.

    Raises:
        SpikewireError: If a file cannot be read.
    """
    now = own_files(config, keys)
    recorded = read_environment(path).get("files") if now else None
    if not isinstance(recorded, dict):
        return []
    return [
        f"{key}: {file['path']} has changed since the run started"
        for key, file in now.items()
        if isinstance(recorded.get(key), dict) and recorded[key].get("sha256") != file["sha256"]
    ]


def read_environment(path: Path) -> dict[str, Any]:
    """Return the content of an ``env.json``.

    Raises:
        SpikewireError: If the file is missing or damaged.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        raise SpikewireError(f"{path.name}: is missing or damaged") from None
    return content if isinstance(content, dict) else {}


def recorded_threads(path: Path) -> int | None:
    """Return the number of threads in an ``env.json``, or None if there is no such file.

    Raises:
        SpikewireError: If the file is damaged.
    """
    try:
        threads = json.loads(path.read_bytes())["threads"]
        check(type(threads) is int and 1 <= threads <= 1024, "threads", threads, "1 to 1024")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, SpikewireError) as error:
        raise damaged(path, error) from None
    return threads


def _commit() -> str | None:
    """Return the git commit of the package's source tree, or None outside a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return shown.stdout.strip() or None
