import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import conv_net, small
from refusal import refused
from torch import nn
from torch.nn import functional

from spikewire import Budget
from spikewire import data as datasets
from spikewire.formats import packed
from spikewire.formats.network import Stage, describe
from spikewire.nn.models import Spiking
from spikewire.nn.neurons import LIF, Neuron
from spikewire.runtime import Runtime, dense, load
from spikewire.runtime import library as library_module
from spikewire.runtime.library import installed, paths

KERNELS = paths(installed())


def test_compiled_kernels_are_here():
    assert "portable" in KERNELS


def all_traces(network, images, threads=1):
    return {
        k: Runtime(network, kernels=k, threads=threads, exact=True).trace(images) for k in KERNELS
    }


def assert_same(traces):
    reference = traces["torch"]
    for kernels, trace in traces.items():
        for name, spikes in reference.items():
            assert torch.equal(spikes, trace[name]), (kernels, name)


# Widths below, at and above a word of 16 bits, and beyond 64, where rows no longer fit a register.
@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(5, 12),
    width=st.one_of(st.integers(5, 40), st.integers(60, 80)),
    kernel=st.sampled_from([1, 3, 5]),
    pool=st.sampled_from(["max", "avg", "none"]),
    kind=st.sampled_from(["half", "third", "rest", "if", "soft", "soft if"]),
    connectivity=st.sampled_from([0.05, 0.4, 1.0]),
    threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 1000),
)
def test_all_kernels_fire_alike(height, width, kernel, pool, kind, connectivity, threads, seed):
    padding = kernel // 2
    model = conv_net(
        height, width, kernel=kernel, padding=padding, pool=pool, kind=kind,
        connectivity=connectivity, seed=seed,
    )  # fmt: skip
    images = torch.randn(2, *model.input_shape)
    assert_same(all_traces(describe(model), images, threads))


@torch.no_grad()
def trained(model, images):
    """The spikes of every layer of the training model, named as in `Runtime.trace`."""
    x, name, found = images.unsqueeze(0), "", {}
    for key, layer in model.named_children():
        x = model.advance(layer, x)
        name = key if isinstance(layer, nn.Conv2d | nn.Linear) else name
        if isinstance(layer, Neuron):
            found[name] = x.bool()
    return found


def assert_close(wanted, got, share=1e-4):
    """Another order of addition may cross a threshold, rarely."""
    for name, spikes in wanted.items():
        assert 0.005 < spikes.float().mean() < 0.98, name
        assert (spikes != got[name]).float().mean() <= share, name


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("pool", "kind"), [("max", "half"), ("avg", "half"), ("max", "soft if")])
def test_same_spikes_as_the_training_model(kernels, pool, kind):
    model = conv_net(pool=pool, kind=kind)
    images = torch.randn(64, *model.input_shape)
    runtime = Runtime(describe(model), kernels=kernels, exact=True)
    assert_close(trained(model, images), runtime.trace(images))


@pytest.mark.parametrize("kernels", KERNELS)
def test_current_readout(kernels):
    model = conv_net(readout="current")
    images = torch.randn(4, *model.input_shape)
    got = Runtime(describe(model), kernels=kernels)(images)
    torch.testing.assert_close(got, model(images), rtol=1e-4, atol=1e-4)


def test_hand_computed_spikes():
    model = Spiking(
        {"fc1": nn.Linear(2, 2, bias=False), "lif1": LIF(), "fc2": nn.Linear(2, 1), "lif2": LIF()},
        time_steps=3,
        input_shape=(2,),
    )
    with torch.no_grad():
        model.fc1.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 1.5]]))
        model.fc2.weight.copy_(torch.tensor([[1.0, -4.0]]))
        model.fc2.bias.fill_(1.5)
    # fc1: currents 2 and 1.5; neuron 0 reaches 1 at each step, neuron 1 (0.75, 1.125) once.
    # fc2: currents 2.5, -1.5, 2.5; m = 1.25 fires, -0.75, then 0.875 stays below 1.
    runtime = Runtime(describe(model))
    trace = runtime.trace(torch.ones(1, 2))
    assert trace["fc1"][:, 0].int().tolist() == [[1, 0], [1, 1], [1, 0]]
    assert trace["fc2"].flatten().int().tolist() == [1, 0, 0]


@pytest.mark.parametrize("kernels", KERNELS)
def test_batches_and_streams_do_not_change_the_answer(kernels):
    model = conv_net(pool="avg", kind="third")
    images = torch.randn(20, *model.input_shape)
    runtime = Runtime(describe(model), kernels=kernels, exact=True)
    whole = runtime(images)
    assert torch.equal(whole, torch.cat([runtime(part) for part in images.split(6)], 1))
    stream = runtime.stream(20)
    assert torch.equal(whole, torch.stack([stream.step(images) for _ in range(len(whole))]))


