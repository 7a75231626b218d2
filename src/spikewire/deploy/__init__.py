"""Export: a torch model or a finished run as a file, and a torch model on the CPU runtime."""

from spikewire.deploy.model import FORMATS, Exported, compile, export
from spikewire.deploy.run import ExportedRun, export_run

__all__ = ["FORMATS", "Exported", "ExportedRun", "compile", "export", "export_run"]
