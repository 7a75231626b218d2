"""Starting from a packed file: the network computes what the file does, and can be trained on."""

from types import SimpleNamespace

import pytest
import torch
from networks import conv_net
from refusal import refused
from torch import nn

from spikewire.config import Config, resolve
from spikewire.formats import packed
from spikewire.formats.trace import trace_model
from spikewire.nn.batchnorm import per_step
from spikewire.nn.layers import Spiking
from spikewire.nn.models import build
from spikewire.nn.neurons import LIF, PLIF
from spikewire.runtime import Runtime
from spikewire.train.loop import fit
from spikewire.train.unpack import load_packed_


def settings(**flags) -> Config:
    """Return settings of one short epoch on the digits."""
    return resolve(flags={"epochs": "1", **flags})


def data_of(model):
    """Return what is read of a data set."""
    return SimpleNamespace(shape=model.input_shape, mean=(), std=(), temporal=False)


@torch.no_grad()
def trained(seed=1):
    """Return a network with BatchNorm whose gains, also negative ones, were moved by training."""
    model = conv_net(seed=seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.add_(torch.randn_like(module.weight) * 0.4)
            module.bias.add_(torch.randn_like(module.bias) * 0.3)
    return model


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.packed.safetensors"
    packed.write(trace_model(trained()), path)
    return str(path)


@pytest.mark.parametrize("norm", ["joint", "per-step"])
def test_a_network_with_batchnorm_computes_what_the_file_does(file, norm):
    network = packed.read(file)
    model = conv_net(seed=2)
    model = per_step(model) if norm == "per-step" else model
    images = torch.randn(12, *model.input_shape)
    load_packed_(model, file, data_of(model), images)
    expected = Runtime(network, exact=True)(images)
    assert 0.05 < expected.mean() < 0.95
    with torch.no_grad():
        found = model.eval()(images)
    assert (found == expected).float().mean() > 0.995  # sums are rounded in another order
    for stage in network.stages:
        weight = model.get_parameter(f"{stage.name}.weight")
        assert weight.count_nonzero() == len(stage.index)


def test_batchnorm_has_the_statistics_of_the_images_so_that_training_begins_there(file):
    model = conv_net(seed=2)
    images = torch.randn(64, *model.input_shape)
    load_packed_(model, file, data_of(model), images)
    with torch.no_grad():
        evaluated = model.eval()(images)
        torch.manual_seed(0)
        in_training = model.train()(images)
    assert (in_training == evaluated).float().mean() > 0.97


def test_without_images_batchnorm_only_adds_a_bias(file):
    model = conv_net(seed=2)
    images = torch.randn(12, *model.input_shape)
    load_packed_(model, file, data_of(model))
    with torch.no_grad():
        found = model.eval()(images)
    assert (found == Runtime(packed.read(file), exact=True)(images)).float().mean() > 0.995
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    assert norm.running_mean is not None
    assert not norm.running_mean.any()


POOLED = {
    "spikes": lambda: [LIF(), nn.AvgPool2d(2)],
    "spikes, thirds": lambda: [LIF(), nn.AvgPool2d(3)],
    "currents": lambda: [nn.AvgPool2d(2), LIF()],
    "currents after BatchNorm": lambda: [nn.BatchNorm2d(5), nn.AvgPool2d(2), LIF()],
    "currents before BatchNorm": lambda: [nn.AvgPool2d(3), nn.BatchNorm2d(5), LIF()],
}


@pytest.mark.parametrize("values", ["fp16", "int8"])
@pytest.mark.parametrize("kind", POOLED)
def test_the_factor_of_an_average_pooling_is_not_applied_twice(tmp_path, kind, values):
    def pooled(seed):
        torch.manual_seed(seed)
        layers = {"conv": nn.Conv2d(2, 5, 3, padding=1)}
        layers |= {str(i): layer for i, layer in enumerate(POOLED[kind]())}
        layers |= {"conv2": nn.Conv2d(5, 4, 3), "lif2": LIF(), "flat": nn.Flatten()}
        layers |= {"fc": nn.LazyLinear(3)}
        model = Spiking(layers, time_steps=4, input_shape=(2, 12, 12))
        for _ in range(20):
            model(3 * torch.rand(8, 2, 12, 12) - 1)  # for BatchNorm
        return model.eval()

    source, path = pooled(1), str(tmp_path / "net.packed.safetensors")
    source.conv2.weight.data[0, 0, 0, 0] = 1e-9  # both types round it to 0
    packed.write(trace_model(source), path, values)
    model, images = pooled(2), 3 * torch.rand(16, 2, 12, 12) - 1
    load_packed_(model, path, data_of(model), images)
    expected = Runtime(packed.read(path), exact=True)(images)
    with torch.no_grad():
        found = model.eval()(images)
    assert expected.std() > 0.01
    assert torch.allclose(found, expected, atol=1e-3, rtol=1e-3)


def test_a_channel_without_synapses_keeps_an_ordinary_gain(tmp_path):
    source = trained()
    with torch.no_grad():
        next(m for m in source.modules() if isinstance(m, nn.Conv2d)).weight[0] = 0
    path = str(tmp_path / "net.packed.safetensors")
    packed.write(trace_model(source), path)
    model = conv_net(seed=2)
    load_packed_(model, path, data_of(model), torch.randn(8, *model.input_shape))
    norm = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    assert norm.weight[0].item() == pytest.approx(1, abs=1e-3)


# ---------------------------------------------------------------------- refusals


def test_a_file_of_another_network_is_refused(file):
    wider = conv_net(channels=(2, 6, 4))
    refused(lambda: load_packed_(wider, file, data_of(wider)), "has shape (5, 2, 3, 3)", "(6, 2")
    other = conv_net(kind="third")
    refused(lambda: load_packed_(other, file, data_of(other)), "neuron of", "tau=2.0", "tau=3.0")
    pooled = conv_net(pool="avg")
    refused(lambda: load_packed_(pooled, file, data_of(pooled)), "is")


def test_pixels_of_another_normalisation_are_refused(file):
    model = conv_net()
    data = data_of(model)
    data.mean = data.std = (0.5, 0.5)
    refused(lambda: load_packed_(model, file, data), "mean of pixels", "as in this run")


# ---------------------------------------------------------------------- a run


def test_a_run_starts_from_a_network_of_the_zoo():
    flags = {"method": "budget", "connectivity": "0.05", "first": "0.05", "lr": "1e-9"}
    found = fit(settings(start="zoo:digits-5", **flags))
    assert found.accuracy == pytest.approx(0.9778, abs=1e-4)
    assert found.connectivity == pytest.approx(0.05, abs=1e-4)


def test_a_network_of_the_zoo_teaches():
    taught = fit(settings(method="dense", teacher="zoo:digits-5", teacher_weight="0.9"))
    alone = fit(settings(method="dense"))
    assert taught.accuracy > 0.5
    assert not taught.model.fc1.weight.equal(alone.model.fc1.weight)


@pytest.mark.parametrize("field", ["start", "teacher"])
def test_what_cannot_be_started_from_is_one_line(field, tmp_path):
    (tmp_path / "x").write_text("no network")
    for path, words in (
        ("zoo:digits-6", "did you mean 'digits-5'"),
        (str(tmp_path / "x"), "is not a complete packed file"),
        (str(tmp_path / "none"), "does not exist"),
    ):
        refused(lambda path=path: fit(settings(**{field: path})), field, words)


def test_learnt_time_constants_are_read_from_the_file(tmp_path):
    torch.manual_seed(0)
    options = {"neuron": "plif", "time_steps": 3, "tau": 2.5}
    model = build("digits-mlp", **options)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, PLIF):
                module.w.add_(0.3)
    path = tmp_path / "net.packed.safetensors"
    packed.write(trace_model(model.eval()), path)
    other = build("digits-mlp", **options)
    load_packed_(other, str(path), data_of(model))
    learnt, found = ([x.tau for x in m.modules() if isinstance(x, PLIF)] for m in (model, other))
    assert learnt == pytest.approx(found)
    assert learnt[0] != pytest.approx(2.5)


