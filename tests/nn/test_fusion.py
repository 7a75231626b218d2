"""Which layers run as one group."""

import pytest
from torch import nn

from spikewire.nn.fusion import find_groups
from spikewire.nn.layers import conv
from spikewire.nn.neurons import LIF


def row() -> list[nn.Module]:
    pooled = [conv(3, 8, 3, 1), nn.BatchNorm2d(8), LIF(), nn.MaxPool2d(2)]
    return [*pooled, conv(8, 8, 3, 1), nn.BatchNorm2d(8), LIF(), nn.Flatten()]


def sizes(layers: list[nn.Module], fuse: bool = True) -> list[int]:
    return [len(group) for group in find_groups(layers, fuse)]


def test_batchnorm_neurons_and_a_pool_are_one_group():
    layers = row()
    groups = find_groups(layers)
    assert [layer for group in groups for layer in group] == layers
    assert sizes(layers) == [1, 3, 1, 2, 1]
    assert sizes(layers, fuse=False) == [1] * len(layers)


@pytest.mark.parametrize(("hooked", "expected"), [(1, 1), (2, 1), (3, 2)])
def test_a_layer_with_a_hook_is_left_alone(hooked, expected):
    layers = row()
    layers[hooked].register_forward_hook(lambda *_: None)
    assert sizes(layers)[1] == expected


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(3), nn.MaxPool2d(2, ceil_mode=True), nn.MaxPool2d(2, 1), nn.AvgPool2d(2)]
)
def test_other_pools_stay_outside(pool):
    assert sizes([nn.BatchNorm2d(3), LIF(), pool]) == [2, 1]


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3, momentum=None), nn.BatchNorm1d(3)]
)
def test_other_norms_stay_outside(norm):
    assert sizes([norm, LIF()]) == [1, 1]
