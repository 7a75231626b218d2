"""Operations of a packed network: those of `measure`, and those of a count by convolution."""

import numpy as np
import pytest
import torch
from networks import conv_net
from runtime.test_feedback import make_frames
from runtime.test_network_files import NAMES, make
from torch.nn import functional

import spikewire
from spikewire.formats.network import Network, Stage
from spikewire.formats.neuron import Neuron
from spikewire.formats.trace import trace_model
from spikewire.nn import scale_to_fire_
from spikewire.runtime import Runtime


def close(found, expected):
    """Equal but for the spikes that another order of additions moves."""
    assert found.macs == pytest.approx(expected.macs)
    assert found.synops == pytest.approx(expected.synops, rel=0.02)


def test_a_count_by_hand():
    """2 pixels -> 2 neurons -> 1: pixel 0 has 2 weights, pixel 1 one; only neuron 0 goes on."""
    neuron = Neuron(None, threshold=1.0, rest=0.0)
    stages = (
        dense_stage("fc1", [[1.0, 1.0], [0.5, 0.0]], neuron),
        dense_stage("fc2", [[2.0, 0.0]], neuron),
    )
    network = Network(stages=stages, input_shape=(2,), time_steps=3, classes=("a",))
    runtime = Runtime(network)
    images = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.25, 0.0], [0.0, 0.0]])
    found = runtime.count_operations(images)
    assert found.macs == (2 + 3 + 2 + 0) / 4, "pixels are multiplied once, not at every step"
    assert found.synops == (3 + 3 + 0 + 0) / 4, "neuron 0 fires at all 3 steps of two images"


def dense_stage(name, rows, neuron):
    weight = np.array(rows, np.float32)
    index = np.flatnonzero(weight)
    bias = np.zeros(len(weight), np.float32)
    values = weight.ravel()[index]
    return Stage(
        name=name, shape=weight.shape, index=index, values=values, bias=bias, neuron=neuron
    )


@pytest.mark.parametrize("pool", ["max", "none"])
@pytest.mark.parametrize("kind", ["half", "soft if"])
def test_convolutions_cost_what_measure_counts(pool, kind):
    model = conv_net(pool=pool, kind=kind, padding=1)
    images = torch.randn(16, *model.input_shape)
    runtime = Runtime(trace_model(model), exact=True)
    found = runtime.count_operations(images)
    close(found, spikewire.measure(model, images))
    with torch.inference_mode():
        assert runtime.count_operations(images) == found


@pytest.mark.parametrize("name", ["sew-resnet18", "resnet19", "dpap"])
def test_strides_and_shortcuts_cost_what_measure_counts(name):
    assert name in NAMES
    """`measure` takes an average of spikes, before the classifier, for a value, not for spikes."""
    model, images = make(name)
    found = Runtime(trace_model(model), exact=True).count_operations(images)
    expected = spikewire.measure(model, images)
    assert found.macs == pytest.approx(expected.layers[0].macs)
    averaged = expected.macs - expected.layers[0].macs
    assert averaged < 0.001 * expected.synops
    assert found.synops == pytest.approx(expected.synops, rel=0.02)


def test_a_summed_pool_costs_one_operation_per_spike():
    """The reference convolves numbers of spikes with the mask of the weights."""
    model = conv_net(pool="avg", padding=1)
    images = torch.randn(8, *model.input_shape)
    network = trace_model(model)
    runtime = Runtime(network, exact=True)
    spikes = runtime.record_spikes(images)
    synops = 0.0
    for number, stage in enumerate(network.stages[1:], 1):
        before = network.stages[number - 1]
        x = spikes[before.name].flatten(0, 1).double()
        if before.pool:
            windows = x.unfold(2, 2, 2).unfold(3, 2, 2)
            x = windows.sum((-1, -2))
        mask = torch.from_numpy(stage.to_dense() != 0).double()
        if stage.is_conv:
            out = functional.conv2d(x, mask, None, stage.stride, stage.padding)
        else:
            out = x.flatten(1) @ mask.T
        synops += float(out.sum()) / len(images)
    assert any(stage.pool for stage in network.stages)
    assert runtime.count_operations(images).synops == pytest.approx(synops)


def test_recurrent_synapses_are_counted():
    torch.manual_seed(1)
    sizes = {"input_shape": (12,), "classes": 7, "hidden": 20, "temporal": True}
    model = spikewire.build("recurrent", time_steps=9, **sizes, readout="current").eval()
    frames = make_frames()
    scale_to_fire_(model, frames)
    runtime = Runtime(trace_model(model, frames), exact=True)
    found = runtime.count_operations(frames, frames=True)
    close(found, spikewire.measure(model, frames, time_first=True))
    events = (frames > 0.5).float()
    found = runtime.count_operations(events, frames=True)
    assert found.macs == 0, "inputs of 0 and 1 are spikes"
    close(found, spikewire.measure(model, events, time_first=True))


def test_fewer_time_steps_cost_less_and_the_command_prints_it(call):
    card = spikewire.zoo.card("digits-5")
    code, out, _ = call("predict", "zoo:digits-5", "--input", "digits", "--count")
    assert code == 0
    assert after("SynOps per image", out) == pytest.approx(card.synops, rel=0.01)  # 16-bit weights
    assert after("multiply-accumulates per image", out) == round(card.macs)
    few = call("predict", "zoo:digits-5", "--input", "digits", "--count", "--time-steps", "2")[1]
    assert after("SynOps per image", few) < 0.3 * card.synops
    for more in (["--json"], ["--early-exit", "0.5"]):
        code, _, error = call("predict", "zoo:digits-5", "--input", "digits", "--count", *more)
        assert code != 0
        assert "--count: True is not allowed" in error


def after(name, text):
    """Return the number that is printed after a name."""
    return float(text.split(name)[1].split()[0].replace(",", ""))
