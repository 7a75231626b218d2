"""Runs as the report reads them: a damaged run is listed with its problem, the others are read."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from spikewire.config import Config, settings
from spikewire.errors import SpikewireError
from spikewire.runs.environment import read_environment
from spikewire.runs.names import CONFIG, ENV, METRICS, MODEL, SNAPSHOTS, TRACES
from spikewire.runs.rows import check_rows, in_unit, measured_in, problem_of
from spikewire.runs.rundir import RunDir
from spikewire.runs.snapshots import Snapshots
from spikewire.runs.traces import Traces
from spikewire.text import size

SEARCH_DEPTH = 3  # levels of folders below a given path in which runs are searched
T = TypeVar("T")
MAX_DIFFERENCES = 2  # settings that a label names to distinguish a run
SIMPLE = re.compile(r'(\w+) = "?([\w.:+-]{1,24})"?')  # a setting that a label can name
MAX_EPOCHS = 1000  # epochs of one run that a curve shows at most


@dataclass
class Run:
    """One run directory, as far as it can be read.

    Args:
        path: The run directory.
        config: The settings; None if they cannot be read.
        env: Versions, machine and command, from ``env.json``.
        history: One row of metrics per epoch.
        traces: Distributions over training; None if there are none, or if they cannot be read.
        snapshots: Pictures of the network; None if there are none, or if they cannot be read.
        finished: Whether the trained network was written.
        ended: When it was written, in seconds since 1970; 0 if it was not.
        problem: Why parts of the run are missing, in one line; empty if none is.
        distinction: Settings in which it differs from other runs of its method and target.
    """

    path: Path
    config: Config | None = None
    env: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    traces: Traces | None = None
    snapshots: Snapshots | None = None
    finished: bool = False
    ended: float = 0.0
    problem: str = ""
    distinction: str = ""

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.path.name

    @property
    def last(self) -> dict[str, Any]:
        """Metrics of the last epoch that was tested, else of the last epoch.

        All are of one epoch; a finished run is tested at its last.
        """
        tested = (row for row in reversed(self.history) if row.get("accuracy") is not None)
        return next(tested, self.history[-1] if self.history else {})

    @property
    def curve(self) -> list[dict[str, Any]]:
        """Rows to draw: all, or evenly spaced ones up to the last if there are very many."""
        return thin_out(self.history)

    @property
    def state(self) -> str:
        """One of finished, unfinished, damaged."""
        if self.problem:
            return "damaged"
        return "finished" if self.finished else "unfinished"

    @property
    def measured(self) -> dict[str, Any]:
        """Costs and firing rates of the epoch of `last`; empty if that was not measured.

        A finished run is measured at its last epoch.
        """
        return measured_in(self.last)

    @property
    def complete(self) -> bool:
        """Whether the run is finished and has the metrics of its last epoch."""
        last = self.history[-1]["epoch"] if self.history else 0
        return self.finished and self.config is not None and last >= self.config.epochs

    def in_unit(self, unit: str) -> float | None:
        """Return what the run has of a unit at the epoch of `last`; None if not measured then.

        Args:
            unit: ``"connectivity"``, ``"synapses"``, ``"synops"`` or ``"bytes"``: the size of the
                packed file with its header, see `spikewire.runs.rows.in_unit`.
        """
        return in_unit(self.last, unit)

    @property
    def usable(self) -> bool:
        """Whether the run can be drawn: its settings are readable and it has been tested."""
        return self.config is not None and self.last.get("accuracy") is not None

    @property
    def setting(self) -> str:
        """The target or the penalty α, which distinguishes runs of one method."""
        if self.config is None:
            return ""
        if self.config.target is not None:
            return _setting(self.config.unit, self.config.target)
        alpha = self.config.options.get("alpha")
        return "" if alpha is None else f"α = {alpha:g}"

    @property
    def seed(self) -> int | None:
        """The seed; None if the settings cannot be read."""
        return self.config.seed if self.config else None

    @property
    def label(self) -> str:
        """Method, target or penalty, and what distinguishes it from others of the same, if any."""
        if self.config is None:
            return self.name
        words = f"{self.config.method} {self.setting}".strip()
        return ", ".join(filter(None, (words, self.distinction)))

    @cached_property
    def recipe(self) -> tuple[str, ...]:
        """Settings that decide the result, without the seed: equal for repetitions of one run."""
        lines = self.config.to_toml().splitlines() if self.config else []
        other = {"seed"} | {key for key, rule in settings().items() if rule.metadata.get("free")}
        return tuple(line for line in lines if line.split(" = ")[0] not in other)

    @property
    def training_key(self) -> tuple[str, ...]:
        """The recipe without the method's fields, and the unit of the target."""
        lines = self.recipe
        end = next((i for i, line in enumerate(lines) if line.startswith("[")), len(lines))
        return (*lines[:end], self.config.unit if self.config else "")

    @property
    def command(self) -> str:
        """The command that started the run, else one that repeats it from its settings."""
        words = self.env.get("command")
        if isinstance(words, list) and len(words) > 1:
            return shlex.join(["spikewire", *map(str, words[1:])])
        return shlex.join(["spikewire", "train", "--config", str(self.path / CONFIG)])


