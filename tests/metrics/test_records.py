"""Totals, energy and firing figures of a measurement."""

import math

import pytest
import torch
from torch import nn

from spikewire.metrics import Costs, Energy, Firing, measure
from spikewire.nn import models

torch.set_num_threads(1)


def test_energy_counts_memory_separately():
    measured = measure(nn.Linear(10, 10), torch.ones(1, 10))
    assert measured.energy().compute == pytest.approx(90.0)
    assert measured.energy().memory == pytest.approx(500.0)
    costs = Costs(accumulate=0.1, weight_read=0)
    assert measured.energy(costs) == Energy(pytest.approx(10.0), 0.0)


def test_silent_and_saturated_fractions():
    firing = Firing("lif", torch.tensor([0.0, 0.0, 0.5, 1.0]))
    assert (firing.rate, firing.silent, firing.saturated) == (0.375, 0.5, 0.25)


def test_row_is_flat_and_finite():
    model = models.build("digits-mlp", time_steps=2)
    row = measure(model, torch.rand(4, 1, 8, 8)).row()
    assert all(isinstance(v, int | float) and math.isfinite(v) for v in row.values())
