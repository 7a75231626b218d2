"""The notebooks run from top to bottom in a fresh kernel, as the stored outputs say."""

import runpy
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def kinds(notebook):
    """Return the kinds of outputs of each cell: stream, display_data, execute_result."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[output.output_type for output in cell.outputs] for cell in code]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_shows_in_the_repository(path, tmp_path, need):
    if "cc -std=c99" in path.read_text("utf-8"):
        need("cc")
    execute = runpy.run_path(str(FOLDER / "run.py"))["execute"]
    found = execute(path, tmp_path)  # an error in a cell raises
    stored = nbformat.read(path, as_version=4)
    assert kinds(found) == kinds(stored), "run: make notebooks"
    outputs = [output for cell in found.cells for output in cell.get("outputs", [])]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebooks_are_small_and_do_not_name_the_machine(path):
    assert path.stat().st_size < 400_000
    assert "/home/" not in path.read_text("utf-8")
    assert "/tmp/" not in path.read_text("utf-8")


def test_there_are_three_notebooks():
    assert len(NOTEBOOKS) == 3