def _setting(unit: str, target: float) -> str:
    if unit == "bytes":
        return size(round(target))
    if unit == "synops":
        return f"{target:g} SynOps"
    return f"{100 * target:g}%" + (" of synapses" if unit == "synapses" else "")


# ---------------------------------------------------------------------- reading


def load(path: str | Path) -> Run:
    """Read one run directory, as far as it can be read.

    Args:
        path: The run directory.

    Returns:
        The run; `Run.problem` names what could not be read.

    Example:
        >>> run = load("runs/digits-1")
        >>> run.state, run.last["accuracy"]
    """
    run, folder, problems = Run(Path(path)), RunDir(path), []
    with _noted(problems):
        run.config = RunDir.open(run.path).config()
    with _noted(problems):  # before the metrics, whose last row is written earlier
        run.finished = folder.finished
        run.ended = (run.path / MODEL).stat().st_mtime if run.finished else 0.0
    with _noted(problems):
        rows = folder.history()
        run.history = [row for row in rows if not problem_of(row)]
        check_rows(rows)
        _check_end(run)
    with _noted(problems):
        run.env = read_environment(run.path / ENV)
    with _noted(problems, TRACES):
        arrays = folder.load_traces()
        run.traces = Traces.of(arrays) if arrays is not None else None
    with _noted(problems, SNAPSHOTS):
        arrays = folder.load_snapshots()
        run.snapshots = Snapshots.of(arrays) if arrays is not None else None
    run.problem = "; ".join(problems)
    return run


def _check_end(run: Run) -> None:
    """Raise if a finished run lacks the metrics of its last epoch."""
    if run.finished and run.config is not None and not run.complete:
        last = run.history[-1]["epoch"] if run.history else 0
        raise SpikewireError(
            f"{METRICS}: ends at epoch {last} of {run.config.epochs}, but the run is finished; "
            "lines are missing or damaged"
        )


@contextmanager
def _noted(problems: list[str], name: str = "") -> Iterator[None]:
    """Note in one line what prevents a part of a run, or the file of that name, from being read."""
    try:
        yield
    except SpikewireError as error:
        problems.append(str(error))
    except OSError as error:
        file = Path(error.filename or name).name
        problems.append(f"{file}: cannot be read: {error.strerror or error}")
    except ValueError as error:
        problems.append(f"{name}: is damaged ({error})")


def find(paths: str | Path | Iterable[str | Path]) -> list[Run]:
    """Read all runs at or below the given paths.

    Args:
        paths: Run directories, or folders that contain them, up to three levels deep; one or many.

    Returns:
        The runs in the order of `paths`, by name within each; a run found twice is listed once.

    Raises:
        SpikewireError: A path does not exist or contains no run.

    Example:
        >>> runs = find(["runs"])
    """
    found: dict[Path, None] = {}
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        here = _directories(path, SEARCH_DEPTH)
        if not path.exists():
            raise SpikewireError(f"{path}: does not exist")
        if path.is_file():
            raise SpikewireError(f"{path}: is a file; name run directories, or folders of them")
        if not here:
            raise SpikewireError(
                f"{path}: contains no run; make one with `spikewire train --out {path}/mine`"
            )
        found.update(dict.fromkeys(here))
    runs = [load(path) for path in found]
    _distinguish(runs)
    return runs


def _distinguish(runs: Sequence[Run]) -> None:
    """Note the settings in which runs differ that would have the same label."""
    same: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        if run.config:
            same.setdefault((run.config.dataset, run.config.model, run.label), []).append(run)
    for members in same.values():
        common = set.intersection(*(set(run.recipe) for run in members))
        for run in members:
            found = [SIMPLE.fullmatch(line) for line in run.recipe if line not in common]
            words = [f"{match[1]} {match[2]}" for match in found if match]
            run.distinction = ", ".join(words[:MAX_DIFFERENCES])


def _directories(path: Path, depth: int) -> Sequence[Path]:
    """Return the run directories at or below a path; one that cannot be listed is one of them."""
    try:
        if (path / CONFIG).is_file() or (path / METRICS).is_file():
            return [path]
        if depth == 0 or not path.is_dir():
            return []
        folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return [path]  # `load` says why
    return [run for folder in folders for run in _directories(folder, depth - 1)]


# ---------------------------------------------------------------------- selection


def usable(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that can be drawn, by decreasing connectivity."""
    good = [run for run in runs if run.usable]
    return sorted(good, key=lambda run: (-run.last["connectivity"], run.name))


def spread(items: Sequence[T], count: int) -> list[T]:
    """Return at most `count` evenly spaced items, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def thin_out(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most `MAX_EPOCHS` evenly spaced rows, the last among them."""
    step = -(-len(rows) // MAX_EPOCHS) or 1
    return rows[(len(rows) - 1) % step :: step]
