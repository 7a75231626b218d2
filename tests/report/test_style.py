"""The styles of the methods are distinct, also by a colour-blind reader and on paper."""

from itertools import combinations

import numpy as np
import pytest

from spikewire.methods import METHODS
from spikewire.report import STYLES
from spikewire.report.plot import scaled_size
from spikewire.report.style import DARK, LIGHT, Style, style_of

NEAR = 20  # distance in CIELAB below which two thin lines of different colour look alike
# linear RGB as seen with complete protanopia, deuteranopia, tritanopia: Machado et al., 2009
VISIONS = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
         [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
         [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
         [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
     [0.0193339, 0.1191920, 0.9503041]]
)  # fmt: skip


def linear(colour):
    """Return linear RGB of "#rrggbb", by the sRGB standard."""
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Return CIELAB of linear RGB, white being (1, 1, 1)."""
    x = XYZ @ np.clip(rgb, 0, 1) / XYZ.sum(1)
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one, other):
    """Return the contrast of two colours, by WCAG."""
    low, high = sorted(float(XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_every_method_has_a_style_of_its_own():
    assert set(STYLES) == set(METHODS)
    for field in ("colour", "marker"):
        assert len({getattr(style, field) for style in STYLES.values()}) == len(METHODS)


@pytest.mark.parametrize("vision", VISIONS)
def test_methods_of_near_colours_differ_in_marker_and_dash(vision):
    seen = {name: lab(VISIONS[vision] @ linear(style.colour)) for name, style in STYLES.items()}
    near = [
        (one, other)
        for one, other in combinations(STYLES, 2)
        if np.linalg.norm(seen[one] - seen[other]) < NEAR
    ]
    assert (vision == "full") == (near == [])
    for one, other in near:
        assert STYLES[one].marker != STYLES[other].marker
        assert STYLES[one].dash != STYLES[other].dash, (one, other)


def test_every_colour_is_readable_on_light_and_dark():
    for style in STYLES.values():
        assert all(contrast(style.colour, theme.paper) >= 3 for theme in (LIGHT, DARK)), style


def test_a_method_without_a_style_is_drawn_in_one_that_no_other_has():
    assert isinstance(style_of("mine"), Style)
    assert style_of("mine") not in STYLES.values()
    assert style_of("mine").marker not in {style.marker for style in STYLES.values()}


def test_a_narrow_figure_keeps_room_for_its_text():
    assert scaled_size((5.4, 3.6), None) == (5.4, 3.6)
    width, height = scaled_size((5.4, 3.6), 3.3)
    assert width == 3.3
    assert 3.6 * 3.3 / 5.4 < height < 3.6
