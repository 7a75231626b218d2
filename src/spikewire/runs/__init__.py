"""What a run leaves behind: its directory and the files in it, the lock, the traces."""

from spikewire.runs.lock import locked
from spikewire.runs.rundir import RunDir, next_run_path

__all__ = ["RunDir", "locked", "next_run_path"]
