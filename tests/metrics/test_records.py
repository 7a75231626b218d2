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


def test_a_measurement_is_printed_as_a_table():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
    with torch.no_grad():
        model[0].weight[0] = 0
    lines = str(measure(model, torch.ones(2, 4))).splitlines()
    assert lines[0].split() == ["layer", "weights", "present", "connectivity", "SynOps", "MACs"]
    assert lines[1].split() == ["0.weight", "12", "8", "66.67%", "8", "0"]
    assert lines[2].split() == ["1.weight", "6", "6", "100.00%", "0", "4"]
    assert lines[3].split() == ["total", "18", "14", "77.78%", "8", "4"]
    assert lines[4] == "per sample (mean of 2): compute 0.0 nJ, memory 0.1 nJ"
    assert lines[5] == "synapses 77.78%, reached from the input 66.67%, alive 66.67%"
    assert lines[6] == "parameters 0.1 kB, packed 0.0 kB"


def test_a_compiled_model_is_measured_by_the_names_of_the_model_inside():
    model = models.build("digits-mlp", time_steps=2)
    images = torch.rand(4, 1, 8, 8)
    masks = {"fc1.weight": torch.rand(256, 64) < 0.1}
    plain = measure(model, images, masks)
    compiled = measure(torch.compile(model, backend="eager"), images, masks)
    assert compiled.row() == plain.row()
    assert [x.name for x in compiled.layers] == ["fc1.weight", "fc2.weight"]
