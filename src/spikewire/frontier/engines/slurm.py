"""The trainings as a script for Slurm: one array task each, gone on with when it is requeued."""

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
# The same again goes on with what was cut short. When all have ended, the table:
#   {collect}
set -euo pipefail
cd {folder}
case $SLURM_ARRAY_TASK_ID in
{cases}
*) echo "no such task: $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;
esac
mkdir -p -- "$(dirname -- "$log")"
if [ -e "$run"/{model} ]; then exit; fi
if [ -e "$run"/{config} ]; then words=(--resume "$run"); else words+=(--out "$run"); fi
exec {python} -m spikewire train "${{words[@]}}" >>"$log" 2>&1
"""


@dataclass(frozen=True)
class Slurm:
    """`cores` and `gpus` are asked for each training."""

    cores: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        check(self.cores >= 1, "cores", self.cores, "1 or more")
        check(self.gpus >= 0 and self.gpus % 1 == 0, "gpus", self.gpus, "a whole number for Slurm")

    @property
    def threads(self) -> int:
        """The cores of a training."""
        return self.cores

    def script(self, tasks: Sequence[Task], collect: str) -> str:
        """Return the script; `collect` is the command that makes the table of what it has left."""
        if not tasks:
            raise SpikewireError("nothing is left to do")
        return SCRIPT.format(
            last=len(tasks) - 1,
            resources="\n".join(self.resources()),
            collect=collect,
            folder=shlex.quote(str(Path.cwd())),
            cases="\n".join(case(number, task) for number, task in enumerate(tasks)),
            model=MODEL,
            config=CONFIG,
            python=shlex.quote(sys.executable),
        )

    def resources(self) -> Iterator[str]:
        """Yield what a task asks for."""
        yield f"#SBATCH --cpus-per-task={self.cores}"
        if self.gpus:
            yield f"#SBATCH --gpus={self.gpus:g}"


def case(number: int, task: Task) -> str:
    """Return the branch of an array task."""
    run, log = (shlex.quote(str(path)) for path in (task.run, task.log))
    return f"{number}) run={run} log={log} words=({shlex.join(task.settings())}) ;;"
