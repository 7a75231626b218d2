"""Accuracy over connectivity: sweeps over data sets, methods, connectivities and seeds."""

from spikewire.frontier.jobs import Job, plan
from spikewire.frontier.outcomes import FRONTIER, Outcome, Point, points
from spikewire.frontier.sweep import missing, prepare, run

__all__ = ["FRONTIER", "Job", "Outcome", "Point", "missing", "plan", "points", "prepare", "run"]
