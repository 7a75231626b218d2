"""Settings as dataclass fields: declaration, validation, values from text and as text.

::

    @dataclass(frozen=True, kw_only=True)
    class Magnitude(Masked):
        begin: float = setting(0.1, "fraction of the run before pruning begins", within="[0, 1)")
        ramp: float = setting(0.6, "fraction of the run at its end", within="(begin, 1]")

        def __post_init__(self) -> None:
            validate(self)
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field
from dataclasses import fields as dataclass_fields
from functools import cache
from importlib import import_module
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from spikewire.errors import SpikewireError, check, check_word

INFINITY = float("inf")
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def setting(
    default: Any,
    help: str,
    *,
    within: str = "",
    choices: tuple[str, ...] = (),
    forms: tuple[str, ...] = (),
    free: bool = False,
) -> Any:
    """Declare a setting: a dataclass field with a help text and the values it accepts.

    Args:
        default: value where none is given; ``dataclasses.MISSING`` where one must be given.
        help: one line for ``--help`` and the documentation.
        within: interval of valid numbers such as ``"(0, 1]"`` or ``"[1, inf)"``; an end may be the
            name of another field of the same class. In a tuple it holds for every element.
        choices: the valid words; one with a colon, ``"module:REGISTRY"``, stands for the names in
            that registry.
        forms: forms of further valid texts, capitals for what varies: ``"npz:FILE"``.
        free: whether the setting may change when a run is resumed, because it does not decide what
            is computed.

    Returns:
        The dataclass field.

    Example:
        >>> ramp: float = setting(0.5, "fraction of the run until the target", within="(0, 1]")
    """
    Interval.parse(within)
    rules = {"help": help, "within": within, "choices": choices, "forms": forms, "free": free}
    return field(default=default, metadata=rules)


@dataclass(frozen=True)
class Interval:
    """An interval of numbers whose ends are numbers or names of fields."""

    text: str
    low: str
    high: str
    closed_low: bool
    closed_high: bool

    @classmethod
    @cache
    def parse(cls, text: str) -> "Interval | None":
        """Return the interval that `text` describes, None for an empty text."""
        if not text:
            return None
        found = re.fullmatch(r"([\[(])([^,]+), ([^,]+)([\])])", text)
        if found is None:
            raise ValueError(f"{text!r} is not an interval like '(0, 1]'")
        left, low, high, right = found.groups()
        return cls(text, low, high, left == "[", right == "]")

    def contains(self, value: float, owner: object) -> bool:
        """Return whether `value` is inside; names of fields are read from `owner`."""
        low, high = (_end(end, owner) for end in (self.low, self.high))
        above = value >= low if self.closed_low else value > low
        below = value <= high if self.closed_high else value < high
        return above and below

    def __str__(self) -> str:
        if self.low == "-inf":
            return f"at most {self.high}" if self.closed_high else f"below {self.high}"
        if self.high == "inf":
            return f"{self.low} or more" if self.closed_low else f"above {self.low}"
        return f"in {self.text}"


def _end(end: str, owner: object) -> float:
    try:
        return float(end)
    except ValueError:
        return getattr(owner, end)


def declared(kind: type) -> dict[str, Field]:
    """Return the settings of a dataclass by name, in the order of their declaration."""
    return {rule.name: rule for rule in dataclass_fields(kind) if "help" in rule.metadata}


def defaults(kind: type) -> dict[str, Any]:
    """Return the default of every setting by name; `MISSING` where a value must be given."""
    return {name: getattr(kind, name, MISSING) for name in declared(kind)}


def values(instance: Any) -> dict[str, Any]:
    """Return the value of every setting of an instance by name."""
    return {name: getattr(instance, name) for name in declared(type(instance))}


def choices_of(rule: Field) -> tuple[str, ...]:
    """Return the words a setting accepts, empty where it accepts any."""
    return tuple(word for choice in rule.metadata["choices"] for word in _words(choice))


def _words(choice: str) -> Iterator[str]:
    module, colon, registry = choice.partition(":")
    yield from getattr(import_module(module), registry) if colon else [choice]


def accepted(rule: Field) -> str:
    """Return what a setting accepts as text for help, empty where it accepts any value."""
    words = (*choices_of(rule), *rule.metadata["forms"])
    return f"one of {', '.join(words)}" if words else str(rule.metadata["within"])


def has_form(text: str, form: str) -> bool:
    """Return whether a text has a form such as ``"npz:FILE"``: capitals stand for any text.

    Args:
        text: the text to compare.
        form: what it must look like.

    Example:
        >>> has_form("npz:mine.npz", "npz:FILE"), has_form("mnist", "npz:FILE")
        (True, False)
    """
    parts = re.split("([A-Z]+)", form)
    pattern = "".join(".+" if part.isupper() else re.escape(part) for part in parts)
    return re.fullmatch(pattern, text, re.DOTALL) is not None


def describe(rule: Field) -> str:
    """Return the help text of a setting, with the values it accepts."""
    values = accepted(rule)
    return f"{rule.metadata['help']}; {values}" if values else rule.metadata["help"]


def document(kind: type) -> None:
    """Append to the docstring of a class its settings as arguments, with ranges and defaults."""
    lines = [
        f"        {name}: {describe(rule)} (default {show(getattr(kind, name, 'none'))}).\n"
        for name, rule in declared(kind).items()
    ]
    kind.__doc__ = f"{(kind.__doc__ or '').rstrip()}\n\n    Args:\n{''.join(lines)}"


def validate(instance: Any) -> None:
    """Check every setting of `instance`, and convert whole numbers to floats where declared so.

    Args:
        instance: a dataclass instance, frozen or not; usually called in ``__post_init__``.

    Raises:
        SpikewireError: for the first value of the wrong type, outside its interval, or not one of
            its choices.
    """
    for rule in dataclass_fields(instance):
        if rule.init and "help" not in rule.metadata and rule.default_factory is MISSING:
            kind = type(instance).__name__
            raise TypeError(f"{kind}.{rule.name}: declare it with setting(default, help, ...)")
    for rule in declared(type(instance)).values():
        kind = _hints(type(instance))[rule.name]
        value = convert(rule.name, getattr(instance, rule.name), kind)
        object.__setattr__(instance, rule.name, value)
    for rule in declared(type(instance)).values():  # an interval may name a later field
        _check(rule, getattr(instance, rule.name), instance)


def check_value(rule: Field, value: Any, owner: type) -> Any:
    """Return one value converted and checked as `validate` would, without an instance."""
    value = convert(rule.name, value, _hints(owner)[rule.name])
    _check(rule, value, owner)
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _check(rule: Field, value: Any, owner: object) -> None:
    interval = Interval.parse(rule.metadata["within"])
    for part in value if isinstance(value, tuple) else [value]:
        if part is None:
            continue
        forms = rule.metadata["forms"]
        if (words := choices_of(rule)) and not any(has_form(part, form) for form in forms):
            check_word(rule.name, part, (*words, *forms))
        expected = f"finite and {interval}" if part in (INFINITY, -INFINITY) else str(interval)
        expected += percentage(part) if "fraction" in rule.metadata["help"] else ""
        check(interval is None or interval.contains(part, owner), rule.name, value, expected)


def convert(name: str, value: Any, kind: Any) -> Any:
    """Return `value` as the declared type; a whole number is a number too.

    Args:
        name: the setting, for the error.
        value: the value to convert; text is accepted for tuples (``"a,b"``, ``"none"``).
        kind: the annotated type: int, float, bool, str, ``tuple[X, ...]``, each perhaps optional.

    Raises:
        SpikewireError: if the value is of another type.
    """
    if get_origin(kind) in (Union, UnionType):
        return None if value is None else convert(name, value, _not_none(kind))
    if get_origin(kind) is tuple:
        return tuple(convert(name, part, get_args(kind)[0]) for part in _parts(value, kind))
    if isinstance(value, Integral) and not isinstance(value, bool):
        check(-(2**63) <= int(value) < 2**63, name, "a number of that size", "below 2^63")
    if kind in (int, float):
        fits = isinstance(value, Integral if kind is int else Real) and type(value) is not bool
        hint = _as_number(value) if kind is float else ""
        check(fits, name, value, KINDS[kind] + hint)
        return kind(value)  # pyright: ignore[reportArgumentType]
    if kind not in KINDS:
        raise TypeError(f"{name}: settings of type {kind} are not supported")
    check(type(value) is kind, name, value, KINDS[kind])
    check(kind is not str or _writable(str(value)), name, value, "UTF-8 text without NUL")
    return value


def percentage(value: Any) -> str:
    """Return how to write a percentage, for the error about a fraction; empty for other values.

    Args:
        value: what was given for a fraction.

    Example:
        >>> percentage(5), percentage(0)
        (': 0.05 for 5%', '')
    """
    is_number = isinstance(value, int | float) and 1 < value <= 100
    return f": {float(value) / 100:g} for {value:g}%" if is_number else ""


def _as_number(value: Any) -> str:
    """Return how to write ``"5%"`` or ``"0,5"``, for the error; empty for other values."""
    found = isinstance(value, str) and re.fullmatch(r"\s*(\d*[.,]?\d+)\s*(%?)\s*", value)
    if not found or not (found[2] or "," in found[1]):
        return ""
    number = float(found[1].replace(",", ".")) / (100 if found[2] else 1)
    return f": {number:g} for {value.strip()}"


def _not_none(kind: Any) -> Any:
    return next(one for one in get_args(kind) if one is not NoneType)


def _parts(value: Any, kind: Any) -> list[Any]:
    """Return the elements of a list, or of a text with commas."""
    if isinstance(value, str):
        words = [] if value == "none" else map(str.strip, value.split(","))
        return [parse(word, get_args(kind)[0]) for word in words if word]
    return list(value) if isinstance(value, list | tuple) else [value]


def _writable(text: str) -> bool:
    """Return whether the text can be written to a file and be part of a path."""
    return not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text)


def parse(text: str, kind: Any) -> Any:
    """Return what TOML would have read; text of another type is left for `convert` to refuse."""
    if get_origin(kind) in (Union, UnionType):
        kind = _not_none(kind)
    try:
        if kind is bool:
            return {"true": True, "false": False}.get(text.lower(), text)
        return kind(text) if kind in (int, float) else text
    except ValueError:
        return text


def show(value: Any) -> str:
    """Return a value as one would type it at a shell."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value in (None, "") else str(value)


def to_toml(values: Mapping[str, Any]) -> str:
    """Return ``key = value`` lines of TOML; None is left out."""
    return "".join(
        f"{key} = {_toml(value)}\n" for key, value in values.items() if value is not None
    )


def _toml(value: Any) -> str:
    """Return one value as TOML; JSON's strings are TOML's, except for DEL."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def only_one(instance: Any, *names: str) -> None:
    """Raise if more than one of these settings is given.

    Raises:
        SpikewireError: naming the first two that exclude each other.
    """
    given = [name for name in names if getattr(instance, name) is not None]
    if len(given) > 1:
        raise SpikewireError(f"{given[0]}: give either {given[0]} or {given[1]}, not both")
