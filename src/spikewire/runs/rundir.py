"""The run directory: what is written there, and how it is read.

A file is complete or absent: it is written under a temporary name, synced and renamed. Reading
the files executes nothing.
"""

import json
import secrets
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from spikewire.config import Config, resolve
from spikewire.errors import SpikewireError
from spikewire.files import atomic_write, io_errors, make_folder, require_plain
from spikewire.runs.arrays import load_arrays, save_arrays
from spikewire.runs.checkpoint import load_checkpoint, save_checkpoint
from spikewire.runs.environment import collect_environment, recorded_threads
from spikewire.runs.history import append_row, read_rows, write_rows
from spikewire.runs.lock import holder
from spikewire.runs.names import (
    CHECKPOINT,
    CONFIG,
    ENV,
    METRICS,
    MODEL,
    PREVIOUS,
    SNAPSHOTS,
    TENSORBOARD,
    TRACES,
    WRITTEN,
)
from spikewire.runs.vacancy import is_vacant, remove_start, temporary_files
from spikewire.runs.weights import load_weights, save_weights

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class RunDir:
    """The directory of one run: settings, environment, metrics, traces, checkpoint and network.

    `create` makes a new one, `open` returns an existing one. The constructor checks nothing.

    Args:
        path: The directory.

    Example:
        >>> run = RunDir.open("runs/digits-gradr-1")
        >>> run.history()[-1]["accuracy"]
        0.9722
        >>> weights, masks = run.load_model()
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # ------------------------------------------------------------------ the directory

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Config,
        device: torch.device,
        state: Mapping[str, Any] | None = None,
    ) -> "RunDir":
        """Make the directory and write what runs, and where.

        The checkpoint is written first and the config last: a directory with a config can be
        resumed, and what a start left that was killed before is overwritten.

        Args:
            path: The directory; it must be new or empty.
            config: The settings of the run.
            device: The device it trains on.
            state: The first checkpoint; None writes no checkpoint.

        Returns:
            The run directory.

        Raises:
            SpikewireError: If the directory is not empty or cannot be written.
        """
        run = cls.make_directory(path, config)
        with io_errors(run.path):
            remove_start(run.path)
            if state is not None:
                run.save_checkpoint(config, state)
            environment = collect_environment(config, device)
            run._write(ENV, json.dumps(environment, indent=2).encode() + b"\n")
            run._write(METRICS, b"")
            run._write(CONFIG, config.to_toml().encode())
        return run

    @classmethod
    def make_directory(cls, path: str | Path, config: Config) -> "RunDir":
        """Make the directory of a run, if all of its output can be kept there.

        Args:
            path: The directory; it must be new or empty.
            config: The settings of the run.

        Returns:
            The run directory, without any file.

        Raises:
            SpikewireError: If the directory is not empty or cannot be made, or if TensorBoard is
                required and not installed.
        """
        run = cls(path)
        if config.tensorboard and find_spec("tensorboard") is None:
            raise SpikewireError(
                "tensorboard: not installed; run `pip install 'spikewire[tensorboard]'`"
            )
        with io_errors(run.path):
            if not run.path.exists():
                make_folder(run.path)
            if run.path.is_file():
                raise SpikewireError(f"{path}: is a file; --out must be a directory")
            if not is_vacant(run.path):
                if (who := holder(run.path)) is not None:
                    raise SpikewireError(f"{path}: another training is running there{who}")
                raise SpikewireError(
                    f"{path}: exists and is not empty; choose another, or --resume it"
                )
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDir":
        """Return an existing run directory.

        Args:
            path: The directory.

        Returns:
            The run directory.

        Raises:
            SpikewireError: If no run was started there.
        """
        run = cls(path)
        if not run.path.is_dir():
            what = "is a file, not a run directory" if run.path.exists() else "does not exist"
            raise SpikewireError(f"{path}: {what}")
        if not run.started:
            inside = sorted(str(found.parent) for found in run.path.glob(f"*/{CONFIG}"))
            more = ", ..." if len(inside) > 3 else ""
            hint = f"; it contains {', '.join(inside[:3])}{more}" if inside else ""
            raise SpikewireError(f"{path}: is not a run directory; it has no {CONFIG}{hint}")
        return run

    @property
    def started(self) -> bool:
        """Whether a run was started here."""
        return (self.path / CONFIG).is_file()

    @property
    def finished(self) -> bool:
        """Whether the run is complete: its trained network is here."""
        return (self.path / MODEL).exists()

    def remove_temporary_files(self) -> None:
        """Remove incomplete files of a process that was killed."""
        with io_errors(self.path):
            for entry in temporary_files(self.path):
                entry.unlink(missing_ok=True)

    def require_plain_files(self) -> None:
        """Raise if a file that the run writes is a symbolic link or a special file.

        Raises:
            SpikewireError: If there is one.
        """
        for name in (*WRITTEN, PREVIOUS, TENSORBOARD):
            require_plain(self.path / name)

    # ------------------------------------------------------------------ settings

    def config(self, flags: Mapping[str, str] | None = None) -> Config:
        """Return the settings of the run.

        Args:
            flags: Settings that replace those in the file, as texts by field name.

        Returns:
            The settings.

        Raises:
            SpikewireError: If the file or a flag is invalid.
        """
        return resolve(file=self.path / CONFIG, flags=flags)

    def thread_count(self, requested: int) -> int:
        """Return the number of CPU threads the run was started with.

        Sums are rounded differently with another number, so a resumed run must keep it.

        Args:
            requested: The number in the settings; 0 if none is set.

        Returns:
            The number recorded at the start, or `requested` if none was recorded.

        Raises:
            SpikewireError: If another number is requested, or if the record is damaged.
        """
        if (recorded := recorded_threads(self.path / ENV)) is None:
            return requested
        if requested not in (0, recorded):
            raise SpikewireError(
                f"--threads: {requested}, but {self.path} was started with {recorded}, and another "
                "number would not give bit-identical results; leave it out"
            )
        return recorded

    # ------------------------------------------------------------------ metrics and traces

    def append(self, row: Mapping[str, Any]) -> None:
        """Append the metrics of one epoch.

        Args:
            row: The metrics, with the number of the epoch as ``"epoch"``; numbers that are not
                finite become null.

        Raises:
            SpikewireError: If the file cannot be written.
        """
        append_row(self.path / METRICS, row)

    def history(self) -> list[dict[str, Any]]:
        """Return the metrics written so far, one row per epoch.

        Returns:
            The rows; an incomplete last line is ignored.

        Raises:
            SpikewireError: If a line before the last one is damaged.
        """
        return read_rows(self.path / METRICS)

    def truncate(self, epochs: int) -> None:
        """Remove the metrics after epoch `epochs`, which a resumed run writes again."""
        write_rows(self.path / METRICS, [row for row in self.history() if row["epoch"] <= epochs])

    def save_traces(self, arrays: Mapping[str, numpy.ndarray]) -> None:
        """Write the distributions collected so far, as arrays by name."""
        save_arrays(self.path / TRACES, arrays)

    def load_traces(self) -> dict[str, numpy.ndarray] | None:
        """Return the distributions collected so far.

        Returns:
            The arrays by name, or None if the run has no traces.

        Raises:
            SpikewireError: If the file is damaged.
        """
        return load_arrays(self.path / TRACES)

    def save_snapshots(self, arrays: Mapping[str, numpy.ndarray]) -> None:
        """Write the pictures of the network kept so far, as arrays by name."""
        save_arrays(self.path / SNAPSHOTS, arrays)

    def load_snapshots(self) -> dict[str, numpy.ndarray] | None:
        """Return the pictures of the network kept so far; see `load_traces`."""
        return load_arrays(self.path / SNAPSHOTS)

    def summary_writer(self) -> "SummaryWriter":
        """Return a TensorBoard writer to the directory ``tensorboard``."""
        from torch.utils.tensorboard.writer import SummaryWriter

        folder = self.path / TENSORBOARD
        require_plain(folder)
        return SummaryWriter(folder, filename_suffix=f".{secrets.token_hex(8)}")  # no planted link

    # ------------------------------------------------------------------ checkpoint and network

    def save_checkpoint(self, config: Config, state: Mapping[str, Any]) -> None:
        """Write a checkpoint and keep the previous one.

        Args:
            config: The settings of the run.
            state: The training state; tensors, numbers, strings and containers of them.

        Raises:
            SpikewireError: If the file cannot be written.
        """
        save_checkpoint(self.path / CHECKPOINT, self.path / PREVIOUS, config, state)

    def load_checkpoint(self, config: Config) -> dict[str, Any]:
        """Return the training state of the newest checkpoint.

        Args:
            config: The settings it must have been written with.

        Returns:
            The training state, on the CPU.

        Raises:
            SpikewireError: If there is none, if it is damaged, or if it belongs to other settings.
        """
        path = self.path / CHECKPOINT
        if not path.exists():  # a kill between the two renames leaves only the previous one
            path = self.path / PREVIOUS
        if not path.exists():
            raise SpikewireError(f"{self.path}: has no {CHECKPOINT} to resume from")
        hint = f"remove it to resume from {PREVIOUS}" if path.name == CHECKPOINT else ""
        return load_checkpoint(path, config, hint)

    def save_model(self, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
        """Write the trained network, which marks the run as finished.

        Args:
            weights: The `state_dict` of the network.
            masks: One bool tensor per pruned weight, by the name of that weight.

        Raises:
            SpikewireError: If the file cannot be written.
        """
        save_weights(self.path / MODEL, weights, masks)

    def load_model(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the trained network.

        Returns:
            The weights and the masks, both by the names of the weights.

        Raises:
            SpikewireError: If the run is not finished or the file is damaged.
        """
        path = self.path / MODEL
        if not path.exists():
            raise SpikewireError(
                f"{path}: does not exist; finish it with `spikewire train --resume {self.path}`"
            )
        return load_weights(path)

    def _write(self, name: str, content: bytes) -> None:
        with io_errors(self.path), atomic_write(self.path / name) as file:
            file.write(content)
