"""Where the values of a `Config` come from: presets, TOML files and flags, each over the last.

TOML's top level holds the fields of `Config`; a section named like a method (``[gradr]``) holds
that method's fields. Flags are text, read as TOML would be.
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from spikewire.config.config import (
    PRESET_OF,
    Config,
    flag,
    method_fields,
    methods,
    settings,
)
from spikewire.errors import SpikewireError, check, unknown
from spikewire.fields import check_value, parse


def presets() -> dict[str, str]:
    """Return the TOML text of each preset in the package, by name."""
    folder = resources.files("spikewire").joinpath("presets")
    found = (entry for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return {entry.name.removesuffix(".toml"): entry.read_text("utf-8") for entry in found}


def resolve(
    preset: str | None = None,
    file: str | Path | None = None,
    flags: Mapping[str, str] | None = None,
) -> Config:
    """Return the settings of a run from a preset, a TOML file and flags, each over the one before.

    Args:
        preset: name of a preset; without preset and file it is the data set's own.
        file: path of a TOML file.
        flags: values as text, by name; names of settings or of the method's fields.

    Raises:
        SpikewireError: for an unknown name or an invalid value, with where it came from.

    Example:
        >>> config = resolve("digits", flags={"method": "budget", "connectivity": "0.05"})
    """
    for key, name in (("preset", preset), ("config", file)):
        check(name != "", flag(key), name, "a name")
    layers: list[tuple[str, dict[str, Any]]] = []
    if preset or not file:
        known = presets()
        name = preset or PRESET_OF.get((flags or {}).get("dataset", ""), "digits")
        if name not in known:
            raise unknown("--preset", name, known)
        layers += _preset(name, known)
    if file:
        layers.append((str(file), _read(Path(file))))
    return _merge(layers, flags or {})


def _preset(name: str, known: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the preset's table, after that of the preset it is based on."""
    table = tomllib.loads(known[name])
    under = table.pop("preset", None)
    return [*(_preset(under, known) if under else []), (f"preset {name}", table)]


def _merge(layers: list[tuple[str, dict[str, Any]]], flags: Mapping[str, str]) -> Config:
    """Merge tables and flags, later ones first; an error names where its value came from."""
    found: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, table in layers:
        for key, value in _top(name, table):
            found[key], origin[key] = value, f"{name}: {key}"
    for key in flags.keys() & settings().keys():
        found[key], origin[key] = parse(flags[key], get_type_hints(Config)[key]), flag(key)
    try:
        method = check_value(settings()["method"], found.get("method", Config.method), Config)
        found["options"] = options = {}
        for name, table in layers:
            _overlay_(options, table.get(method, {}), method)
            origin |= {key: f"{name}: [{method}] {key}" for key in table.get(method, {})}
        _overlay_(options, given := _method_flags(flags, method), method)
        origin |= {key: flag(key) for key in given}
        return Config(**found)
    except SpikewireError as error:
        key, _, rest = str(error).partition(":")
        raise SpikewireError(f"{origin.get(key, key)}:{rest}") from None


def _overlay_(options: dict[str, Any], upper: Mapping[str, Any], method: str) -> None:
    """Update `options` by `upper`; of fields that exclude each other the upper one stays."""
    exclusive = set(methods()[method].exclusive)
    if exclusive & upper.keys():
        for key in exclusive & options.keys():
            del options[key]
    options.update(upper)


def _method_flags(flags: Mapping[str, str], method: str) -> dict[str, Any]:
    """Return the flags that are the method's fields, read by their types."""
    hints = get_type_hints(methods()[method])
    for key in flags.keys() - settings().keys() - method_fields(method).keys():
        raise _misplaced(key, method)
    return {key: parse(text, hints[key]) for key, text in flags.items() if key not in settings()}


def _top(name: str, table: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yield a table's settings; refuse names that are neither a setting nor a method's field."""
    known = settings()
    for key, value in table.items():
        if isinstance(value, dict):
            if key not in methods():
                raise unknown(f"{name}: section", key, methods())
            for word in value.keys() - method_fields(key).keys():
                raise unknown(f"{name}: field of [{key}]", word, method_fields(key))
        elif key not in known:
            raise unknown(f"{name}: field", key, known)
        else:
            yield key, value


def _misplaced(key: str, method: str) -> SpikewireError:
    """Return the error for a flag of another method, or of none."""
    others = sorted(name for name in methods() if key in method_fields(name))
    if others:
        return SpikewireError(f"{flag(key)}: belongs to {', '.join(others)}, not to {method!r}")
    return unknown("flag", flag(key), map(flag, [*settings(), *method_fields(method)]))


def _read(path: Path) -> dict[str, Any]:
    """Return a TOML file's table."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SpikewireError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # malformed, wrong encoding, nested too deeply
        raise SpikewireError(f"{path}: is not TOML: {error}") from None
