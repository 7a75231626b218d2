"""What a run keeps of its network for the pictures of the report, against slow computations."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from spikewire import data
from spikewire.errors import SpikewireError
from spikewire.nn import LIF
from spikewire.nn.layers import Spiking
from spikewire.nn.neurons import PLIF
from spikewire.nn.recurrent import Recurrent
from spikewire.report import load
from spikewire.runs.rundir import RunDir
from spikewire.runs.snapshots import MOST, Snapshots, even_indices
from spikewire.train.snapshots import keep_activity, keep_input_layer

torch.set_num_threads(1)


def potentials(currents, tau=2.0, threshold=1.0):
    """Return membrane potentials and spikes of LIF neurons [time, neuron], one at a time."""
    membrane, spikes = np.zeros_like(currents), np.zeros_like(currents)
    for neuron in range(currents.shape[1]):
        u = 0.0
        for t, current in enumerate(currents[:, neuron]):
            m = u + (current - u) / tau
            fired = m >= threshold
            membrane[t, neuron], spikes[t, neuron] = m, fired
            u = 0.0 if fired else m
    return membrane, spikes


def test_the_input_layer_is_kept_over_training(trained):
    kept = load(trained / "gradr-a").snapshots
    weights, masks = RunDir(trained / "gradr-a").load_model()
    assert kept.epochs.tolist() == [1, 2, 3]
    assert kept.layer.tolist() == ["fc1.weight"]
    assert np.array_equal(kept.fan_out[-1], masks["fc1.weight"].sum(0).reshape(8, 8))
    assert kept.fan_out[0].sum() > kept.fan_out[-1].sum()
    rows = even_indices(256, 12)
    last = weights["fc1.weight"][rows].reshape(-1, 8, 8).half().numpy()
    assert np.array_equal(kept.fields[-1], last)


def test_the_activity_of_the_first_test_image_follows_the_equations(trained):
    run = load(trained / "gradr-a")
    kept, (weights, _) = run.snapshots, RunDir(trained / "gradr-a").load_model()
    digits = data.load("digits")
    images = digits.normalised(run.config.pixel_mean, run.config.pixel_std)
    image = (digits.test_images[0].double() / 255 - images.mean[0]) / images.std[0]
    current = np.tile(weights["fc1.weight"].double().numpy() @ image.numpy().ravel(), (4, 1))
    membrane, spikes = potentials(current, run.config.tau, run.config.threshold)
    shown = even_indices(256, 48)
    assert np.array_equal(kept.spikes[0], spikes[:, shown])
    assert kept.membrane[0] == pytest.approx(membrane[:, shown], abs=1e-4)
    second = spikes @ weights["fc2.weight"].double().numpy().T
    membrane, spikes = potentials(second, run.config.tau, run.config.threshold)
    assert np.array_equal(kept.spikes[1, :, :10], spikes)
    assert not kept.spikes[1, :, 10:].any()
    assert (kept.neurons.tolist(), kept.sizes.tolist()) == (["lif1", "lif2"], [256, 10])
    assert kept.label.tolist() == [int(digits.test_labels[0])]
    assert kept.image.shape == (8, 8, 1)


def test_the_confusion_matrix_counts_the_test_images(trained):
    run = load(trained / "dense")
    matrix, labels = run.snapshots.confusion, data.load("digits").test_labels
    assert matrix.sum(1).tolist() == torch.bincount(labels.long(), minlength=10).tolist()
    assert np.trace(matrix) / matrix.sum() == pytest.approx(run.last["accuracy"])


def test_kernels_of_a_first_convolution_are_kept():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), LIF(), nn.Flatten(), nn.Linear(16, 2))
    masks = {"0.weight": torch.rand(4, 3, 3, 3) < 0.5}
    kept = Snapshots()
    keep_input_layer(kept, 1, model, masks, (3, 4, 4))
    slow = sum(model[0].weight[:, c] * masks["0.weight"][:, c] for c in range(3))
    assert torch.equal(torch.from_numpy(kept.fields[0]), slow.detach().half())
    assert kept.fan_out.size == 0
    Snapshots.of(kept.arrays())
    plain = Snapshots()
    keep_input_layer(plain, 1, model, masks, (5,))
    assert not plain.epochs.size


def test_a_recurrent_layer_is_kept_and_neurons_of_other_kinds_are_not():
    torch.manual_seed(0)
    layers = {"fc": nn.Linear(6, 9), "cells": Recurrent(9)}
    model = Spiking(layers, input_shape=(6,), classes=9, temporal=True)
    inputs = 3 * torch.rand(7, 2, 6)
    kept = Snapshots()
    keep_activity(kept, model, inputs, 1, temporal=True)
    assert kept.neurons.tolist() == ["cells.cell"]
    expected = model(inputs)[:, 0]
    assert expected.any()
    assert torch.equal(torch.from_numpy(kept.spikes[0]).float(), expected)
    Snapshots.of(kept.arrays())

    learnt, batch = Spiking({"fc": nn.Linear(6, 9), "plif": PLIF(tau=3.0)}), inputs[0]
    also = Snapshots()
    keep_activity(also, learnt, batch, 1)
    current = learnt.fc(batch)[:1].detach().double().numpy()
    slow = potentials(np.tile(current, (8, 1)), tau=3.0)
    assert also.membrane[0] == pytest.approx(slow[0], abs=1e-5)

    class Odd(LIF):
        def forward(self, current):
            return 1 - super().forward(current)

    other = Snapshots()
    keep_activity(other, Spiking({"fc": nn.Linear(6, 9), "odd": Odd()}), inputs[0], 1)
    assert not other.neurons.size


@given(st.integers(1, 300), st.integers(1, 60))
def test_even_indices_are_distinct_and_reach_both_ends(size, count):
    found = even_indices(size, count)
    assert len(set(found.tolist())) == len(found) == min(size, count)
    assert found[0] == 0
    assert min(size, count) == 1 or found[-1] == size - 1
    assert even_indices(20, MOST).tolist() == [0, 4, 8, 11, 15, 19]


def test_damaged_snapshots_are_reported_and_the_rest_is_shown(runs):
    path = runs / "dense" / "snapshots.npz"
    arrays = dict(np.load(path))
    np.savez(path, **{**arrays, "spikes": arrays["spikes"] + 7})
    run = load(runs / "dense")
    assert run.snapshots is None
    assert "snapshots.npz: is damaged (spikes is not in its range)" in run.problem
    assert run.last["accuracy"] > 0
    path.write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(SpikewireError, match=r"snapshots\.npz: is damaged"):
        RunDir(runs / "dense").load_snapshots()


def test_truncated_snapshots_are_those_of_a_shorter_run(trained):
    kept = load(trained / "gradr-a").snapshots
    kept.truncate(2)
    assert kept.epochs.tolist() == [1, 2]
    assert (len(kept.fan_out), len(kept.fields), kept.confusion.size) == (2, 2, 0)
    Snapshots.of(kept.arrays())
    kept.truncate(0)
    assert all(not value.size for value in kept.arrays().values())