def test_large_batches_run_in_pieces(monkeypatch):
    model = conv_net()
    images, runtime = torch.randn(9, *model.input_shape), Runtime(describe(model), exact=True)
    whole = runtime(images)
    monkeypatch.setattr("spikewire.runtime.native.CHUNK", 1)
    monkeypatch.setattr("spikewire.runtime.model.MEMBRANES", 1)
    assert torch.equal(whole, runtime(images))


def test_more_outputs_than_sixteen_bits():
    torch.manual_seed(0)
    layers = {"fc1": nn.Linear(3, 20), "lif1": LIF(), "fc2": nn.Linear(20, 70_001), "lif2": LIF()}
    model = Spiking(layers, time_steps=2, input_shape=(3,))
    images = 9 * torch.randn(2, 3)
    for parameter in model.parameters():
        parameter.detach().mul_(3)
    assert_same(all_traces(describe(model), images))


def test_early_exit_at_one_never_changes_a_spiking_answer():
    model = conv_net()
    images, runtime = torch.randn(64, *model.input_shape), Runtime(describe(model))
    classes, steps = runtime.decide(images, 1.0)
    assert torch.equal(classes, runtime.predict(images))
    assert steps.min() >= 1
    quick, few = runtime.decide(images, 0.0)
    assert few.sum() < steps.sum()
    assert torch.equal(quick, runtime.predict(images, early_exit=0.0))


# ---------------------------------------------------------------------- dense stages


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("pool", ["max", "avg", "none"])
@pytest.mark.parametrize("readout", ["spikes", "current"])
def test_dense_stages_agree_up_to_rounding(kernels, pool, readout, monkeypatch):
    model = conv_net(pool=pool, kind="third", readout=readout)
    images = torch.randn(64, *model.input_shape)
    exact = Runtime(describe(model), kernels=kernels, exact=True)
    monkeypatch.setattr(dense, "MATMUL", -np.inf)  # dense wins everywhere
    quick, made = Runtime(describe(model), kernels=kernels), stages_made(monkeypatch)
    assert_close(exact.trace(images), quick.trace(images))
    assert made == {"conv1", "conv2", "fc"}
    wanted, stream = exact(images), quick.stream(64)
    steps = torch.stack([stream.step(images) for _ in range(len(wanted))])
    for got in (quick(images), steps):
        assert ((wanted - got).abs() > 1e-4).float().mean() <= 1e-3  # one of 1,920 numbers


def stages_made(monkeypatch):
    """The names of the stages that go through dense torch from now on."""
    made, forward = set(), dense.Dense.__call__

    def noted(self, x):
        made.add(self.stage.name)
        return forward(self, x)

    monkeypatch.setattr(dense.Dense, "__call__", noted)
    return made


@pytest.mark.parametrize("kernels", KERNELS)
def test_exact_never_goes_through_dense(kernels, monkeypatch):
    model = conv_net()
    monkeypatch.setattr(dense, "MATMUL", -np.inf)
    made = stages_made(monkeypatch)
    for batch in (1, 3):
        images = torch.randn(batch, *model.input_shape)
        Runtime(describe(model), kernels=kernels, exact=True)(images)
    assert not made


def wins(shape, connectivity, kernels="avx512", side=32, **given):
    """Whether dense wins for one stage of random weights."""
    index = np.flatnonzero(np.random.default_rng(0).random(np.prod(shape)) < connectivity)
    zeros = (np.zeros(len(index), np.float32), np.zeros(shape[0], np.float32))
    stage = Stage(name="x", shape=shape, index=index, values=zeros[0], bias=zeros[1])
    place = stage.geometry((shape[1], side, side) if len(shape) == 4 else shape[1:])
    return dense.Dense(stage, place, kernels).wins(**given)


def test_when_dense_wins_fully_connected():
    assert wins((800, 784), 0.25, maps=32, density=1.0, pixels=True)
    assert not wins((800, 784), 0.01, maps=32, density=1.0, pixels=True)
    assert not wins((800, 784), 0.25, maps=256, density=0.1)
    assert wins((800, 784), 1.0, maps=256, density=0.2)
    assert not wins((800, 784), 1.0, maps=2, density=0.2)  # loading all weights for two maps
    assert not wins((10, 800), 1.0, maps=8, density=0.2)  # too little to call for


@pytest.mark.parametrize(
    ("kernels", "loses_at"), [("avx512", 1.0), ("avx2", 0.6), ("portable", 0.25), ("torch", 0.05)]
)
def test_when_dense_wins_a_convolution_of_one_image(kernels, loses_at):
    layer = {"shape": (64, 64, 3, 3), "kernels": kernels, "maps": 8, "density": 0.1}
    assert wins(connectivity=loses_at, **layer)
    assert not wins(connectivity=loses_at / 4, **layer)
    assert wins(connectivity=loses_at / 3, planes=4, **layer)  # four planes are four times the work


# ---------------------------------------------------------------------- real images


