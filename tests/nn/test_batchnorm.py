"""BatchNorm per time step against SpikingJelly run step by step, and where it is used."""

import pytest
import torch
from refusal import refused
from spikingjelly.activation_based import functional, neuron, surrogate
from spikingjelly.activation_based import layer as jelly
from torch import nn

from spikewire.nn import BatchNormPerStep, Spiking, build
from spikewire.nn.fusion import find_groups
from spikewire.nn.layers import conv
from spikewire.nn.neurons import LIF

torch.set_num_threads(1)
STEPS = 8


def ours() -> Spiking:
    layers = {
        "conv1": conv(3, 6, 3, 1), "bn1": BatchNormPerStep(6), "lif1": LIF(),
        "pool": nn.MaxPool2d(2),
        "conv2": conv(6, 5, 3, 1), "bn2": BatchNormPerStep(5), "lif2": LIF(),
    }  # fmt: skip
    return Spiking(layers, time_steps=STEPS)


def theirs() -> nn.Sequential:
    def lif():
        return neuron.LIFNode(
            tau=2.0, surrogate_function=surrogate.ATan(alpha=2.0), detach_reset=True, step_mode="s"
        )

    return nn.Sequential(
        jelly.Conv2d(3, 6, 3, padding=1, bias=False), jelly.BatchNorm2d(6), lif(),
        jelly.MaxPool2d(2),
        jelly.Conv2d(6, 5, 3, padding=1, bias=False), jelly.BatchNorm2d(5), lif(),
    )  # fmt: skip


def test_training_equals_spikingjelly_step_by_step():
    torch.manual_seed(0)
    mine, peer = ours().double(), theirs().double()
    values = [value.clone() for value in mine.state_dict().values()]
    peer.load_state_dict(dict(zip(peer.state_dict(), values, strict=True)))
    for seed in range(3):  # iterations
        images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed)).double()
        goal = torch.rand(STEPS, 4, 5, 4, 4, generator=torch.Generator().manual_seed(seed))
        functional.reset_net(peer)
        expected = torch.stack([peer(images) for _ in range(STEPS)])
        out = mine(images)
        assert out.mean() > 0.02, "neurons fire"
        torch.testing.assert_close(out, expected)
        for model, spikes in ((mine, out), (peer, expected)):
            model.zero_grad()
            (spikes * goal).sum().backward()
    for a, b in zip(mine.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
    for a, b in zip(mine.state_dict().values(), peer.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)
    assert [int(b) for name, b in mine.named_buffers() if "tracked" in name] == [3 * STEPS] * 2


def test_joint_statistics_are_another_network():
    x = torch.randn(STEPS, 4, 6, 8, 8) * torch.arange(1.0, STEPS + 1).view(-1, 1, 1, 1, 1)
    per_step, joint = BatchNormPerStep(6)(x), nn.BatchNorm2d(6)(x.flatten(0, 1)).view_as(x)
    torch.testing.assert_close(per_step.std((1, 2, 3, 4)), torch.ones(STEPS), rtol=0, atol=0.01)
    assert joint.std((1, 2, 3, 4)).max() > 1.5


def test_evaluation_is_that_of_plain_batchnorm():
    norm, plain = BatchNormPerStep(6), nn.BatchNorm2d(6)
    norm(torch.randn(STEPS, 4, 6, 8, 8))
    plain.load_state_dict(norm.state_dict())
    x = torch.randn(STEPS, 4, 6, 8, 8)
    assert norm.eval()(x).equal(plain.eval()(x.flatten(0, 1)).view_as(x))


def test_it_is_never_fused():
    assert [len(group) for group in find_groups(ours())] == [1] * 7


@pytest.mark.parametrize("name", ["cifar10-conv", "cifar10-conv-avg"])
def test_a_model_by_name_has_it_and_the_same_parameters(name):
    joint, per_step = (build(name, batchnorm=word) for word in ("joint", "per-step"))
    norms = [m for m in per_step.modules() if isinstance(m, nn.BatchNorm2d)]
    assert [type(m) for m in norms] == [BatchNormPerStep] * 6
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (joint, per_step)]
    assert shapes[0] == shapes[1]


def test_statistics_per_step_after_a_fully_connected_layer_are_refused():
    with torch.device("meta"):
        refused(lambda: build("cifar10-admm", batchnorm="per-step"), "batchnorm", "joint")
