"""What a run leaves behind: its directory and the files in it, the lock, the traces."""

from spikewire.runs.claim import claim_run
from spikewire.runs.lock import locked
from spikewire.runs.rundir import RunDir

__all__ = ["RunDir", "claim_run", "locked"]
