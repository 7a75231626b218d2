"""Where the jobs of a frontier run: on this machine, on a Ray cluster, in a Slurm array."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spikewire.config import words_of
from spikewire.data.reference import is_python
from spikewire.runs.rundir import RunDir


@dataclass(frozen=True, eq=False)
class Task:
    """One training.

    Args:
        run: Its run directory.
        log: The file for its output.
        flags: Its settings, as texts by field name.
    """

    run: Path
    log: Path
    flags: Mapping[str, str]

    def command(self) -> list[str]:
        """Return the arguments of `spikewire` that start the training, or resume it."""
        if RunDir(self.run).started:
            own = {key: value for key, value in self.flags.items() if is_python(value)}
            return ["train", *words_of({"resume": str(self.run), **own})]
        return ["train", *words_of({"out": str(self.run)}), *self.arguments()]

    def arguments(self) -> list[str]:
        """Return the settings as command line arguments."""
        return words_of(self.flags)


Results = Generator[tuple[Task, str | None], None, None]  # a task, and why it failed or None


class Engine(Protocol):
    """Runs trainings to their end."""

    @property
    def threads(self) -> int:
        """CPU threads of a training whose settings do not name a number."""
        ...

    def run(self, tasks: Sequence[Task]) -> Results:
        """Run the tasks.

        Args:
            tasks: The trainings to start or resume.

        Yields:
            Each task when it has ended, and why it failed or None. If the generator is closed
            early, the running trainings save a checkpoint and stop.
        """
        ...
