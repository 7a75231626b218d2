"""Where the values of a `Config` come from: presets, TOML files and flags, each over the last.

TOML's top level holds the fields of `Config`; a section named like a method (``[gradr]``) holds
that method's fields, and settings for runs with that method (``lr`` in ``[budget]``), which go
before those of the same file's top level. Flags are text, read as TOML would be.
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import import_module, resources
from pathlib import Path
from typing import Any, get_type_hints

from spikewire.config.config import (
    Config,
    flag,
    method_fields,
    methods,
    settings,
)
from spikewire.config.effects import refuse_without_effect
from spikewire.config.usual import PRESET_OF, PRESET_OF_RULE
from spikewire.errors import SpikewireError, check, not_sparsity, unknown
from spikewire.fields import check_value, parse, to_toml


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
        preset: name of a preset; without preset and file it is that of the network, if this has a
            learning rule of its own, else the data set's, and none for a network or data of yours.
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
        name = preset or _default_preset(flags or {})
        if name and name not in known:
            raise unknown("--preset", name, known)
        layers += _preset(name, known) if name else _without_preset(flags or {})
    if file:
        layers.append((str(file), _read(Path(file))))
    return _merge(layers, flags or {})


def starting_preset(given: Mapping[str, Any]) -> str | None:
    """Return the preset that `resolve` starts from; None where it starts from the defaults.

    Args:
        given: flags by name, ``"preset"`` and ``"config"`` among them.
    """
    if given.get("preset") or given.get("config"):
        return given.get("preset")
    return _default_preset(given)


def _default_preset(flags: Mapping[str, str]) -> str:
    """Return the preset where none is given: that of a learning rule, or the data set's own."""
    read = import_module("spikewire.data.reference").named_path
    rule = PRESET_OF_RULE.get(flags.get("model", ""), "")
    own = any(read(flags.get(key, "")) for key in ("dataset", "model"))
    return rule or ("" if own else PRESET_OF.get(flags.get("dataset", "digits"), ""))


