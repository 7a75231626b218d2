"""Flags from declared settings; every mistake is a one-line error."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from spikewire.config import (
    Config,
    flag,
    method_fields,
    presets,
    resolve,
    settings,
    starting_preset,
)
from spikewire.errors import SpikewireError, check, not_sparsity, unknown
from spikewire.fields import convert, describe, parse, show

HELP = {"-h", "--help"}
MANY = 20  # flags that a one-line error does not list


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one-line `SpikewireError`s, with the nearest valid flag."""

    def __init__(self, command: str, about: str) -> None:
        super().__init__(f"spikewire {command}", description=about, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        _, missing, names = message.partition("arguments are required: ")
        text = f"{names}: is missing" if missing else message.removeprefix("argument ")
        raise SpikewireError(f"{text}; see {self.prog} --help")

    def read(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values given, by name."""
        for word in arguments:
            name, _, value = word.partition("=")
            check(value != "--" or name[:1] != "-", name, value, "a value or a name such as ./--")
        found, rest = self.parse_known_args(arguments)
        for word in rest:
            if word.startswith("-"):
                name, equals, value = word.partition("=")
                raise self.no_flag(name, value if equals else "".join(rest[1:2]))
            split = any(part.endswith(",") for part in arguments)
            hint = "a list has no spaces after its commas; " if split else ""
            raise SpikewireError(f"{word}: not expected here; {hint}see {self.prog} --help")
        if vars(found).get("out") == "":
            raise SpikewireError("--out: is empty; name a path, or leave it out")
        return vars(found)

    def no_flag(self, word: str, value: str) -> SpikewireError:
        """Return the error for an unknown flag; many valid flags are not listed in it."""
        if word == "--sparsity" and "--connectivity" in self._option_string_actions:
            return not_sparsity(word, value, "--connectivity {}")
        if (
            word in ("--synapses", "--synops", "--bytes")
            and "--unit" in self._option_string_actions
        ):
            return SpikewireError(
                f"flag: unknown {word!r}; did you mean --unit {word[2:]} --targets {value or 'X'}?"
            )
        if word == "--resume" and self.prog.endswith(" frontier"):
            return SpikewireError(f"flag: unknown {word!r}; the same command again resumes")
        error = unknown("flag", word, self._option_string_actions)
        if len(self._option_string_actions) <= MANY:
            return error
        return SpikewireError(f"{str(error).partition(' known: ')[0]} see {self.prog} --help")


def add_settings(parser: Parser, arguments: Sequence[str], but: Sequence[str] = ()) -> None:
    """Add a flag for each setting and each method's field, except those in `but`.

    Where the arguments ask for help, it shows the values of the preset they name as defaults.
    """
    from spikewire.methods import METHODS

    parser.usage = f"{parser.prog} [flags]"
    title, values = shown_values(parser, arguments, but)
    known = ", ".join(sorted(presets()))
    shown = f"default: the preset of the data set; below, the values of {title} are shown"
    about = f"start from {known} ({shown})"
    parser.add_argument("--preset", help=about)
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings")
    group = parser.add_argument_group("settings")
    for key, rule in settings().items():
        if key not in but:
            about = f"{describe(rule)} (default {show(getattr(values, key))})"
            add_flag(group, key, about, rule.type is bool)
    group = parser.add_argument_group("fields of the method")
    owners: dict[str, dict[str, list[str]]] = {}
    switches = set()
    for method in METHODS:
        for key, rule in method_fields(method).items():
            owners.setdefault(key, {}).setdefault(describe(rule), []).append(method)
            switches |= {key} if rule.type is bool else set()
    for key in sorted(owners.keys() - set(but)):
        parts = (f"[{', '.join(methods)}] {about}" for about, methods in owners[key].items())
        about = "; ".join(parts)
        if key in values.options:
            about += f" (default {show(values.options[key])} for {values.method})"
        add_flag(group, key, about, key in switches)


def shown_values(
    parser: Parser, arguments: Sequence[str], but: Sequence[str]
) -> tuple[str, Config]:
    """Return where the values that help shows come from, and these values."""
    given: dict[str, str] = {}
    if HELP & {*arguments}:
        peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        peek.error = parser.error
        for key in {"preset", "config", "dataset", "method"} - {*but}:
            peek.add_argument(flag(key), default=argparse.SUPPRESS)
        words = [word for word in arguments if word not in HELP]
        given = vars(peek.parse_known_args(words)[0])
    title = given.get("config") or starting_preset(given) or "the defaults"
    preset, file = given.pop("preset", None), given.pop("config", None)
    return title, resolve(preset, file, given)


@contextmanager
def errors_name_flags(given: Mapping[str, Any]) -> Iterator[None]:
    """Let an error about a setting that was given as a flag name the flag: ``--device: ...``."""
    try:
        yield
    except SpikewireError as error:
        key, colon, rest = str(error).partition(":")
        if colon and given.get(key) is not None and key not in given.values():  # no directory
            raise type(error)(f"{flag(key)}:{rest}") from None
        raise


def add_flag(group: Any, key: str, about: str, switch: bool) -> None:
    """Add ``--some-key VALUE``; a switch may leave out ``true``. The text goes to `config`."""
    extra = {"nargs": "?", "const": "true"} if switch else {}
    about, name = about.replace("%", "%%"), flag(key)
    group.add_argument(name, dest=key, metavar="X", default=argparse.SUPPRESS, help=about, **extra)


def number(name: str, text: str) -> float:
    """Return the text of a flag as a number."""
    return convert(name, parse(text, float), float)


def whole(name: str, text: str, least: int = 1) -> int:
    """Return the text as a whole number of at least `least`."""
    valid = text.isdecimal() and len(text) < 19 and int(text) >= least
    check(valid, name, text, f"a whole number, {least} or more")
    return int(text)
