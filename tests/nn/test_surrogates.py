"""Surrogate gradients: each derivative is that of its smooth step."""

import pytest
import torch

from spikewire.nn.surrogates import SURROGATES


@pytest.mark.parametrize("name", sorted(SURROGATES))
def test_surrogate_is_the_slope_of_a_smooth_step(name):
    primitive, derivative = SURROGATES[name]
    x, h = torch.linspace(-3, 3, 602, dtype=torch.float64), 1e-6  # 602: no point on a kink
    slope = (primitive(x + h) - primitive(x - h)) / (2 * h)
    torch.testing.assert_close(derivative(x), slope, rtol=1e-6, atol=1e-6)
    ends = primitive(torch.tensor([-1e6, 0.0, 1e6], dtype=torch.float64))
    torch.testing.assert_close(
        ends, torch.tensor([0, 0.5, 1], dtype=torch.float64), atol=1e-6, rtol=0
    )
    assert derivative(torch.zeros(1)) == 1
