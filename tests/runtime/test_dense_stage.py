from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import conv_net
from runtime.agreement import KERNELS, assert_close, record_dense_stages

from spikewire.formats.network import Stage
from spikewire.formats.trace import trace_model
from spikewire.runtime import Runtime, dense


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("pool", ["max", "avg", "none"])
@pytest.mark.parametrize("readout", ["spikes", "current"])
def test_dense_stages_agree_up_to_rounding(kernels, pool, readout, monkeypatch):
    model = conv_net(pool=pool, kind="third", readout=readout)
    images = torch.randn(64, *model.input_shape)
    exact = Runtime(trace_model(model), kernels=kernels, exact=True)
    monkeypatch.setattr(dense, "MATMUL", -np.inf)  # dense is faster everywhere
    fast, names = Runtime(trace_model(model), kernels=kernels), record_dense_stages(monkeypatch)
    assert_close(exact.record_spikes(images), fast.record_spikes(images))
    assert names == {"conv1", "conv2", "fc"}
    wanted, stream = exact(images), fast.stream(64)
    steps = torch.stack([stream.step(images) for _ in range(len(wanted))])
    for got in (fast(images), steps):
        assert ((wanted - got).abs() > 1e-4).float().mean() <= 1e-3  # one of 1,920 numbers


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_dense_stages_keep_the_synaptic_current(kernels, threads, monkeypatch):
    network = trace_model(conv_net(pool="max", kind="third"))
    own = [s.neuron and s.neuron._replace(current_decay=0.6) for s in network.stages]
    pairs = zip(network.stages, own, strict=True)
    cuba = replace(network, stages=tuple(replace(s, neuron=n) for s, n in pairs))
    images = torch.randn(64, *network.input_shape)
    exact = Runtime(cuba, kernels=kernels, threads=threads, exact=True).record_spikes(images)
    without = Runtime(network, kernels=kernels, exact=True).record_spikes(images)
    assert all((spikes != without[name]).float().mean() > 0.01 for name, spikes in exact.items())
    monkeypatch.setattr(dense, "MATMUL", -np.inf)
    fast, names = Runtime(cuba, kernels=kernels), record_dense_stages(monkeypatch)
    assert_close(exact, fast.record_spikes(images))
    assert names == {"conv1", "conv2", "fc"}


@pytest.mark.parametrize("kernels", KERNELS)
def test_exact_never_uses_dense_torch(kernels, monkeypatch):
    model = conv_net()
    monkeypatch.setattr(dense, "MATMUL", -np.inf)
    names = record_dense_stages(monkeypatch)
    for batch in (1, 3):
        images = torch.randn(batch, *model.input_shape)
        Runtime(trace_model(model), kernels=kernels, exact=True)(images)
    assert not names


def is_faster(shape, connectivity, kernels="avx512", side=32, **given):
    """Whether dense torch is expected to be faster for one stage of random weights."""
    index = np.flatnonzero(np.random.default_rng(0).random(np.prod(shape)) < connectivity)
    values, bias = np.zeros(len(index), np.float32), np.zeros(shape[0], np.float32)
    stage = Stage(name="x", shape=shape, index=index, values=values, bias=bias)
    geometry = stage.infer_geometry((shape[1], side, side) if len(shape) == 4 else shape[1:])
    return dense.Dense(stage, geometry, kernels).is_faster(**given)


def test_when_a_fully_connected_layer_is_dense():
    assert is_faster((800, 784), 0.25, maps=32, density=1.0, pixels=True)
    assert not is_faster((800, 784), 0.01, maps=32, density=1.0, pixels=True)
    assert not is_faster((800, 784), 0.25, maps=256, density=0.1)
    assert is_faster((800, 784), 1.0, maps=256, density=0.2)
    assert not is_faster((800, 784), 1.0, maps=2, density=0.2)  # loads all weights for two maps
    assert not is_faster((10, 800), 1.0, maps=8, density=0.2)  # too little work for a call


@pytest.mark.parametrize(
    ("kernels", "connectivity"),
    [("avx512", 1.0), ("avx2", 0.6), ("portable", 0.25), ("torch", 0.05)],
)
def test_when_a_convolution_of_one_image_is_dense(kernels, connectivity):
    layer = {"shape": (64, 64, 3, 3), "kernels": kernels, "maps": 8, "density": 0.1}
    assert is_faster(connectivity=connectivity, **layer)
    assert not is_faster(connectivity=connectivity / 4, **layer)
    assert is_faster(connectivity=connectivity / 3, planes=4, **layer)  # four planes: 4 x the work
