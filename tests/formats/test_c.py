import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from compiled import (
    compile_c,
    means_over_time,
    measure_memory,
    run_c,
    run_over_time,
    runtime_scores,
)
from networks import conv_net, neuron, small
from refusal import refused
from torch import nn

from spikewire.formats import c
from spikewire.formats.trace import trace_model
from spikewire.nn.layers import Spiking
from spikewire.nn.neurons import LIF
from spikewire.nn.recurrent import Recurrent
from spikewire.runtime import Runtime


def recurrent_net(readout: str, *kinds: str, inputs: int = 6, temporal: bool = True) -> Spiking:
    """Return recurrent layers, of one kind of neuron each, whose own synapses are half pruned."""
    torch.manual_seed(2)
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for number, (kind, hidden) in enumerate(zip(kinds, (19, 11), strict=False)):
        layers[f"fc{number}"] = nn.Linear(inputs, hidden)
        layers[f"rec{number}"] = Recurrent(hidden, neuron(kind))
        inputs = hidden
    layers["out"] = nn.Linear(inputs, 4)
    if readout == "spikes":
        layers["lif"] = neuron("third")
    shape = {"input_shape": (6,), "temporal": temporal, "time_steps": 13}
    model = Spiking(layers, **shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "weight" in name:
                parameter.mul_(8 * (torch.rand_like(parameter) < 0.5))
    return model.eval()


@pytest.fixture(autouse=True)
def _compiler(need):
    need("gcc")


CASES = [
    {"pool": "max", "kind": "half"},
    {"pool": "avg", "kind": "third"},
    {"pool": "none", "kind": "rest", "kernel": 5, "padding": 2},
    {"pool": "max", "kind": "soft", "kernel": 3, "padding": 0},
    {"pool": "avg", "kind": "soft if", "readout": "current"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['pool']}-{case['kind']}")
def test_fp32_gives_the_bits_of_the_runtime(case, tmp_path):
    model = conv_net(**case)
    images = torch.randn(4, *model.input_shape)
    network = trace_model(model)
    scores, _ = run_c(network, images, tmp_path, "fp32")
    expected = runtime_scores(network, images, "fp32")
    assert expected.std() > 0, "silent: nothing is compared"
    torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-6)


def test_int8_differs_from_the_runtime_by_rounding_only(tmp_path):
    model = conv_net(pool="max", kind="third")
    images = torch.randn(32, *model.input_shape)
    network = trace_model(model)
    scores, _ = run_c(network, images, tmp_path, "int8")
    expected = runtime_scores(network, images, "int8")
    assert (scores.argmax(1) == expected.argmax(1)).float().mean() >= 0.95
    assert (scores - expected).abs().mean() < 0.01


def test_pixels_are_normalised_as_in_training(tmp_path):
    model = Spiking(
        {"flatten": nn.Flatten(), "fc": nn.Linear(8, 5), "lif": LIF()},
        time_steps=4,
        input_shape=(2, 2, 2),
    )
    pixels = torch.randint(0, 256, (2, 2, 2), dtype=torch.uint8)
    network = trace_model(model, mean=(0.4, 0.5), std=(0.2, 0.1))
    runtime = Runtime(network, exact=True)
    label = int(runtime.predict(runtime.normalise(pixels[None])))
    for expected, code in ((label, 0), (label + 1, 1)):  # the test vector can fail
        c.write(network, tmp_path / "network.c", "fp32", (pixels.numpy(), expected))
        compile_c(tmp_path, "-DSPIKEWIRE_TEST", "network.c", "-o", "test")
        assert subprocess.run([tmp_path / "test"], check=False).returncode == code


RECURRENT = [("current", "half"), ("spikes", "soft"), ("current", "rest", "soft if")]


@pytest.mark.parametrize("kinds", RECURRENT, ids=" ".join)
def test_recurrent_layers_give_the_scores_of_the_runtime_at_every_time_step(kinds, tmp_path):
    model = recurrent_net(*kinds)
    frames = torch.rand(13, 5, 6) * (torch.rand(13, 5, 6) < 0.6)  # some inputs are silent
    network = trace_model(model, frames)
    assert len(network.recurrent) == len(kinds) - 1
    cut = replace(network, stages=tuple(map(without_feedback, network.stages)))
    for values, tolerance in (("fp32", 1e-6), ("int8", 1e-4)):
        scores = run_over_time(network, frames, tmp_path, values)
        expected = means_over_time(network, frames, values)
        torch.testing.assert_close(scores, expected, rtol=tolerance, atol=tolerance)
        assert (expected - means_over_time(cut, frames, values)).abs().max() > 0.01, "feedback"


def without_feedback(stage):
    """Return the stage with weights of 0 where it reads its own spikes."""
    return replace(stage, values=np.zeros_like(stage.values)) if stage.adds else stage


def test_a_recurrent_layer_classifies_images_too(tmp_path):
    model = recurrent_net("current", "third", temporal=False)
    images = torch.rand(8, 6)
    network = trace_model(model, images)
    assert network.recurrent == (1,)
    scores, memory = run_c(network, images, tmp_path, "fp32")
    expected = runtime_scores(network, images, "fp32")
    torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-6)
    floats = 19 + (19 + 19 + 4) + 4 + 19 + 1  # first current, membranes, totals, sums, steps
    assert memory.ram == 4 * floats + 19  # spikes


