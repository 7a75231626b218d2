"""Declared settings: intervals, choices, conversion, and the one-line errors."""

from dataclasses import dataclass, field, fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spikewire.errors import SpikewireError
from spikewire.fields import (
    Interval,
    accepted,
    check_value,
    choices_of,
    convert,
    declared,
    defaults,
    document,
    only_one,
    parse,
    setting,
    show,
    to_toml,
    validate,
    values,
)

COLOURS = {"red": 1, "blue": 2}


@dataclass(frozen=True, kw_only=True)
class Example:
    begin: float = setting(0.1, "start", within="[0, 1)")
    end: float = setting(0.5, "end", within="(begin, 1]")
    count: int = setting(3, "how many", within="[1, inf)")
    name: str = setting("auto", "colour", choices=("auto", f"{__name__}:COLOURS"))
    parts: tuple[int, ...] = setting((1,), "parts", within="[0, 9]")
    rate: float | None = setting(None, "rate", within="(0, inf)")
    on: bool = setting(False, "switch")
    tags: list[str] = field(default_factory=list)  # not a setting

    def __post_init__(self):
        validate(self)


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        ({"begin": 1.0}, "begin: 1.0 is not allowed; it must be in [0, 1)"),
        ({"begin": -0.1}, "begin: -0.1 is not allowed; it must be in [0, 1)"),
        ({"begin": float("nan")}, "begin: nan is not allowed; it must be in [0, 1)"),
        ({"end": 0.1}, "end: 0.1 is not allowed; it must be in (begin, 1]"),
        ({"begin": 0.6}, "end: 0.5 is not allowed; it must be in (begin, 1]"),
        ({"count": 0}, "count: 0 is not allowed; it must be 1 or more"),
        ({"count": 1.5}, "count: 1.5 is not allowed; it must be a whole number"),
        ({"count": True}, "count: True is not allowed; it must be a whole number"),
        ({"count": 2**63}, "count: 'a number of that size' is not allowed; it must be below 2^63"),
        ({"begin": "0.1"}, "begin: '0.1' is not allowed; it must be a number"),
        ({"begin": "5%"}, "begin: '5%' is not allowed; it must be a number: 0.05 for 5%"),
        ({"count": "5%"}, "count: '5%' is not allowed; it must be a whole number"),
        ({"begin": "1.2.3%"}, "begin: '1.2.3%' is not allowed; it must be a number"),
        ({"begin": None}, "begin: None is not allowed; it must be a number"),
        ({"rate": 0}, "rate: 0.0 is not allowed; it must be above 0"),
        ({"rate": float("inf")}, "rate: inf is not allowed; it must be finite and above 0"),
        ({"parts": (1, 10)}, "parts: (1, 10) is not allowed; it must be in [0, 9]"),
        ({"on": 1}, "on: 1 is not allowed; it must be true or false"),
        ({"name": "a\0b"}, "name: 'a\\x00b' is not allowed; it must be UTF-8 text without NUL"),
        ({"name": "rde"}, "name: unknown 'rde'; did you mean 'red'? known: auto, blue, red"),
    ],
)
def test_an_invalid_value_is_one_line_that_names_what_is_allowed(given_values, message):
    with pytest.raises(SpikewireError) as caught:
        Example(**given_values)
    assert str(caught.value) == message


def test_valid_values_are_converted_to_their_declared_types():
    example = Example(begin=0, end=np.float64(1.0), count=np.int64(7), parts=[1, 2], rate=2)
    assert type(example.begin) is float
    assert type(example.end) is float
    assert type(example.count) is int
    assert example.parts == (1, 2)
    assert example.rate == 2.0
    assert Example(name="blue").name == "blue"
    assert Example(parts="3,4").parts == (3, 4)
    assert Example(parts="none").parts == ()


def test_what_a_class_declares_can_be_read():
    assert list(declared(Example)) == ["begin", "end", "count", "name", "parts", "rate", "on"]
    assert defaults(Example)["end"] == 0.5
    assert values(Example(count=5))["count"] == 5
    assert "tags" not in values(Example())
    rules = {rule.name: rule for rule in fields(Example) if rule.name != "tags"}
    assert choices_of(rules["name"]) == ("auto", "red", "blue")
    assert accepted(rules["name"]) == "one of auto, red, blue"
    assert accepted(rules["end"]) == "(begin, 1]"
    assert accepted(rules["on"]) == ""
    assert check_value(rules["count"], 4, Example) == 4


@given(low=st.integers(-5, 5), size=st.integers(0, 5), value=st.floats(-12, 12), ends=st.data())
def test_an_interval_contains_what_its_comparisons_say(low, size, value, ends):
    left, right = ends.draw(st.sampled_from("[(")), ends.draw(st.sampled_from("])"))
    interval = Interval.parse(f"{left}{low}, {low + size}{right}")
    above = value >= low if left == "[" else value > low
    below = value <= low + size if right == "]" else value < low + size
    assert interval.contains(value, None) == (above and below)


@pytest.mark.parametrize("text", ["0, 1", "[0 1]", "[0, 1, 2]", "0 or more"])
def test_a_wrong_interval_is_a_mistake_of_the_programmer(text):
    with pytest.raises(ValueError, match="is not an interval"):
        setting(0.5, "wrong", within=text)


def test_text_is_read_as_toml_would_and_shown_as_typed():
    assert [parse("3", int), parse("0.5", float), parse("true", bool)] == [3, 0.5, True]
    assert parse("x", float) == "x", "left for convert to refuse"
    assert parse("2", float | None) == 2.0
    assert convert("x", None, float | None) is None
    assert [show(x) for x in (True, (1, 2), (), 0.5, None, "", "a")] == [
        "true", "1,2", "none", "0.5", "none", "none", "a",
    ]  # fmt: skip
    assert to_toml({"a": 1.0, "b": ("x", "y"), "c": None, "d": True, "e": "\x7f"}) == (
        'a = 1.0\nb = ["x", "y"]\nd = true\ne = "\\u007f"\n'
    )


def test_a_plain_field_and_an_unsupported_type_are_mistakes_of_the_programmer():
    @dataclass(frozen=True, kw_only=True)
    class Plain(Example):
        extra: float = 1.0

    @dataclass(frozen=True, kw_only=True)
    class Unsupported(Example):
        extra: dict[str, int] | None = setting(None, "no such type")

    with pytest.raises(TypeError, match=r"Plain\.extra: declare it with setting"):
        Plain()
    with pytest.raises(TypeError, match="extra: settings of type .* are not supported"):
        Unsupported(extra={"a": 1})


def test_the_docstring_gains_every_setting_with_range_and_default():
    @dataclass(frozen=True, kw_only=True)
    class Documented(Example):
        """First line."""

    document(Documented)
    assert Documented.__doc__.startswith("First line.\n\n    Args:\n")
    assert "        end: end; (begin, 1] (default 0.5).\n" in Documented.__doc__
    assert "        name: colour; one of auto, red, blue (default auto).\n" in Documented.__doc__


def test_of_settings_that_exclude_each_other_only_one_may_be_given():
    example = Example(rate=1.0)
    only_one(example, "rate")
    with pytest.raises(SpikewireError, match="^rate: give either rate or count, not both$"):
        only_one(example, "rate", "count")
