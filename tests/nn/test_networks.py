"""VGG, ResNet and DPAP networks: sizes, and the forward and backward pass of SpikingJelly's."""

import copy

import pytest
import torch
from peer_models import import_model
from refusal import refused
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import nn

from spikewire import build
from spikewire.nn import scale_to_fire_
from spikewire.nn.batchnorm import BatchNormPerStep
from spikewire.nn.layers import Spiking
from spikewire.nn.models import MODELS
from spikewire.nn.neurons import LIF, PLIF
from spikewire.nn.sequence import Residual

# numbers of weights, from the papers' layers: input * output * kernel, layer by layer
WEIGHTS = {
    "vgg11": 9_217_728 + 512 * 10,
    "vgg16": 14_710_464 + 512 * 10,
    "vggsnn": 9 * (2 * 64 + 64 * 128 + 128 * 256 + 256**2 + 256 * 512 + 3 * 512**2) + 4608 * 10,
    "dpap": 9 * (3 * 128 + 128**2 + 128 * 256 + 256**2 + 256 * 512 + 512**2)
    + 32768 * 512
    + 512 * 10,
    "sew-resnet18": 11_159_232 + 512 * 10,
    "sew-resnet18-imagenet": 11_678_912,
    "resnet19": 3456 + 884_736 + 3_276_800 + 8_388_608 + 512 * 256 + 256 * 10,
}


def test_every_scalable_network_is_counted():
    assert set(WEIGHTS) == {name for name, model in MODELS.items() if model.scalable}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_those_of_the_paper(name):
    with torch.device("meta"):
        model = build(name)
    synapses = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert sum(m.weight.numel() for m in synapses) == WEIGHTS[name]
    assert all(m.bias is None for m in synapses)


@pytest.mark.parametrize("name", sorted(set(WEIGHTS) - {"sew-resnet18-imagenet"}))
def test_shape_classes_width_and_readout(name):
    torch.manual_seed(0)
    options = {"width": 1 / 32, "classes": 7, "readout": "current"}
    model = build(name, time_steps=2, input_shape=(1, 32, 48), **options)
    images = torch.rand(3, 1, 32, 48)
    scale_to_fire_(model, images)
    out = model(images)
    assert out.shape == (2, 3, 7)
    assert out.std() > 0
    frames = build(name, input_shape=(2, 32, 32), temporal=True, **options)
    assert frames(torch.rand(4, 2, 2, 32, 32)).shape == (4, 2, 7)


@pytest.mark.parametrize("width", [0, -1, 17, float("nan"), float("inf")])
def test_a_width_out_of_range_is_refused(width):
    refused(lambda: build("vgg11", width=width), "width", width, "in (0, 16]")


@pytest.mark.parametrize("classes", [0, 1, -3])
@pytest.mark.parametrize("name", ["vgg11", "sew-resnet18"])
def test_fewer_than_two_classes_are_refused(name, classes):
    refused(lambda: build(name, classes=classes, width=1 / 32), "classes", classes, "2 or more")


def test_batchnorm_per_step_reaches_into_blocks():
    model = build("sew-resnet18", width=1 / 32, batchnorm="per-step")
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 20
    assert all(isinstance(m, BatchNormPerStep) for m in norms)


def copy_weights_(peer: nn.Module, ours: nn.Module) -> None:
    """Copy parameters in order; biases that ours has not become 0."""
    ours_iter = iter(p for p in ours.parameters())
    with torch.no_grad():
        for module in peer.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if name == "bias" and isinstance(module, nn.Conv2d | nn.Linear):
                    parameter.zero_()
                else:
                    parameter.copy_(next(ours_iter))
    assert next(ours_iter, None) is None


