"""Execute the notebooks and store their outputs in them.

Run: pip install nbclient ipykernel; python examples/notebooks/run.py [NOTEBOOK ...]
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent


def execute(path: Path, folder: str | Path) -> NotebookNode:
    """Return a notebook with the outputs of a run in a fresh kernel, in this folder."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, resources=where, coalesce_streams=True).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times of the run
    return notebook


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(execute(path, folder), path)
