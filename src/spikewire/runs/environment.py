"""The record of where a run was made: versions, machine, commit, seed and command."""

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import torch

import spikewire
from spikewire import distributed
from spikewire.config import Config
from spikewire.errors import SpikewireError, check
from spikewire.files import damaged


def collect_environment(config: Config, device: torch.device) -> dict[str, Any]:
    """Return what is needed to repeat a run besides its settings.

    Args:
        config: The settings of the run.
        device: The device it trains on.

    Returns:
        The content of ``env.json``: versions, platform, device, threads, ranks, commit, seed and
        command line.
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
    }


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
