"""What a run leaves behind. Only this file knows the names of the files in a run directory.

A file appears whole or not at all: written under a temporary name, fsynced, renamed. All of it is
read back without executing anything.
"""

import io
import json
import os
import platform
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

import spikewire
from spikewire import distributed as ranks
from spikewire.config import Config, resolve
from spikewire.errors import SpikewireError, check
from spikewire.files import atomic_write, io_errors

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

CONFIG, ENV, METRICS = "config.toml", "env.json", "metrics.jsonl"
TRACES, LOCK = "traces.npz", ".lock"
CHECKPOINT, PREVIOUS, MODEL = "checkpoint.pt", "checkpoint.prev.pt", "model.safetensors"
FORMAT = "spikewire checkpoint 1"
MASK = "spikewire.mask."


class RunDir:
    """One run's directory: `create` a new one, or `open` one that is there."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Config,
        device: torch.device,
        state: Mapping[str, Any] | None = None,
    ) -> "RunDir":
        """Make the directory and say in it what runs, and where; `state` is its first checkpoint.

        The config comes last: whatever has one can be gone on with. What a start that was killed
        before has left does not count.
        """
        run = cls.make(path, config)
        with io_errors(run.path):
            for left in run.path.iterdir():
                if left.name != LOCK:
                    left.unlink()
            run._write(ENV, json.dumps(environment(config, device), indent=2).encode() + b"\n")
            run._write(METRICS, b"")
            if state is not None:
                run.save_checkpoint(config, state)
            run._write(CONFIG, config.to_toml().encode())
        return run

    @classmethod
    def make(cls, path: str | Path, config: Config) -> "RunDir":
        """Make the directory, if the run can be kept there and nothing would be lost."""
        run = cls(path)
        if config.tensorboard and find_spec("tensorboard") is None:
            raise SpikewireError("tensorboard: not installed; run `pip install 'spikewire[tensorboard]'`")
        with io_errors(run.path):
            if run.path.exists() and not run._vacant():
                raise SpikewireError(
                    f"{path}: exists and is not empty; choose another, or --resume it"
                )
            run.path.mkdir(parents=True, exist_ok=True)
        return run

    def _vacant(self) -> bool:
        """Tell whether nothing is here but what a start cut short leaves."""
        early = (ENV, METRICS, CHECKPOINT, LOCK)
        return self.path.is_dir() and all(
            (entry.name in early or _temporary(entry))
            and not (entry.name == METRICS and entry.stat().st_size)
            for entry in self.path.iterdir()
        )

    def sweep(self) -> None:
        """Remove half-written files of a process that was killed."""
        for entry in filter(_temporary, self.path.iterdir()):
            entry.unlink(missing_ok=True)

    @classmethod
    def open(cls, path: str | Path) -> "RunDir":
        """Return a directory that a run has made."""
        run = cls(path)
        if not run.started:
            raise SpikewireError(f"{path}: is not a run directory; it has no {CONFIG}")
        return run

    def config(self, flags: Mapping[str, str] | None = None) -> Config:
        """Return the settings of the run, with `flags` over them."""
        return resolve(file=self.path / CONFIG, flags=flags)

    def threads(self, asked: int) -> int:
        """Return the thread count the run began with; with another, sums round differently."""
        path = self.path / ENV
        try:
            begun = int(json.loads(path.read_bytes())["threads"])
            check(1 <= begun <= 1024, "threads", begun, "1 to 1024")
        except FileNotFoundError:
            return asked
        except (OSError, ValueError, LookupError, TypeError, RecursionError, SpikewireError) as error:
            raise _damaged(path, error) from None
        if asked not in (0, begun):
            raise SpikewireError(
                f"--threads: {asked}, but {self.path} began with {begun}, and with another count "
                "it would not end bit for bit the same; leave it out"
            )
        return begun

    @property
    def started(self) -> bool:
        """Whether there is a run."""
        return (self.path / CONFIG).is_file()

    @property
    def finished(self) -> bool:
        """Whether the run has reached its end."""
        return (self.path / MODEL).exists()

    # ------------------------------------------------------------------ metrics

    def append(self, row: Mapping[str, Any]) -> None:
        """Add an epoch's line; a figure that is not finite becomes null."""
        line = json.dumps(_strict(row), allow_nan=False) + "\n"
        with io_errors(self.path), (self.path / METRICS).open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def history(self) -> list[dict[str, Any]]:
        """Return the lines written so far; a half-written one at the end does not count."""
        path = self.path / METRICS
        lines = path.read_bytes().splitlines() if path.exists() else []
        rows = []
        for number, line in enumerate(lines, 1):
            if (row := _row(line)) is not None:
                rows.append(row)
            elif number < len(lines):
                raise SpikewireError(f"{path}: line {number} is damaged")
        return rows

    def cut(self, epochs: int) -> None:
        """Drop the lines beyond `epochs`, which a resumed run will write again."""
        rows = [row for row in self.history() if row["epoch"] <= epochs]
        self._write(METRICS, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def save_traces(self, arrays: Mapping[str, numpy.ndarray]) -> None:
        """Write the distributions collected so far."""
        content = io.BytesIO()
        numpy.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]
        self._write(TRACES, content.getvalue())

    def load_traces(self) -> dict[str, numpy.ndarray] | None:
        """Return the distributions collected so far; None where there are none."""
        path = self.path / TRACES
        if not path.exists():
            return None
        try:
            with path.open("rb") as raw, numpy.load(raw, allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except Exception as error:  # a damaged file fails anywhere inside zipfile and numpy
            raise _damaged(path, error) from None

    def board(self) -> "SummaryWriter":
        """Return a TensorBoard writer."""
        from torch.utils.tensorboard.writer import SummaryWriter

        return SummaryWriter(self.path / "tensorboard")

    # ------------------------------------------------------------------ checkpoint

    def save_checkpoint(self, config: Config, state: Mapping[str, Any]) -> None:
        """Write the state of the run; the one before it is kept."""
        content = {"format": FORMAT, "config": asdict(config), "state": dict(state)}
        previous = self.path / PREVIOUS
        with io_errors(self.path), atomic_write(self.path / CHECKPOINT, previous) as file:
            try:
                torch.save(content, file)
            except RuntimeError as error:  # hides the system's refusal behind one of its own
                raise error.__context__ or error from None

    def load_checkpoint(self, config: Config) -> dict[str, Any]:
        """Return the newest state, if it is whole and belongs to `config`."""
        path = self.path / CHECKPOINT
        if not path.exists():  # a crash between the two renames leaves only the previous one
            path = self.path / PREVIOUS
        if not path.exists():
            raise SpikewireError(f"{self.path}: has no {CHECKPOINT} to resume from")
        saved = _load(path)
        if differing := config.differences(saved["config"]):
            raise SpikewireError(
                f"{path}: was written by another config; differs: {', '.join(differing)}"
            )
        return saved["state"]

    # ------------------------------------------------------------------ the trained network

    def save_model(self, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
        """Write weights and wiring."""
        wiring = {MASK + name: mask for name, mask in masks.items()}
        tensors = {name: x.detach().cpu().contiguous() for name, x in {**weights, **wiring}.items()}
        # no second key: safetensors writes them in any order, and equal networks are equal files
        self._write(MODEL, save(tensors, metadata={"crc32": _crc(tensors)}))

    def load_model(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return weights and masks."""
        path = self.path / MODEL
        if not path.exists():
            raise SpikewireError(
                f"{path}: is not there; finish with `spikewire train --resume {self.path}`"
            )
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                expected = (file.metadata() or {}).get("crc32")
            if expected not in (None, _crc(tensors)):
                raise ValueError("wrong checksum")
        except (SafetensorError, OSError, ValueError) as error:
            raise _damaged(path, error) from None
        masks = {k.removeprefix(MASK): v.bool() for k, v in tensors.items() if k.startswith(MASK)}
        return {k: v for k, v in tensors.items() if not k.startswith(MASK)}, masks

    def _write(self, name: str, content: bytes) -> None:
        with io_errors(self.path), atomic_write(self.path / name) as file:
            file.write(content)


def free_name(root: str | Path, stem: str) -> Path:
    """Return ``root/stem-n`` with the next number that no run has."""
    taken = [path.name.removeprefix(f"{stem}-") for path in Path(root).glob(f"{stem}-*")]
    return Path(root) / f"{stem}-{max((int(n) for n in taken if n.isdecimal()), default=0) + 1}"


def environment(config: Config, device: torch.device) -> dict[str, Any]:
    """Return what a reader needs to repeat the run: versions, machine, commit, seed, command."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "spikewire": spikewire.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "ranks": ranks.started(),
        "commit": _commit(),
        "seed": config.seed,
        "command": sys.argv,
    }


def _temporary(path: Path) -> bool:
    """Tell whether it is a name that `replacing` gives a file of a run."""
    names = (CONFIG, ENV, METRICS, TRACES, CHECKPOINT, MODEL)
    return path.name.startswith(tuple(f".{name}." for name in names))


def _load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; torch does not check its zip file's checksums, so do it here."""
    try:
        with zipfile.ZipFile(path) as archive:
            flawed = archive.testzip()
        if flawed:
            raise _damaged(path, ValueError(f"wrong checksum of {flawed}"))
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except SpikewireError:
        raise
    except Exception as error:  # a damaged file fails anywhere inside zipfile, pickle or torch
        raise _damaged(path, error) from None
    ours = isinstance(saved, dict) and saved.get("format") == FORMAT
    if not ours or not all(isinstance(saved.get(key), dict) for key in ("config", "state")):
        raise SpikewireError(f"{path}: is not a {FORMAT!r} file")
    return saved


def _damaged(path: Path, error: Exception) -> SpikewireError:
    reason = (str(error) or type(error).__name__).splitlines()[0][:80]
    other = f"; remove it to go on from {PREVIOUS}" if path.name == CHECKPOINT else ""
    return SpikewireError(f"{path}: is damaged ({reason}){other}")


def _row(line: bytes) -> dict[str, Any] | None:
    """Return an epoch's figures from a line of the metrics; None where it is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("epoch")) is int else None


def _crc(tensors: Mapping[str, Tensor]) -> str:
    """Return a checksum of names and bits; safetensors has none of its own."""
    total = 0
    for name, x in sorted(tensors.items()):
        total = zlib.crc32(name.encode(), total)
        total = zlib.crc32(x.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


def _commit() -> str | None:
    """Return the commit of the package's source tree, where there is one."""
    here = Path(__file__).parent
    try:
        shown = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return shown.stdout.strip() or None
