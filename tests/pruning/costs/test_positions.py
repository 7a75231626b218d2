"""How often a weight is used, by the layer's own arithmetic."""

import pytest
import torch
from torch import nn

from spikewire.pruning.costs.positions import uses_per_weight

LAYERS = {
    "linear": (nn.Linear(5, 3, bias=False), (5,)),
    "conv": (nn.Conv2d(2, 3, 3, padding=1, bias=False), (2, 5, 4)),
    "no padding": (nn.Conv2d(2, 3, (2, 3), bias=False), (2, 5, 4)),
    "stride": (nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), (2, 7, 6)),
    "dilation": (nn.Conv2d(2, 3, 3, padding=2, dilation=2, stride=3, bias=False), (2, 9, 8)),
    "more padding than image": (nn.Conv2d(1, 1, 5, padding=2, bias=False), (1, 1, 2)),
    "one dimension": (nn.Conv1d(2, 3, 4, padding=1, stride=2, bias=False), (2, 9)),
    "three dimensions": (nn.Conv3d(1, 2, 2, padding=1, bias=False), (1, 3, 2, 4)),
    "groups": (nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False), (4, 4, 4)),
    "same, even kernel": (nn.Conv1d(2, 3, 4, padding="same", bias=False), (2, 7)),
    "same": (nn.Conv2d(2, 3, 3, padding="same", dilation=2, bias=False), (2, 6, 5)),
    "circular": (nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular", bias=False), (2, 6)),
    "same, reflected": (
        nn.Conv2d(2, 3, 3, padding="same", padding_mode="reflect", bias=False),
        (2, 6, 5),
    ),
    "same, circular, even kernel": (
        nn.Conv1d(2, 3, 4, padding="same", padding_mode="circular", bias=False),
        (2, 7),
    ),
    "same, replicated, dilation": (
        nn.Conv1d(2, 3, 2, padding="same", dilation=3, padding_mode="replicate", bias=False),
        (2, 7),
    ),
    "valid, reflected": (
        nn.Conv1d(2, 3, 3, padding="valid", padding_mode="reflect", bias=False),
        (2, 7),
    ),
    "transposed": (nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, bias=False), (2, 4, 3)),
    "transposed, larger": (
        nn.ConvTranspose1d(2, 3, 4, stride=3, padding=2, output_padding=1, bias=False),
        (2, 5),
    ),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", LAYERS)
def test_uses_are_the_derivative_of_the_layers_sum_by_each_weight(name):
    """A layer's output summed up is linear in the weight: sum over uses of weight * activity."""
    layer, shape = LAYERS[name]
    layer = layer.double()
    generator = torch.Generator().manual_seed(0)
    activity = torch.randint(0, 9, shape, generator=generator).double()
    layer.zero_grad()
    layer(activity.unsqueeze(0)).sum().backward()
    uses = uses_per_weight(layer, activity)
    assert torch.equal(uses.expand_as(layer.weight), layer.weight.grad)
    if len(shape) > 1:  # one channel stands for all
        layer.zero_grad()
        layer(torch.ones(1, *shape, dtype=torch.float64)).sum().backward()
        uses = uses_per_weight(layer, torch.ones(1, *shape[1:], dtype=torch.int64))
        assert uses.shape == (1, 1, *layer.weight.shape[2:])
        assert torch.equal(uses.expand_as(layer.weight).double(), layer.weight.grad)
