"""Files of the user's own in settings: ``FILE.py:FUNCTION``, ``folder:PATH``, ``npz:FILE``.

Importing a Python file executes it. `call_function` is called only for a file that the user has
named: on the command line or in Python, never because a run directory names it (`Config.confirm`).
"""

import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from spikewire.errors import SpikewireError, unknown
from spikewire.fields import has_form

PYTHON, FOLDER, NPZ = "FILE.py:FUNCTION", "folder:PATH", "npz:FILE"
EXECUTABLE = ("dataset", "model", "teacher")  # settings that may name a Python function
_modules: dict[tuple[str, str], ModuleType] = {}  # by path and digest: one file is executed once


def is_python(value: str) -> bool:
    """Return whether a setting names a Python function: ``FILE.py:FUNCTION``."""
    return not value.startswith(("folder:", "npz:")) and has_form(value, PYTHON)


def named_path(value: str) -> Path | None:
    """Return the file or folder that a setting names; None for a name such as ``mnist``."""
    if is_python(value):
        return Path(value.rpartition(".py:")[0] + ".py")
    kind, colon, path = value.partition(":")
    return Path(path) if colon and kind in ("folder", "npz") else None


def short_name(value: str) -> str:
    """Return the name for run directories: that of a data set, or of the file without suffix."""
    path = named_path(value)
    return value if path is None else re.sub(r"[^\w.-]+", "_", path.resolve().stem) or "data"


def fingerprint(path: Path) -> str:
    """Return the sha256 of a file; of a folder, that of the names and sizes of its files.

    Raises:
        SpikewireError: If it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        if path.is_dir():
            for file in sorted(x for x in path.rglob("*") if x.is_file()):
                digest.update(f"{file.relative_to(path)} {file.stat().st_size}\n".encode())
        else:
            with path.open("rb") as stream:
                while part := stream.read(1 << 20):
                    digest.update(part)
    except OSError as error:
        raise SpikewireError(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def call_function(field: str, value: str, **offered: Any) -> Any:
    """Import ``FILE.py:FUNCTION`` and return what the function returns.

    Args:
        field: The setting that names it, for errors.
        value: The file and the function.
        **offered: Arguments; the function gets those that it has parameters for.

    Raises:
        SpikewireError: If the file or the function does not exist, or its code raises.
    """
    path = named_path(value)
    assert path is not None
    with errors_of_file(field, path):
        module = _import(path)
    name = value.rpartition(".py:")[2]
    functions = [key for key, item in vars(module).items() if callable(item)]
    if name not in functions:
        raise unknown(f"{field}: function of {path}", name, functions)
    function = getattr(module, name)
    with errors_of_file(field, path):
        known = inspect.signature(function).parameters
        return function(**{key: item for key, item in offered.items() if key in known})


def _import(path: Path) -> ModuleType:
    """Execute a Python file once per content; its folder is importable, as with ``python FILE``."""
    key = str(path.resolve()), fingerprint(path)
    if key not in _modules:
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)
        name = path.stem if path.stem not in sys.modules else f"own_{key[1][:16]}"
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # for its classes to be pickled, by workers of a DataLoader
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        _modules[key] = module
    return _modules[key]


@contextmanager
def errors_of_file(field: str, path: Path) -> Iterator[None]:
    """Turn what the user's code raises into one line with the line of their file.

    Args:
        field: The setting that names the file.
        path: The file.

    Raises:
        SpikewireError: For any exception inside, `SystemExit` too.
    """
    try:
        yield
    except SpikewireError as error:
        raise SpikewireError(f"{field}: {str(error).removeprefix(f'{field}: ')}") from None
    except (Exception, SystemExit) as error:
        raise _one_line(field, path, error) from error


@contextmanager
def errors_from_file(field: str, path: Path) -> Iterator[None]:
    """Turn what comes from the user's code into one line; other exceptions pass unchanged.

    The user's code is their file, those in the same folder, and the graph of their network: an
    error of autograd itself has no line of any file. Where memory ends is not their mistake.

    Args:
        field: The setting that names the file.
        path: The file.

    Raises:
        SpikewireError: For an exception from the user's code.
    """
    try:
        yield
    except SpikewireError:
        raise
    except (Exception, SystemExit) as error:
        if not _is_from(path, error) or "allocate" in str(error):
            raise
        raise _one_line(field, path, error) from error


def _is_from(path: Path, error: BaseException) -> bool:
    """Return whether an exception passed through the user's code, or autograd itself raised it."""
    names = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    graph = type(error) is RuntimeError and names[-1].parts[-3:-1] == ("torch", "autograd")
    return graph or any(name.parent == path.resolve().parent for name in names)


def _one_line(field: str, path: Path, error: BaseException) -> SpikewireError:
    """Return the error with the last line of the user's file that it passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) == path.resolve()]
    line = own[-1].lineno if own else getattr(error, "lineno", None)
    place = f"{path}:{line}" if line else str(path)
    text = " ".join(str(error).split())
    return SpikewireError(f"{field}: {place}: {type(error).__name__}: {text}")
