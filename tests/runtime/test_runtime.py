import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import conv_net, small
from refusal import refused
from runtime.agreement import (
    KERNELS,
    assert_close,
    assert_kernels_agree,
    record_dense_stages,
    record_training_spikes,
)
from torch import nn
from torch.nn import functional

from spikewire import Budget
from spikewire.formats import packed
from spikewire.formats.trace import trace_model
from spikewire.nn.layers import Spiking
from spikewire.nn.neurons import LIF
from spikewire.runtime import Runtime, dense, load


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
def test_all_kernels_give_the_same_spikes(
    height, width, kernel, pool, kind, connectivity, threads, seed
):
    padding = kernel // 2
    model = conv_net(
        height, width, kernel=kernel, padding=padding, pool=pool, kind=kind,
        connectivity=connectivity, seed=seed,
    )  # fmt: skip
    images = torch.randn(2, *model.input_shape)
    assert_kernels_agree(trace_model(model), images, threads)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("pool", "kind"), [("max", "half"), ("avg", "half"), ("max", "soft if")])
def test_same_spikes_as_the_training_model(kernels, pool, kind):
    model = conv_net(pool=pool, kind=kind)
    images = torch.randn(64, *model.input_shape)
    runtime = Runtime(trace_model(model), kernels=kernels, exact=True)
    assert_close(record_training_spikes(model, images), runtime.record_spikes(images))


@pytest.mark.parametrize("kernels", KERNELS)
def test_current_readout(kernels):
    model = conv_net(readout="current")
    images = torch.randn(4, *model.input_shape)
    got = Runtime(trace_model(model), kernels=kernels)(images)
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
    runtime = Runtime(trace_model(model))
    spikes = runtime.record_spikes(torch.ones(1, 2))
    assert spikes["fc1"][:, 0].int().tolist() == [[1, 0], [1, 1], [1, 0]]
    assert spikes["fc2"].flatten().int().tolist() == [1, 0, 0]


@pytest.mark.parametrize("kernels", KERNELS)
def test_batches_and_streams_do_not_change_the_outputs(kernels):
    model = conv_net(pool="avg", kind="third")
    images = torch.randn(20, *model.input_shape)
    runtime = Runtime(trace_model(model), kernels=kernels, exact=True)
    whole = runtime(images)
    assert torch.equal(whole, torch.cat([runtime(part) for part in images.split(6)], 1))
    stream = runtime.stream(20)
    assert torch.equal(whole, torch.stack([stream.step(images) for _ in range(len(whole))]))


def test_large_batches_run_in_pieces(monkeypatch):
    model = conv_net()
    images, runtime = torch.randn(9, *model.input_shape), Runtime(trace_model(model), exact=True)
    whole = runtime(images)
    monkeypatch.setattr("spikewire.runtime.native.CHUNK", 1)
    monkeypatch.setattr("spikewire.runtime.model.MAX_MEMBRANES", 1)
    assert torch.equal(whole, runtime(images))


def test_more_outputs_than_sixteen_bits():
    torch.manual_seed(0)
    layers = {"fc1": nn.Linear(3, 20), "lif1": LIF(), "fc2": nn.Linear(20, 70_001), "lif2": LIF()}
    model = Spiking(layers, time_steps=2, input_shape=(3,))
    images = 9 * torch.randn(2, 3)
    for parameter in model.parameters():
        parameter.detach().mul_(3)
    assert_kernels_agree(trace_model(model), images)


def test_early_exit_at_one_never_changes_a_spiking_prediction():
    model = conv_net()
    images, runtime = torch.randn(64, *model.input_shape), Runtime(trace_model(model))
    classes, steps = runtime.decide(images, 1.0)
    assert torch.equal(classes, runtime.predict(images))
    assert steps.min() >= 1
    classes, fewer = runtime.decide(images, 0.0)
    assert fewer.sum() < steps.sum()
    assert torch.equal(classes, runtime.predict(images, early_exit=0.0))


# ---------------------------------------------------------------------- real images


def make_pair(name, data, connectivity=0.2, **options):
    """A network scaled to fire on the images of a data set, and its runtime."""
    model = small(name, data.train_images[:64] / 255, connectivity)
    return model, Runtime(trace_model(model, mean=data.mean, std=data.std), **options)


@torch.no_grad()
def assert_agree(model, runtime, pixels):
    """At most 1 in 10,000 spikes and predictions differ over all layers and images.

    Return the predictions of the runtime.
    """
    spikes = different = 0
    wanted_classes, classes = [], []
    for part in pixels.split(500):
        images = runtime.normalise(part)
        wanted, got = record_training_spikes(model, images), runtime.record_spikes(images)
        spikes += sum(found.numel() for found in wanted.values())
        different += sum(int((wanted[name] != got[name]).sum()) for name in wanted)
        wanted_classes.append(model(images).mean(0).argmax(1))
        classes.append(runtime.predict(images))
    assert different <= 1e-4 * spikes
    found = torch.cat(classes)
    assert (found != torch.cat(wanted_classes)).sum() <= len(pixels) // 10_000
    return found