def test_the_test_vector_of_data_over_time_is_a_sample(tmp_path):
    model = recurrent_net("current", "half")
    frames = torch.rand(13, 5, 6)
    network = trace_model(model, frames)
    label = int(Runtime(network, exact=True).predict(frames[:, :1], frames=True))
    for expected, code in ((label, 0), (label + 1, 1)):
        c.write(network, tmp_path / "network.c", "fp32", (frames[:, 0].numpy(), expected))
        compile_c(tmp_path, "-DSPIKEWIRE_TEST", "network.c", "-o", "test")
        assert subprocess.run([tmp_path / "test"], check=False).returncode == code
    pixels = np.zeros((13, 6), np.uint8), 0
    refused(lambda: c.write(network, tmp_path / "x.c", "fp32", pixels), "example", "one input")


def test_memory_is_what_the_compiler_finds(tmp_path):
    images = torch.rand(2, 1, 28, 28)
    model = small("mnist-mlp", images, 0.05)
    memory = c.write(trace_model(model), tmp_path / "network.c", "int8")
    flash, ram = measure_memory(tmp_path)
    assert memory.flash <= flash < memory.flash + 8192, "arrays, and the code"
    assert memory.ram <= ram <= memory.ram + 256


def test_a_layer_without_synapses(tmp_path):
    model = conv_net(connectivity=0.4)
    with torch.no_grad():
        model.get_submodule("conv2").get_parameter("weight").zero_()
    images = torch.randn(2, *model.input_shape)
    network = trace_model(model)
    scores, _ = run_c(network, images, tmp_path, "int8")
    torch.testing.assert_close(scores, runtime_scores(network, images, "int8"))


def test_refusals(tmp_path):
    network = trace_model(conv_net())
    path = tmp_path / "network.c"
    refused(lambda: c.write(network, path, "fp16"), "values", "fp16", "int8")
    wrong = np.zeros(3, np.uint8), 0
    refused(lambda: c.write(network, path, "int8", wrong), "example", 3)
    wide = replace(network.stages[0], dilation=(1, 200), padding=(1, 200))
    far = replace(network, stages=(wide, *network.stages[1:]))
    refused(lambda: c.write(far, path), "conv1: kernel", "401", "at most 256 in C")
    layers = {
        "conv": nn.Conv2d(1, 2, 1),
        "lif": LIF(),
        "pool": nn.AvgPool2d(16),
        "end": nn.Flatten(),
    }
    layers |= {"flatten": nn.Flatten(), "fc": nn.Linear(2, 3)}
    model = Spiking(layers, time_steps=2, input_shape=(1, 16, 16))
    refused(lambda: c.write(trace_model(model), path), "fc: spikes per input", "256", "at most 255")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "before", "flags"),
    [
        ("gcc", (), ()),
        ("clang", (), ()),
        ("arm-linux-gnueabihf-gcc", ("qemu-arm-static",), ("-static",)),
    ],
)
@pytest.mark.parametrize("values", c.VALUES)
def test_same_classes_on_1000_mnist_images_on_every_compiler(
    compiler, before, flags, values, need, trained_on_mnist, tmp_path
):
    need(compiler, *before)
    network, images = trained_on_mnist
    expected = runtime_scores(network, images, values)
    scores, _ = run_c(network, images, tmp_path, values, compiler, before, flags)
    assert torch.equal(scores.argmax(1), expected.argmax(1))
    if values == "fp32":
        assert torch.equal(scores, expected)


@pytest.fixture(scope="module")
def trained_on_mnist(mnist):
    """Return a sparse network trained for a few steps, and 1,000 test images."""
    from spikewire import Budget
    from spikewire.nn.models import build

    torch.manual_seed(0)
    model = build("mnist-mlp")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    pruner = Budget(connectivity=0.05).attach(model, optimizer, total_steps=400)
    for part in torch.arange(400 * 64).split(64):
        outputs = model(mnist.train_images[part] / 255).mean(0)
        loss = nn.functional.cross_entropy(10 * outputs, mnist.train_labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pruner.finish()
    images = mnist.test_images[:1000] / 255
    network = trace_model(model.eval())
    correct = runtime_scores(network, images, "fp32").argmax(1) == mnist.test_labels[:1000]
    assert correct.float().mean() > 0.85
    return network, images
