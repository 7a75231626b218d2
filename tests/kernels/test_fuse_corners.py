"""`fuse` in corners of users' models: each computes what it computes without, or is refused."""

import copy

import pytest
from comparison import normal, relative_error
from test_fuse import run, small
from torch import Tensor, nn

import spikewire
from spikewire.nn import LIF, Spiking


class Joined(nn.Module):
    """BatchNorm, neurons and a pool, used as a function says."""

    def __init__(self, use):
        super().__init__()
        self.norm, self.node, self.pool = small()
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x)


def assert_same(model: nn.Module, x: Tensor) -> None:
    """Assert that fusing changes neither output, gradients nor buffers."""
    twin = copy.deepcopy(model)
    assert spikewire.fuse(model) == 1
    (out, grads), (expected, truth) = run(model, x), run(twin, x)
    for a, b in zip([out, *grads], [expected, *truth], strict=True):
        assert relative_error(a, b) < 1e-5
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert relative_error(a, b) < 1e-5


def add_to_spikes(net: Joined, x: Tensor) -> Tensor:
    out = net.node(net.norm(x))
    out += x  # as the blocks of SEW-ResNet do
    return out


def add_before_the_pool(net: Joined, x: Tensor) -> Tensor:
    return net.pool(add_to_spikes(net, x))


def add_after_the_pool(net: Joined, x: Tensor) -> Tensor:
    return net.pool(net.node(net.norm(x))).add_(x[..., ::2, ::2])


@pytest.mark.parametrize("use", [add_to_spikes, add_before_the_pool, add_after_the_pool])
def test_spikes_may_be_modified_in_place(use):
    assert_same(Joined(use), normal(4, 2, 3, 6, 6))


def test_spikes_of_a_fused_network_may_be_modified_in_place():
    model = Spiking({"bn": nn.BatchNorm2d(3), "lif": LIF()}, time_steps=4)
    spikes = model.to(normal(1).device)(normal(2, 3, 6, 6))
    spikes += 1
    spikes.sum().backward()
    assert model.bn.weight.grad is not None
