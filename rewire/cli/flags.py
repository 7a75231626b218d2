"""Flags from the dataclasses; each mistake in one line."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from rewire.config import flag, method_fields, presets, settings
from rewire.errors import RewireError, check, unknown


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one-line `RewireError`s, with the nearest right flag."""

    def __init__(self, command: str, about: str) -> None:
        super().__init__(f"rewire {command}", description=about, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise RewireError(message)

    def read(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values given, by name."""
        found, rest = self.parse_known_args(arguments)
        for word in rest:
            if word.startswith("-"):
                raise unknown("flag", word.partition("=")[0], self._option_string_actions)
            raise RewireError(f"{word}: not expected here; see {self.prog} --help")
        return vars(found)


def add_settings(parser: Parser, but: Sequence[str] = ()) -> None:
    """Add a flag for each setting and each method's field, except those in `but`."""
    from rewire.methods import METHODS

    parser.add_argument("--preset", help=f"start from {', '.join(sorted(presets()))} (digits)")
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings")
    group = parser.add_argument_group("settings")
    for key, rule in settings().items():
        if key not in but:
            about = f"{rule.metadata['help']} ({shown(rule.default)})"
            add_flag(group, key, about, rule.type is bool)
    group = parser.add_argument_group("fields of the method")
    owners: dict[str, list[str]] = {}
    for method in METHODS:
        for key in method_fields(method).keys() - set(but):
            owners.setdefault(key, []).append(method)
    for key, methods in sorted(owners.items()):
        rules = [method_fields(method)[key] for method in methods]
        about = f"{', '.join(methods)}: {rules[0].metadata.get('help', '')}"
        add_flag(group, key, about, all(rule.type is bool for rule in rules))


def add_flag(group: Any, key: str, about: str, switch: bool) -> None:
    """Add ``--some-key VALUE``; a switch may leave out ``true``. The text goes to `config`."""
    extra = {"nargs": "?", "const": "true"} if switch else {}
    about, name = about.replace("%", "%%"), flag(key)
    group.add_argument(name, dest=key, metavar="X", default=argparse.SUPPRESS, help=about, **extra)


def shown(value: Any) -> str:
    """Return a default as one would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value or "none")


def number(name: str, text: str) -> float:
    """Return the number a flag was given."""
    try:
        return float(text)
    except ValueError:
        raise RewireError(f"{name}: {text!r} is not allowed; it must be a number") from None


def whole(name: str, text: str) -> int:
    """Return the text as a whole number of at least 1."""
    check(text.isdecimal() and int(text) >= 1, name, text, "a whole number, 1 or more")
    return int(text)
