"""The API reference: one page per package with the public names of spikewire/__init__.pyi."""

import ast
from collections import defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path

import spikewire

HIDE_MEMBERS = "\n    options:\n      members: false"  # hooks of a method that nobody calls


@cache
def pages() -> dict[str, str]:
    """Return page -> text in Markdown, with a line per name that mkdocstrings replaces."""
    found = {f"api/{package}.md": page(package, names) for package, names in public().items()}
    return {"api/index.md": index(), **found}


def public() -> dict[str, list[str]]:
    """Return package -> its public names, in the order of __init__.pyi."""
    listed = ast.parse(Path(spikewire.__file__).with_suffix(".pyi").read_text("utf-8")).body
    found: dict[str, list[str]] = defaultdict(list)
    for node in listed:
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (each.name for each in node.names):
                if node.module == "spikewire":
                    found[name]  # noqa: B018  a package that is public itself
                else:
                    found[node.module.split(".")[1]].append(name)
    return dict(found)


def page(package: str, names: list[str]) -> str:
    """Return a page: the names of ``spikewire``, then those of the package alone."""
    module = import_module(f"spikewire.{package}")
    text = f"# spikewire.{package}\n\n{module.__doc__}\n"
    hide = HIDE_MEMBERS if package == "methods" else ""
    for name in names:
        value = getattr(spikewire, name)
        text += (
            registry(name, value) if isinstance(value, dict) else f"\n::: spikewire.{name}{hide}\n"
        )
    more = [name for name in own_names(package, module) if name not in names]
    return text + "".join(f"\n::: spikewire.{package}.{name}\n" for name in more)


def registry(name: str, value: dict[str, object]) -> str:
    """Return the entry of a dictionary, which has no docstring: its keys."""
    keys = ", ".join(f"`{key}`" for key in value)
    return f"\n## {name} {{#spikewire.{name}}}\n\nA dictionary by name: {keys}.\n"


def own_names(package: str, module: object) -> list[str]:
    """Return the documented names of a package that is public itself."""
    if package not in packages():
        return []
    names = getattr(module, "__all__", [])
    return [name for name in names if callable(getattr(module, name))]


def packages() -> set[str]:
    """Return the packages that are public themselves."""
    text = Path(spikewire.__file__).with_suffix(".pyi").read_text("utf-8")
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    return {each.name for node in nodes if node.module == "spikewire" for each in node.names}


def index() -> str:
    """Return the first page: every public name with the first line of its docstring."""
    text = "# API reference\n\nEvery public name of `spikewire`, by the package it comes from.\n"
    for package, names in public().items():
        text += f"\n## [`spikewire.{package}`]({package}.md)\n\n{summary(package, names)}"
    return text


def summary(package: str, names: list[str]) -> str:
    """Return one row per public name of a package, or the first line of its docstring."""
    if not names:
        return first_line(import_module(f"spikewire.{package}")) + "\n"
    rows = [
        f"| [`{name}`]({package}.md#spikewire.{name}) | {first_line(getattr(spikewire, name))} |\n"
        for name in names
    ]
    return "| name | |\n|---|---|\n" + "".join(rows)


def first_line(thing: object) -> str:
    """Return the first line of a docstring, for a cell of a table."""
    text = "all of them by name" if isinstance(thing, dict) else thing.__doc__ or ""
    return text.strip().partition("\n")[0].replace("|", "\\|")