def test_batchnorm_without_a_weight_is_refused(tmp_path):
    def make():
        layers = {"conv": nn.Conv2d(1, 3, 3), "bn": nn.BatchNorm2d(3, affine=False), "lif": LIF()}
        head = {"flatten": nn.Flatten(), "fc": nn.Linear(108, 4)}
        return Spiking(layers | head, time_steps=3, input_shape=(1, 8, 8)).eval()

    path = tmp_path / "net.packed.safetensors"
    packed.write(trace_model(make()), path)
    model = make()
    refused(lambda: load_packed_(model, str(path), data_of(model)), "conv: the BatchNorm", "affine")


@pytest.mark.parametrize("name", ["resnet19", "sew-resnet18"])
def test_shortcuts_without_weights_are_in_the_file_but_not_among_the_layers_read(name, tmp_path):
    """The file of resnet19 has them as convolutions with the weights of an identity."""
    options = {"time_steps": 2, "width": 0.06, "input_shape": (3, 32, 32), "classes": 10}
    torch.manual_seed(0)
    model = build(name, **options).train()
    images = torch.randn(8, 3, 32, 32)
    with torch.no_grad():  # so that it fires down to its output
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0
                module.weight.fill_(3.0)
            elif isinstance(module, nn.Linear):
                module.weight.mul_(40)
        model(images)
        expected = model.eval()(images)
    network = trace_model(model)
    layers = {layer for layer, _ in model.named_modules()}
    assert any(x.name not in layers or "shortcut" in x.name for x in network.stages)
    path = tmp_path / "net.packed.safetensors"
    packed.write(network, path, values="fp32")
    other = build(name, **options)
    load_packed_(other, str(path), data_of(model), images)
    assert 0.05 < expected.mean() < 0.95
    with torch.no_grad():
        torch.testing.assert_close(other.eval()(images).mean(0), expected.mean(0))
