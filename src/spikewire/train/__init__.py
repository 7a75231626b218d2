"""Training: the loop, one step, resuming, evaluation, and the optional parts."""

from spikewire.train.evaluate import evaluate_run
from spikewire.train.loop import Epoch, Result, Step, fit
from spikewire.train.penalty import SynOpsPenalty
from spikewire.train.signals import Interrupted

__all__ = ["Epoch", "Interrupted", "Result", "Step", "SynOpsPenalty", "evaluate_run", "fit"]