def compare(peer: nn.Module, ours: nn.Module, images: torch.Tensor, steps: int) -> None:
    """Compare output and all gradients of two networks with equal weights, in training mode."""
    copy_weights_(peer, ours)
    functional.set_step_mode(peer, "m")
    out, expected = ours(images), peer(images.expand(steps, *images.shape))
    assert expected.std() > 0
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(out)
    out.backward(grad)
    expected.backward(grad)
    has_bias = {n for n, m in peer.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    theirs = [
        p.grad
        for n, p in peer.named_parameters()
        if not (n.endswith("bias") and n.rpartition(".")[0] in has_bias)
    ]
    for (name, mine), other in zip(ours.named_parameters(), theirs, strict=True):
        error = (mine.grad - other).norm() / other.norm().clamp(min=1e-9)
        assert error < 1e-3, name


def fire_(model: nn.Module) -> None:
    """Set the bias of every BatchNorm so that all neurons get currents near the threshold."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.bias, 0.7)


def lif_node(**_) -> neuron.LIFNode:
    return neuron.LIFNode(surrogate_function=surrogate.ATan(), detach_reset=True)


def narrow_peer(plan: list[tuple[int, int]], classes: int) -> nn.Module:
    """Return blocks of SpikingJelly with these channels and strides, for small images."""
    sew = import_model("sew_resnet")
    inputs = plan[0][0]
    layers = [layer.Conv2d(3, inputs, 3, padding=1, bias=False), layer.BatchNorm2d(inputs)]
    layers.append(lif_node())
    for outputs, stride in plan:
        down = None
        if stride > 1:
            down = nn.Sequential(sew.conv1x1(inputs, outputs, stride), layer.BatchNorm2d(outputs))
        options = {"cnf": "ADD", "spiking_neuron": lif_node}
        layers.append(sew.BasicBlock(inputs, outputs, stride, down, **options))
        inputs = outputs
    layers += [layer.AdaptiveAvgPool2d(1), layer.Flatten(), layer.Linear(inputs, classes)]
    return nn.Sequential(*layers)


def test_narrow_sew_resnet18_is_spikingjellys():
    torch.manual_seed(0)
    plan = [(4, 1), (4, 1), (8, 2), (8, 1), (16, 2), (16, 1), (32, 2), (32, 1)]
    ours = build("sew-resnet18", width=1 / 16, readout="current", time_steps=3)
    fire_(ours)
    compare(narrow_peer(plan, 10), ours, torch.randn(2, 3, 32, 32), 3)


@pytest.mark.slow
def test_sew_resnet18_for_large_images_is_spikingjellys():
    """At full width, since SpikingJelly has no other; small images."""
    torch.manual_seed(0)
    sew = import_model("sew_resnet")
    peer = sew.sew_resnet18(cnf="ADD", spiking_neuron=lif_node, num_classes=10)
    sizes = {"input_shape": (3, 32, 32), "classes": 10}
    ours = build("sew-resnet18-imagenet", **sizes, readout="current", time_steps=2)
    mine = sum(p.numel() for p in ours.parameters())
    assert sum(p.numel() for p in peer.parameters()) == mine + 10  # the bias of its last layer
    fire_(ours)
    compare(peer, ours, torch.randn(2, 3, 32, 32), 2)


@pytest.mark.parametrize(("name", "plan"), [("vgg11", "A"), ("vgg16", "D")])
def test_vgg_convolutions_are_spikingjellys(name, plan):
    torch.manual_seed(0)
    vgg = import_model("spiking_vgg")
    narrow = [c if c == "M" else c // 16 for c in vgg.cfgs[plan]]
    peer = vgg.SpikingVGG.make_layers(narrow, batch_norm=True, neuron=lif_node)
    whole = build(name, width=1 / 16)
    layers = dict([*whole.named_children()][:-4])  # without the classifier
    ours = Spiking(layers, time_steps=3)
    fire_(ours)
    compare(peer, ours, torch.randn(2, 3, 32, 32), 3)


def test_parametric_lif_is_spikingjellys():
    torch.manual_seed(0)
    for reset, tau, threshold in (("hard", 2.0, 1.0), ("soft", 3.5, 0.5)):
        options = {"v_reset": 0.0 if reset == "hard" else None, "detach_reset": True}
        options["surrogate_function"] = surrogate.ATan()
        peer = neuron.ParametricLIFNode(tau, v_threshold=threshold, step_mode="m", **options)
        ours = PLIF(tau, threshold, reset=reset)
        x = torch.randn(6, 40) * 2
        mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        spikes, expected = ours(mine), peer(theirs)
        assert expected.any()
        assert torch.equal(spikes, expected)
        grad = torch.randn_like(x)
        spikes.backward(grad)
        expected.backward(grad)
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(ours.w.grad, peer.w.grad, rtol=1e-4, atol=1e-6)
        assert ours.tau == pytest.approx(tau)


def test_a_residual_block_adds_spikes_or_currents():
    """By hand: identity weights, so that the branch passes its input on."""

    def branch(*last: nn.Module) -> dict[str, nn.Module]:
        layers = [layer.Conv2d(1, 1, 1, bias=False), *last]
        nn.init.ones_(layers[0].weight)
        return {str(i): x for i, x in enumerate(layers)}

    x = torch.tensor([1.0, 0.0, 1.0]).view(3, 1, 1, 1, 1)
    block = Residual(branch(LIF(tau=1.0)))
    assert block(x).flatten().tolist() == [2.0, 0.0, 2.0]
    block = Residual(branch(), neuron=LIF(tau=2.0))
    assert block(x).flatten().tolist() == [1.0, 0.0, 1.0]  # (1 + 1) / 2 meets the threshold
    strided = Residual(branch(), branch(), copy.deepcopy(block.neuron))
    assert torch.equal(strided(x), block(x))