@pytest.mark.parametrize("exact", [True, False])
def test_real_digits_agree_with_training(exact, digits):
    assert_agree(*make_pair("digits-mlp", digits, exact=exact), digits.test_images)


def train(name, data, connectivity, steps):
    """A network trained with `Budget` in batches of 128 images."""
    model = small(name, data.train_images[:64] / 255, 1.0).train()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    pruner = Budget(connectivity=connectivity).attach(model, optimizer, total_steps=steps)
    normalise = Runtime(trace_model(model, mean=data.mean, std=data.std)).normalise
    for batch in torch.randperm(len(data.train_labels))[: 128 * steps].split(128):
        rates = model(normalise(data.train_images[batch])).mean(0)
        optimizer.zero_grad()
        functional.cross_entropy(10 * rates, data.train_labels[batch]).backward()
        optimizer.step()
    pruner.finish()
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "connectivity", "steps"), [("mnist-mlp", 0.05, 468), ("lenet5", 0.25, 100)]
)
def test_a_trained_network_agrees_on_all_of_mnist(
    name, connectivity, steps, mnist, tmp_path, monkeypatch
):
    model = train(name, mnist, connectivity, steps)
    packed.write(trace_model(model, mean=mnist.mean, std=mnist.std), tmp_path / "x", "fp32")
    exact, fast = (load(tmp_path / "x", exact=exact) for exact in (True, False))
    pixels = mnist.test_images
    assert_kernels_agree(exact.network, exact.normalise(pixels[:100]))
    found = assert_agree(model, exact, pixels)
    assert (found == mnist.test_labels).float().mean() > 0.6  # it has learned
    monkeypatch.setattr(dense, "MATMUL", -np.inf)
    names = record_dense_stages(monkeypatch)
    assert_agree(model, fast, pixels)
    assert names == {stage.name for stage in fast.network.stages}


def test_arguments_and_images_that_do_not_fit_are_refused():
    model = conv_net()
    network = trace_model(model)
    refused(lambda: Runtime(network, kernels="mmx"), "kernels: unknown 'mmx'")
    refused(lambda: Runtime(network, threads=0), "threads")
    refused(lambda: Runtime(network)(torch.randn(2, 3, 4)), "images")
    refused(lambda: Runtime(network)(torch.full((1, *model.input_shape), np.nan)), "finite")
    refused(
        lambda: Runtime(network).stream(2).step(torch.randn(3, *model.input_shape)),
        "the batch size of the stream",
    )


# ---------------------------------------------------------------------- processes


def test_a_runtime_says_what_it_runs():
    shown = repr(load("zoo:digits-5", kernels="torch"))
    assert shown == (
        "Runtime(1x8x8 image -> 10 classes, 2 stages, 8 time steps, connectivity 0.04999, torch)"
    )


def test_a_pickled_runtime_and_stream_give_the_same_outputs():
    model = conv_net()
    images = torch.randn(3, *model.input_shape)
    runtime = Runtime(trace_model(model), threads=2, exact=True)
    stream = runtime.stream(3)
    stream.step(images)
    copy, later = pickle.loads(pickle.dumps((runtime, stream)))
    assert torch.equal(copy(images), runtime(images))
    assert torch.equal(later.advance(images, 2), stream.advance(images, 2))
    assert deepcopy(runtime).engine.threads == 2


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork beside threads
def test_a_forked_process_can_use_a_runtime_with_threads():
    model = conv_net()
    images = torch.randn(3, *model.input_shape)
    runtime = Runtime(trace_model(model), threads=2, exact=True)
    wanted = runtime(images)
    child = get_context("fork").Process(target=lambda: runtime(images))
    with ThreadPoolExecutor(1) as other:  # the fork happens while the runtime is in use
        busy = other.submit(lambda: [runtime(images) for _ in range(200)])
        child.start()
        child.join(30)
        hangs = child.is_alive()
        child.kill()
        assert all(torch.equal(wanted, outputs) for outputs in busy.result())
    assert not hangs
    assert child.exitcode == 0


def test_a_packed_file_is_loaded_with_other_time_steps():
    assert load("zoo:digits-5").network.time_steps == 8
    assert load("zoo:digits-5", time_steps=np.int64(3)).network.time_steps == 3
    for steps in (2.5, "4"):
        refused(lambda steps=steps: load("zoo:digits-5", time_steps=steps), "a whole number")
