"""Run directories as the report sees them: whatever is damaged is said, and stops nothing."""

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from spikewire.config import Config, settings
from spikewire.errors import SpikewireError
from spikewire.runs.rundir import CONFIG, ENV, METRICS, RunDir
from spikewire.runs.traces import Traces

DEPTH = 3  # folders below the one given in which runs are looked for
POINTS = 1000  # epochs of a run that a curve shows at most


@dataclass
class Run:
    """One run; `problem` says in a line why some of it is missing."""

    path: Path
    config: Config | None = None
    env: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def last(self) -> dict[str, Any]:
        """The line of the last epoch, with the accuracy of the last that was tested."""
        tested = (row["accuracy"] for row in reversed(self.history) if row["accuracy"] is not None)
        return {**self.history[-1], "accuracy": next(tested, None)} if self.history else {}

    @property
    def curve(self) -> list[dict[str, Any]]:
        """The lines to draw: all, or of a very long run evenly spaced ones up to the last."""
        return thinned(self.history)

    @property
    def state(self) -> str:
        """One word for the table."""
        if self.problem:
            return "damaged"
        return "finished" if self.finished else "unfinished"

    @property
    def measured(self) -> dict[str, Any]:
        """What the last traced epoch cost and how it fired."""
        found = (row["measured"] for row in reversed(self.history) if row.get("measured"))
        return next(found, {})

    @property
    def usable(self) -> bool:
        """Whether there is anything to draw."""
        return self.config is not None and self.last.get("accuracy") is not None

    @cached_property
    def traces(self) -> Traces | None:
        """The distributions, read when a figure asks for them."""
        try:
            arrays = RunDir(self.path).load_traces()
            return Traces.of(arrays) if arrays else None
        except (SpikewireError, KeyError, ValueError):
            return None

    @property
    def knob(self) -> str:
        """What sets it apart within its method: the penalty or the connectivity asked for."""
        if self.config is None:
            return ""
        if self.config.asked is not None:
            return f"{100 * self.config.asked:g} %"
        alpha = self.config.options.get("alpha")
        return "" if alpha is None else f"α = {alpha:g}"

    @property
    def label(self) -> str:
        """Method and knob, for legends."""
        return f"{self.config.method} {self.knob}".strip() if self.config else self.name

    @property
    def recipe(self) -> tuple[str, ...]:
        """Its settings that decide the outcome, without the seed: equal for repeats of one run."""
        lines = self.config.to_toml().splitlines() if self.config else []
        other = {"seed"} | {key for key, rule in settings().items() if rule.metadata.get("free")}
        return tuple(line for line in lines if line.split(" = ")[0] not in other)

    @property
    def schooling(self) -> tuple[str, ...]:
        """How it was trained, whatever its method's fields; asked connectivity or not."""
        lines = self.recipe
        end = next((i for i, line in enumerate(lines) if line.startswith("[")), len(lines))
        return (*lines[:end], str(self.config is not None and self.config.asked is not None))

    @property
    def command(self) -> str:
        """The command that made it, else one that repeats it from its config."""
        words = self.env.get("command")
        if isinstance(words, list) and len(words) > 1:
            return shlex.join(["spikewire", *map(str, words[1:])])
        return shlex.join(["spikewire", "train", "--config", str(self.path / CONFIG)])


def thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most so many lines as a curve shows, evenly spaced, the last among them."""
    apart = -(-len(rows) // POINTS) or 1
    return rows[(len(rows) - 1) % apart :: apart]


def load(path: str | Path) -> Run:
    """Read one run directory, as far as it can be read."""
    run = Run(Path(path))
    folder = RunDir(run.path)
    problems = []
    try:
        run.config = RunDir.open(run.path).config()
    except SpikewireError as error:
        problems.append(str(error))
    try:
        run.history = [row for row in folder.history() if _whole(row)]
    except (SpikewireError, OSError) as error:
        problems.append(str(error))
    try:
        env = json.loads((run.path / ENV).read_text("utf-8"))
        run.env = env if isinstance(env, dict) else {}
    except (OSError, ValueError, RecursionError):
        problems.append(f"{ENV}: is missing or damaged")
    run.finished = folder.finished
    run.problem = "; ".join(problems)
    return run


def _whole(row: Any) -> bool:
    needed = ("epoch", "connectivity", "seconds")
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(key), int | float) for key in needed)
        and isinstance(row.get("accuracy", ""), int | float | None)
    )


def find(paths: Iterable[str | Path]) -> list[Run]:
    """Return the runs at or under each path, by name; a path without any is the user's mistake."""
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        here = list(_under(path, DEPTH))
        if not here:
            raise SpikewireError(
                f"{path}: holds no run; make one with `spikewire train --out {path}/mine`"
            )
        found.update(dict.fromkeys(here))
    return [load(path) for path in found]


def _under(path: Path, depth: int) -> Sequence[Path]:
    if (path / CONFIG).is_file() or (path / METRICS).is_file():
        return [path]
    if depth == 0 or not path.is_dir():
        return []
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    return [run for folder in folders for run in _under(folder, depth - 1)]


def usable(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with something to draw, the best connected first."""
    good = [run for run in runs if run.usable]
    return sorted(good, key=lambda run: (-run.last["connectivity"], run.name))


def spread(runs: Sequence[Run], count: int) -> list[Run]:
    """Return at most `count` runs, evenly over those sorted by connectivity."""
    if len(runs) <= count:
        return list(runs)
    return [runs[round(i * (len(runs) - 1) / (count - 1))] for i in range(count)]
