"""Slurm: the trainings as a script for `sbatch`, one array task each, resumed when requeued."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spikewire.errors import SpikewireError, check
from spikewire.frontier.engines import Task
from spikewire.runs.rundir import CONFIG, MODEL

SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --job-name=spikewire
#SBATCH --array=0-{last}
{resources}
#SBATCH --requeue
# Submitted again, it resumes what was interrupted. After all tasks, this prints the table:
#   {collect}
set -euo pipefail
cd {folder}
case $SLURM_ARRAY_TASK_ID in
{cases}
*) echo "no such task: $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;
esac
logs=$(dirname -- "$log")
mkdir -p -- "$logs"
for path in "$logs" "$log" "$run"; do
  if [ -L "$path" ]; then echo "$path: is a symbolic link" >&2; exit 2; fi
done
if [ -e "$run"/{model} ]; then exit; fi
if [ -e "$run"/{config} ]; then args=("--resume=$run"); else args+=("--out=$run"); fi
exec {python} -m spikewire train "${{args[@]}}" >>"$log" 2>&1
"""


@dataclass(frozen=True)
class Slurm:
    """Print a Slurm script that runs the trainings.

    Args:
        cores: CPU cores requested per training.
        gpus: GPUs requested per training; a whole number.

    Raises:
        SpikewireError: If a number is invalid.
    """

    cores: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        check(self.cores >= 1, "cores", self.cores, "1 or more")
        check(self.gpus >= 0 and self.gpus % 1 == 0, "gpus", self.gpus, "a whole number for Slurm")

    @property
    def threads(self) -> int:
        """CPU threads per training: its cores."""
        return self.cores

    def script(self, tasks: Sequence[Task], collect: str) -> str:
        """Return the script for `sbatch`.

        Args:
            tasks: The trainings, one array task each.
            collect: The command that prints the table afterwards, for a comment in the script.

        Returns:
            A bash script.

        Raises:
            SpikewireError: If there are no tasks, or if a name or setting has a character that
                cannot be printed, such as a new line.
        """
        if not tasks:
            raise SpikewireError("nothing is left to do")
        words = [collect, str(Path.cwd()), sys.executable]
        for task in tasks:
            words += [str(task.run), str(task.log), *task.arguments()]
        for word in words:
            check(word.isprintable(), "--engine slurm", word, "used with printable names only")
        return SCRIPT.format(
            last=len(tasks) - 1,
            resources="\n".join(self._resources()),
            collect=collect,
            folder=shlex.quote(str(Path.cwd())),
            cases="\n".join(_case(number, task) for number, task in enumerate(tasks)),
            model=MODEL,
            config=CONFIG,
            python=shlex.quote(sys.executable),
        )

    def _resources(self) -> Iterator[str]:
        yield f"#SBATCH --cpus-per-task={self.cores}"
        if self.gpus:
            yield f"#SBATCH --gpus={self.gpus:g}"


def _case(number: int, task: Task) -> str:
    """Return the branch of one array task."""
    run, log = (shlex.quote(str(path)) for path in (task.run, task.log))
    return f"{number}) run={run} log={log} args=({shlex.join(task.arguments())}) ;;"
