"""The neurons of a recorded network, compared with values that were computed by hand."""

import json

import numpy as np
import pytest
import torch
from compiled import run_over_time
from refusal import refused
from runtime.agreement import KERNELS

from spikewire.formats import Network, Neuron, Stage, coo
from spikewire.formats.neuron import step_, validate
from spikewire.runtime import Runtime

# What arrives, then the synaptic current, m and S of every time step. All are exact in float32.
HAND = {
    # i = i / 2 + x;  m = u + (i - u) / 2, fires at 1, then u = 0
    "hard": (
        Neuron(2.0, 1.0, 0.0, "hard", "divide", current_decay=0.5),
        [1.0, 1.0, 0.0, 2.0, 0.0],
        [1.0, 1.5, 0.75, 2.375, 1.1875],
        [0.5, 1.0, 0.375, 1.375, 0.59375],
        [0, 1, 0, 1, 0],
    ),
    # i = i / 4 + x;  m = u / 2 + i, minus 1 where it fired in the step before; fires above 1
    "delayed soft": (
        Neuron(2.0, 1.0, 0.0, "delayed soft", "decay", True, 0.25),
        [1.0, 0.5, 0.0, 1.0, 0.0],
        [1.0, 0.75, 0.1875, 1.046875, 0.26171875],
        [1.0, 1.25, -0.1875, 0.953125, 0.73828125],
        [0, 1, 0, 0, 0],
    ),
    # i = i / 2 + x;  m = u / 2 + i, but 0 where it fired in the step before
    "delayed hard": (
        Neuron(2.0, 1.0, 0.0, "delayed hard", "decay", True, 0.5),
        [1.0, 1.0, 4.0, 0.0, 0.0],
        [1.0, 1.5, 4.75, 2.375, 1.1875],
        [1.0, 2.0, 0.0, 2.375, 0.0],
        [0, 1, 0, 1, 0],
    ),
    # i = 3 i / 4 + x;  m = u + i, fires at 2, then u = m - (2 - 1); u begins at rest 1
    "no leak, soft": (
        Neuron(None, 2.0, 1.0, "soft", "divide", current_decay=0.75),
        [0.5, 0.25, 0.0, 0.0],
        [0.5, 0.625, 0.46875, 0.3515625],
        [1.5, 2.125, 1.59375, 1.9453125],
        [0, 1, 0, 0],
    ),
}


@pytest.mark.parametrize("kind", HAND)
def test_synaptic_currents_computed_by_hand(kind):
    neuron, arriving, currents, membranes, spikes = HAND[kind]
    validate(neuron)
    voltage, synaptic = torch.tensor([neuron.rest]), torch.zeros(1)
    for x, i, m, fires in zip(arriving, currents, membranes, spikes, strict=True):
        found = step_(neuron, torch.tensor([x]), voltage, synaptic)
        assert (synaptic.item(), found[1].item(), found[0].item()) == (i, m, fires)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", HAND)
def test_the_runtime_computes_the_same_by_hand(kind, kernels):
    neuron, arriving, _, membranes, spikes = HAND[kind]
    frames = torch.tensor(arriving).view(-1, 1, 1)
    for membrane, wanted in ((False, spikes), (True, membranes)):
        runtime = Runtime(make_network(neuron, membrane=membrane), kernels=kernels)
        assert runtime.run_frames(frames).flatten().tolist() == wanted


@pytest.mark.parametrize("kind", HAND)
def test_a_c_file_computes_the_same_by_hand(kind, need, tmp_path):
    need("gcc")
    neuron, arriving, _, membranes, spikes = HAND[kind]
    frames = torch.tensor(arriving).view(-1, 1, 1)
    steps = torch.arange(1, len(frames) + 1)
    for membrane, wanted in ((False, spikes), (True, membranes)):
        network = make_network(neuron, membrane=membrane)
        scores = run_over_time(network, frames, tmp_path, "fp32").flatten() * steps
        torch.testing.assert_close(scores, torch.tensor(wanted).float().cumsum(0))


def make_network(neuron, **fields):
    """One neuron behind one synapse of weight 1."""
    one = np.ones(1, np.float32)
    given = {"index": np.zeros(1, np.int64), "values": one, "bias": 0 * one, "neuron": neuron}
    stage = Stage(name="fc", shape=(1, 1), **given)
    sizes = {"input_shape": (1,), "time_steps": 5, "classes": ("0",)}
    return Network(stages=(stage,), **sizes, **fields)


def test_connection_lists_name_the_current_decay(tmp_path):
    network = make_network(HAND["hard"][0])
    coo.write(network, tmp_path / "out")
    (layer,) = json.loads((tmp_path / "out" / "network.json").read_text())["layers"]
    assert layer["neuron"]["current_decay"] == 0.5


@pytest.mark.parametrize("value", [1.0, 1.5, -0.1, float("nan"), float("inf"), 1e300, 1 - 1e-9])
def test_a_current_decay_outside_its_range_is_refused(value):
    neuron = Neuron(2.0, 1.0, 0.0, current_decay=value)
    refused(lambda: validate(neuron), "current_decay", "at least 0 and below 1")
