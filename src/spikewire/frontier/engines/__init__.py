"""Where the trainings of a frontier run: on this machine, on a Ray cluster, in a Slurm array."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spikewire.config import words_of
from spikewire.runs.rundir import RunDir


@dataclass(frozen=True, eq=False)
class Task:
    """One training: its run directory, the file for its output, its flags."""

    run: Path
    log: Path
    flags: Mapping[str, str]

    def words(self) -> list[str]:
        """Return our command; what has begun is gone on with."""
        if RunDir(self.run).started:
            return ["train", "--resume", str(self.run)]
        return ["train", "--out", str(self.run), *self.settings()]

    def settings(self) -> list[str]:
        """Return the flags as words."""
        return words_of(self.flags)


Endings = Generator[tuple[Task, str | None], None, None]  # each with why it failed


class Engine(Protocol):
    """Takes trainings to their end."""

    @property
    def threads(self) -> int:
        """CPU threads of a training whose settings name none."""
        ...

    def work(self, tasks: Sequence[Task]) -> Endings:
        """Yield each task when it has ended; closed early, let those at work save."""
        ...
