"""Spiking neural networks that learn their own sparse connectivity.

The public names are listed in ``__init__.pyi``, grouped by the package they come from. Each is
imported when it is first used, so that ``spikewire --help`` does not wait for torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_MODULE_OF = {
    name.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for name in node.names
}

__all__ = list(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'spikewire' has no attribute {name!r}")
    if _MODULE_OF[name] == "spikewire":  # a package
        return import_module(f"spikewire.{name}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
