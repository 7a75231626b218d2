"""The architecture, read from the source: imports point one way, names are private, files short."""

import ast
from pathlib import Path

import pytest

import spikewire

PACKAGE = Path(spikewire.__file__).parent
ORDER = (
    {"errors"},
    {"fields", "files", "schedules", "text", "zoo"},
    {"kernels"},
    {"nn"},
    {"pruning"},
    {"methods", "plasticity", "metrics", "data", "integrations"},
    {"config", "distributed"},
    {"runs"},
    {"formats"},
    {"train"},
    {"runtime"},
    {"deploy"},
    {"report", "frontier"},
    {"cli"},
)
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
ENTRY = {"__init__", "__main__"}  # the public API and ``python -m spikewire``
FILES = sorted(PACKAGE.rglob("*.py"))


def part(path):
    """Return the package, or top-level module, a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree):
    """Yield the dotted names that a module imports from spikewire, wherever the statement is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (x.name for x in node.names if x.name.split(".")[0] == "spikewire")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "spikewire":
            yield from (f"{node.module}.{x.name}" for x in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    mine = part(path)
    if mine in ENTRY:
        return
    for name in imports(ast.parse(path.read_text("utf-8"))):
        words = name.split(".")
        if words[1:] in ([], ["__version__"]):
            continue
        theirs = words[1]
        assert theirs in LEVEL, f"{name}: has no place in the order"
        assert theirs == mine or LEVEL[theirs] < LEVEL[mine], f"{mine} must not import {theirs}"


def test_every_package_has_a_place_in_the_order():
    assert {part(path) for path in FILES} - ENTRY <= set(LEVEL)


def test_a_method_imports_only_the_pruning_contract():
    for path in (PACKAGE / "methods").glob("*.py"):
        found = {".".join(name.split(".")[:2]) for name in imports(ast.parse(path.read_text()))}
        assert found <= {"spikewire.pruning", "spikewire.methods"}, path.name


def private(name):
    return name.startswith("_") and not name.startswith("__")


def defined(tree):
    """Return the private names that a module defines: functions, and attributes of self or cls."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return {name for name in names if private(name)}


def test_no_module_uses_private_names_of_another():
    trees = {path: ast.parse(path.read_text("utf-8")) for path in FILES}
    own = {path: defined(tree) for path, tree in trees.items()}
    known = set().union(*own.values())
    for path, tree in trees.items():
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        taken = {name.rpartition(".")[2] for name in imports(tree)}
        assert not {name for name in taken if private(name)}, path
        assert not (used & known) - own[path], path


def test_names_of_files_say_what_is_in_them():
    names = {path.stem for path in PACKAGE.rglob("*")}
    assert not names & {"utils", "util", "base", "common", "core", "helpers", "misc"}
    assert len(list(PACKAGE.glob("*.py"))) <= 10


def test_no_file_is_longer_than_350_lines():
    assert [str(path) for path in FILES if len(path.read_text().splitlines()) > 350] == []


def test_every_module_says_what_is_in_it():
    for path in FILES:
        assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), path
