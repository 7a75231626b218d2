"""The registry, the files and the docs agree."""

import ast
import re
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import spikewire
from spikewire import METHODS

ROOT = Path(__file__).parent.parent
PACKAGE = Path(spikewire.__file__).parent
FILES = {path.stem for path in (PACKAGE / "methods").glob("*.py")} - {"__init__"}


def test_the_registry_is_the_folder_of_methods():
    assert {"dense", "gradr", "deepr"} <= set(METHODS)
    assert set(METHODS) == FILES


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_method_is_one_file_one_test_and_one_row_and_page_of_the_docs(name):
    method = METHODS[name]
    assert method.name == name
    assert method.__module__ == f"spikewire.methods.{name}"
    assert getattr(spikewire, method.__name__) is method, "a public name"
    assert (ROOT / "tests" / "methods" / f"test_{name}.py").is_file()
    table = (ROOT / "docs" / "methods.md").read_text()
    assert re.search(rf"^\|[^|\n]*\b{name}\b[^|\n]*\|", table, re.MULTILINE), "no row in docs"
    assert (ROOT / "docs" / "methods" / f"{name}.md").is_file()


@pytest.mark.parametrize("name", sorted(FILES - {"dense"}))
def test_a_method_says_where_it_comes_from(name):
    source = (PACKAGE / "methods" / f"{name}.py").read_text()
    assert "https://" in (ast.get_docstring(ast.parse(source)) or "")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_field_of_a_method_has_a_help_text_and_a_name_of_its_own(name):
    from spikewire.config import Config

    settings = {field.name for field in fields(Config)}
    for field in fields(METHODS[name]):
        assert field.name not in settings
        assert field.metadata.get("help"), field.name


def calls(path, name):
    tree = ast.parse(path.read_text())
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [f.lineno for f in called if isinstance(f, ast.Name) and f.id == name]


def test_nothing_but_the_command_line_prints():
    files = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "cli"]
    assert len(files) > 10
    assert calls(PACKAGE / "cli" / "show.py", "print")
    assert {str(path): lines for path in files if (lines := calls(path, "print"))} == {}


GPU_TESTS = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
assert GPU_TESTS


@pytest.mark.parametrize("path", GPU_TESTS, ids=lambda path: path.stem)
def test_what_the_tests_on_a_gpu_import_exists(path):
    """They are collected only on a machine with CUDA, where a stale import stops all of them."""
    tree = ast.parse(path.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = [node for node in imports if (node.module or "").split(".")[0] == "spikewire"]
    for node in own:
        module = import_module(str(node.module))
        for name in (alias.name for alias in node.names):
            assert hasattr(module, name) or find_spec(f"{node.module}.{name}"), name
