"""VGG, ResNet and DPAP networks as files: exact in the runtime, or refused by name."""

import pytest
import torch
from compiled import run_c, runtime_scores
from torch import nn

import spikewire
from spikewire.errors import SpikewireError
from spikewire.formats.trace import trace_model
from spikewire.nn import scale_to_fire_
from spikewire.nn.neurons import Neuron

NAMES = ["sew-resnet18", "resnet19", "vgg11", "dpap", "vggsnn"]


def make(name: str, **options: str):
    """Return a narrow network in evaluation mode whose neurons all fire, and images."""
    torch.manual_seed(0)
    sizes = {"input_shape": (2, 32, 32), "classes": 5, "width": 1 / 16}
    model = spikewire.build(
        name, time_steps=3, neuron="plif", tau=1.5, threshold=0.5, **sizes, **options
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.bias, 0.5)
            module.momentum = 1.0  # the statistics are those of the first batch
    images = torch.rand(2, 2, 32, 32)
    scale_to_fire_(model, images)
    with torch.no_grad():
        [x for x in model if isinstance(x, nn.Linear)][-1].weight.abs_()  # some output fires
    model(images)
    return model.eval(), images


@pytest.mark.parametrize("name", NAMES)
def test_a_packed_network_runs_as_the_model_does(name, tmp_path):
    """Strides, shortcuts, learnt time constants; the export compares the spikes of all layers."""
    model, images = make(name)
    rates = {}
    for path, module in model.named_modules():
        if isinstance(module, Neuron):
            module.register_forward_hook(
                lambda _m, _i, out, path=path: rates.update({path: float(out.mean())})
            )
    with torch.no_grad():
        expected = model(images)
    assert min(rates.values()) > 0.003, rates
    path = tmp_path / "net.packed.safetensors"
    spikewire.export(model, images, path)
    found = torch.as_tensor(spikewire.load(path)(images))
    assert expected.any()
    assert (found != expected).float().mean() < 0.02  # another order of additions


@pytest.mark.parametrize(
    ("name", "format", "why"),
    [
        ("vgg11", "nir", "conv1: NIR has no maximum pooling"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_by_name(name, format, why, tmp_path):
    model, images = make(name)
    with pytest.raises(SpikewireError, match=why):
        spikewire.export(model, images, tmp_path / "net", format=format)


@pytest.mark.parametrize("name", NAMES)
def test_a_network_in_c_gives_the_outputs_of_the_runtime(name, need, tmp_path):
    need("gcc")
    model, images = make(name, readout="current")
    network = trace_model(model, images)
    found = run_c(network, images, tmp_path, "fp32")[0]
    expected = runtime_scores(network, images, "fp32")
    assert expected.std() > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["sew-resnet18", "resnet19", "vggsnn"])
def test_a_network_in_nir_runs_as_the_model_does(name, tmp_path):
    """Edges that meet in a node are added, which is what shortcuts need."""
    model, images = make(name)
    spikewire.export(model, images, tmp_path / "net.nir", format="nir")
    found = torch.as_tensor(spikewire.from_nir(tmp_path / "net.nir", time_steps=3)(images))
    with torch.no_grad():
        expected = model(images)
    assert (found != expected).float().mean() < 0.02
