"""Links between neurons on paths from input to output."""

import pytest
import torch
from brute_force import brute_force_links, prune_
from torch import nn

from spikewire.metrics import measure
from spikewire.nn.layers import Spiking
from spikewire.nn.neurons import LIF

torch.set_num_threads(1)


@pytest.mark.parametrize("seed", range(5))
def test_alive_links_of_an_mlp_equal_a_search(seed):
    model = Spiking(
        {"a": nn.Linear(6, 9, bias=False), "n": LIF(), "b": nn.Linear(9, 7, bias=False),
         "m": LIF(), "c": nn.Linear(7, 3, bias=False)}, time_steps=3,
    )  # fmt: skip
    masks = prune_(model, 0.2, seed)
    measured = measure(model, torch.rand(2, 6), masks)
    names = ["a.weight", "b.weight", "c.weight"]
    assert [layer.links for layer in measured.layers] == brute_force_links(names, masks)
    assert [layer.dense_links for layer in measured.layers] == [54, 63, 21]
    assert any(layer.links < layer.present for layer in measured.layers)


def test_a_convolution_counts_each_position_and_a_dead_channel_removes_its_links():
    model = Spiking(
        {"a": nn.Conv2d(1, 2, 3, padding=1, bias=False), "bn": nn.BatchNorm2d(2), "n": LIF(),
         "pool": nn.MaxPool2d(2), "flat": nn.Flatten(), "b": nn.Linear(8, 3, bias=False)}
        , time_steps=2,
    )  # fmt: skip
    masks = {"a.weight": torch.ones(2, 1, 3, 3).bool(), "b.weight": torch.ones(3, 8).bool()}
    links = (
        9 * 16 - 4 * 3 * 4 + 4
    )  # 3x3 on 4x4: an edge loses 3 per position, a corner is counted twice
    assert [x.links for x in measure(model, torch.rand(1, 1, 4, 4), masks).layers] == [
        2 * links,
        24,
    ]
    masks["a.weight"][1] = False  # channel 1 has no input: its 4 pooled outputs are not reachable
    assert [x.links for x in measure(model, torch.rand(1, 1, 4, 4), masks).layers] == [links, 12]
    masks["b.weight"][:, :4] = False  # and channel 0 has no output
    assert measure(model, torch.rand(1, 1, 4, 4), masks).synapse_connectivity == 0


def test_a_layer_that_is_never_called_has_no_links_to_count():
    class Partial(nn.Sequential):
        def forward(self, x):
            return self[0](x)

    measured = measure(Partial(nn.Linear(3, 2), nn.Linear(2, 2)), torch.ones(1, 3))
    assert [layer.links for layer in measured.layers] == [6, None]
    assert measured.synapse_connectivity is None
