"""Numbers and names as text."""

import pytest

from spikewire.text import percent, printable, size


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(1.0, "100.00%"), (0.1234, "12.34%"), (0.01, "1.00%"), (0.00734, "0.734%"), (0.0, "0.00%")],
)
def test_percentages_have_a_third_digit_below_one_percent(fraction, text):
    assert percent(fraction) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0 kB"), (12_345, "12.3 kB"), (999_999, "1000.0 kB"), (4_560_000, "4.56 MB")],
)
def test_sizes_are_in_kilobytes_or_megabytes(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [x] é 猫", "plain [x] é 猫"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\r\t\0\x7f\x9b", r"a\nb\r\t\x00\x7f\x9b"),
        ("\u202eevil\u2028\udcff", r"\u202eevil\u2028\udcff"),
    ],
)
def test_characters_that_control_a_terminal_are_escaped(text, shown):
    assert printable(text) == shown
    assert printable(text).isprintable()