def _without_preset(flags: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Return what a run without preset and file starts from: weights that fire, if they are ours.

    torch's initial weights leave most networks of LIF neurons silent.
    """
    own = import_module("spikewire.data.reference").named_path(flags.get("model", "auto"))
    return [] if own else [("defaults", {"init": "firing"})]


def preset_toml(name: str) -> str:
    """Return a preset as a TOML file of its own, with what it takes from another preset.

    Args:
        name: name of the preset.

    Example:
        >>> Path("mine.toml").write_text(preset_toml("digits"))
    """
    known = presets()
    comments = [line for line in known[name].splitlines() if line.startswith("#")]
    top: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for _, table in _preset(name, known):
        for key, value in table.items():
            if isinstance(value, dict):
                _overlay_(sections.setdefault(key, {}), value, key)
            else:
                top[key] = value
    parts = [f"\n[{method}]\n{to_toml(values)}" for method, values in sections.items()]
    return "\n".join(comments) + f"\n{to_toml(top)}{''.join(parts)}"


def _preset(name: str, known: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the preset's table, after that of the preset it is based on."""
    table = tomllib.loads(known[name])
    under = table.pop("preset", None)
    return [*(_preset(under, known) if under else []), (f"preset {name}", table)]


def _merge(layers: list[tuple[str, dict[str, Any]]], flags: Mapping[str, str]) -> Config:
    """Merge tables and flags, later ones first; an error names where its value came from."""
    found: dict[str, Any] = {}
    options: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, table in layers:
        _check_names(name, table)
    try:
        method = _method(layers, flags, origin)
        for name, table in layers:
            own, general = _split(table.get(method, {}))
            top = {key: value for key, value in table.items() if key in settings()}
            found |= top | general
            _overlay_(options, own, method)
            origin |= {key: f"{name}: {key}" for key in top}
            origin |= {key: f"{name}: [{method}] {key}" for key in own | general}
        own, general = _read_flags(flags, method)
        found |= general
        _overlay_(options, own, method)
        origin |= {key: flag(key) for key in flags}
        config = Config(**found, options=options)
        refuse_without_effect(config, flags)
        named = import_module("spikewire.data.reference")
        files = [key for key in named.EXECUTABLE if key in found and key not in flags]
        config.unconfirmed = tuple(key for key in files if named.is_python(getattr(config, key)))
        return config
    except SpikewireError as error:
        key, _, rest = str(error).partition(":")
        raise SpikewireError(f"{origin.get(key, key)}:{rest}") from None


def _method(
    layers: list[tuple[str, dict[str, Any]]], flags: Mapping[str, str], origin: dict[str, str]
) -> str:
    """Return the name of the method, which decides the sections that count."""
    named = [("method", Config.method)]
    named += [(f"{name}: method", table["method"]) for name, table in layers if "method" in table]
    named += [("--method", flags["method"])] if "method" in flags else []
    origin["method"], method = named[-1]
    return check_value(settings()["method"], method, Config)


def _split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the method's own fields, and the settings of `Config`."""
    general = {key: value for key, value in values.items() if key in settings()}
    return {key: value for key, value in values.items() if key not in general}, general


def _overlay_(options: dict[str, Any], upper: Mapping[str, Any], method: str) -> None:
    """Update `options` by `upper`; of fields that exclude each other the upper one stays."""
    exclusive = set(methods()[method].exclusive)
    if exclusive & upper.keys():
        for key in exclusive & options.keys():
            del options[key]
    options.update(upper)


def _read_flags(flags: Mapping[str, str], method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the flags that are the method's fields, and those that are settings, by type."""
    hints = get_type_hints(methods()[method]) | get_type_hints(Config)
    for key in flags.keys() - settings().keys() - method_fields(method).keys():
        raise _misplaced(key, flags[key], method)
    return _split({key: parse(text, hints[key]) for key, text in flags.items()})


def _check_names(name: str, table: Mapping[str, Any]) -> None:
    """Raise for a name that is neither a setting nor a section of a method with its fields."""
    known = settings()
    for key, value in table.items():
        if isinstance(value, dict):
            if key not in methods():
                raise unknown(f"{name}: section", key, methods())
            allowed = {*method_fields(key), *known} - {"method"}
            for word in value.keys() - allowed:
                if owners := _owners(word):
                    raise SpikewireError(f"{name}: [{key}] {word}: belongs to {', '.join(owners)}")
                raise _unknown(f"{name}: field of [{key}]", word, value[word], allowed)
        elif key not in known:
            if owners := _owners(key):
                fields = f"is a field of the method {' or '.join(owners)}"
                raise SpikewireError(f"{name}: {key}: {fields}; put it into its section")
            raise _unknown(f"{name}: field", key, value, known)


def _owners(key: str) -> list[str]:
    """Return the methods that have a field of this name."""
    return sorted(name for name in methods() if key in method_fields(name))


def _unknown(field: str, key: str, value: Any, allowed: Iterable[str]) -> SpikewireError:
    if key == "sparsity":
        return not_sparsity(f"{field} {key}", value, "connectivity = {}")
    return unknown(field, key, allowed)


def _misplaced(key: str, text: str, method: str) -> SpikewireError:
    """Return the error for a flag of another method, or of none."""
    if key == "sparsity":
        return not_sparsity("--sparsity", text, "--connectivity {}")
    if others := _owners(key):
        return SpikewireError(f"{flag(key)}: belongs to {', '.join(others)}, not to {method!r}")
    return unknown("flag", flag(key), map(flag, [*settings(), *method_fields(method)]))


def _read(path: Path) -> dict[str, Any]:
    """Return a TOML file's table."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        inside = path / "config.toml"  # of a run
        hint = f"; did you mean {inside}?" if inside.is_file() else ""
        raise SpikewireError(f"{path}: cannot be read: {error.strerror}{hint}") from None
    except (ValueError, RecursionError) as error:  # malformed, wrong encoding, nested too deeply
        raise SpikewireError(f"{path}: is not TOML: {error}") from None
