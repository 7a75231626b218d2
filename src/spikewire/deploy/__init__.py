"""Export: a torch model, a finished run or a packed file as a file; a model on the CPU runtime."""

from spikewire.deploy.convert import convert
from spikewire.deploy.model import FORMATS, Exported, compile, export
from spikewire.deploy.run import ExportedRun, export_run

__all__ = ["FORMATS", "Exported", "ExportedRun", "compile", "convert", "export", "export_run"]