def real(name, data, connectivity=0.2, **options):
    """Return a network on a data set, and ours."""
    model = small(name, data.train_images[:64] / 255, connectivity)
    return model, Runtime(describe(model, mean=data.mean, std=data.std), **options)


@torch.no_grad()
def assert_agree(model, runtime, pixels):
    """At most 1 in 10,000 spikes and predictions differ over all layers and images.

    Return the predictions of the runtime.
    """
    spikes = different = 0
    wanted_classes, classes = [], []
    for part in pixels.split(500):
        images = runtime.normalise(part)
        wanted, got = trained(model, images), runtime.trace(images)
        spikes += sum(found.numel() for found in wanted.values())
        different += sum(int((wanted[name] != got[name]).sum()) for name in wanted)
        wanted_classes.append(model(images).mean(0).argmax(1))
        classes.append(runtime.predict(images))
    assert different <= 1e-4 * spikes
    found = torch.cat(classes)
    assert (found != torch.cat(wanted_classes)).sum() <= len(pixels) // 10_000
    return found


@pytest.mark.parametrize("exact", [True, False])
def test_real_digits_agree_with_training(exact):
    data = datasets.load("digits")
    assert_agree(*real("digits-mlp", data, exact=exact), data.test_images)


def taught(name, data, connectivity, steps):
    """A network trained by `budget` with batches of 128 images."""
    model = small(name, data.train_images[:64] / 255, 1.0).train()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    method = Budget(connectivity=connectivity).attach(model, optimizer, total_steps=steps)
    normalise = Runtime(describe(model, mean=data.mean, std=data.std)).normalise
    for some in torch.randperm(len(data.train_labels))[: 128 * steps].split(128):
        rates = model(normalise(data.train_images[some])).mean(0)
        optimizer.zero_grad()
        functional.cross_entropy(10 * rates, data.train_labels[some]).backward()
        optimizer.step()
    method.finish()
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "connectivity", "steps"), [("mnist-mlp", 0.05, 468), ("lenet5", 0.25, 100)]
)
def test_a_trained_network_agrees_on_all_of_mnist(name, connectivity, steps, tmp_path, monkeypatch):
    data = datasets.load("mnist")
    model = taught(name, data, connectivity, steps)
    packed.write(describe(model, mean=data.mean, std=data.std), tmp_path / "x", "fp32")
    exact, quick = (load(tmp_path / "x", exact=exact) for exact in (True, False))
    pixels = data.test_images
    assert_same(all_traces(exact.network, exact.normalise(pixels[:100])))
    found = assert_agree(model, exact, pixels)
    assert (found == data.test_labels).float().mean() > 0.6  # it has learned
    monkeypatch.setattr(dense, "MATMUL", -np.inf)
    made = stages_made(monkeypatch)
    assert_agree(model, quick, pixels)
    assert made == {stage.name for stage in quick.network.stages}


def test_without_a_compiler_torch_takes_over_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(library_module, "EXTENSION_SUFFIXES", [".absent"])
    installed.cache_clear()
    with caplog.at_level(logging.WARNING, "spikewire"):
        runtime = Runtime(describe(conv_net()))
        Runtime(describe(conv_net()))
    installed.cache_clear()
    assert runtime.kernels == "torch"
    assert len(caplog.records) == 1
    assert "no compiled kernels" in caplog.text


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([nn.AvgPool2d(2), LIF()], "a neuron after a pool"),
        ([nn.MaxPool2d(2), nn.BatchNorm2d(4), LIF()], "a norm after a pool"),
        ([LIF(), nn.BatchNorm2d(4)], "a norm after a neuron"),
        ([LIF(), LIF()], "a neuron after a neuron"),
        ([nn.BatchNorm2d(4), nn.BatchNorm2d(4), LIF()], "a norm after a norm"),
        ([LIF(), nn.AvgPool2d(2, divisor_override=1)], "a divisor of its own"),
        ([LIF(), nn.MaxPool2d(2, dilation=2)], "dilation"),
    ],
)
def test_parts_in_an_order_the_runtime_does_not_know_are_refused(layers, said):
    parts = {"conv": nn.Conv2d(1, 4, 3, padding=1)} | {str(i): x for i, x in enumerate(layers)}
    model = Spiking(parts | {"flat": nn.Flatten(), "fc": nn.Linear(64, 2)}, input_shape=(1, 8, 8))
    refused(lambda: describe(model), said)


def test_refusals():
    model = conv_net()
    network = describe(model)
    refused(lambda: Runtime(network, kernels="mmx"), "kernels: unknown 'mmx'")
    refused(lambda: Runtime(network, threads=0), "threads")
    refused(lambda: Runtime(network)(torch.randn(2, 3, 4)), "images")
    refused(lambda: Runtime(network)(torch.full((1, *model.input_shape), np.nan)), "finite")
    refused(
        lambda: Runtime(network).stream(2).step(torch.randn(3, *model.input_shape)),
        "as many as before",
    )
