"""Accuracy over connectivity: sweeps over data sets, methods, connectivities and seeds."""

from spikewire.frontier.jobs import Job, check_targets, plan
from spikewire.frontier.outcomes import FRONTIER, Outcome, Point, points
from spikewire.frontier.progress import Progress, Watch
from spikewire.frontier.sweep import missing, prepare, run

__all__ = [
    "FRONTIER",
    "Job",
    "Outcome",
    "Point",
    "Progress",
    "Watch",
    "check_targets",
    "missing",
    "plan",
    "points",
    "prepare",
    "run",
]
