"""Spiking neural networks that learn their own sparse connectivity.

The public names are listed in ``__init__.pyi``, grouped by the package they come from. Each is
imported when it is first used, so that ``spikewire --help`` does not wait for torch. This file
imports nothing itself: Ctrl-C is handled from the first line of `spikewire.__main__` on.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    modules = _modules()
    if name == "__all__":
        return list(modules)
    if name not in modules:
        raise AttributeError(f"module 'spikewire' has no attribute {name!r}")
    from importlib import import_module

    if modules[name] == "spikewire":  # a package
        return import_module(f"spikewire.{name}")
    return getattr(import_module(modules[name]), name)


def __dir__() -> list[str]:
    return [*_modules(), "__version__"]


def _modules(found: dict[str, str] = {}) -> dict[str, str]:  # noqa: B006
    """Return the module of each public name; the file is read once."""
    if not found:
        import ast
        from pathlib import Path

        listed = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
        imports = [node for node in listed if isinstance(node, ast.ImportFrom)]
        found.update({x.name: str(node.module) for node in imports for x in node.names})
    return found
