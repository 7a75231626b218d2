"""Synapses between neurons: present, reached from the input, on a path to the output."""

import pytest
import torch
from brute_force import brute_force_links, prune_, search_synapses
from torch import nn

from spikewire.metrics import measure
from spikewire.nn.layers import Spiking
from spikewire.nn.neurons import LIF

torch.set_num_threads(1)


@pytest.mark.parametrize("seed", range(5))
def test_alive_synapses_of_an_mlp_equal_a_search(seed):
    model = Spiking(
        {"a": nn.Linear(6, 9, bias=False), "n": LIF(), "b": nn.Linear(9, 7, bias=False),
         "m": LIF(), "c": nn.Linear(7, 3, bias=False)}, time_steps=3,
    )  # fmt: skip
    masks = prune_(model, 0.2, seed)
    measured = measure(model, torch.rand(2, 6), masks)
    names = ["a.weight", "b.weight", "c.weight"]
    assert [layer.alive for layer in measured.layers] == brute_force_links(names, masks)
    assert [layer.dense_synapses for layer in measured.layers] == [54, 63, 21]
    assert any(layer.alive < layer.present for layer in measured.layers)


def test_a_convolution_counts_each_position_and_a_dead_channel_removes_its_links():
    model = Spiking(
        {"a": nn.Conv2d(1, 2, 3, padding=1, bias=False), "bn": nn.BatchNorm2d(2), "n": LIF(),
         "pool": nn.MaxPool2d(2), "flat": nn.Flatten(), "b": nn.Linear(8, 3, bias=False)}
        , time_steps=2,
    )  # fmt: skip
    masks = {"a.weight": torch.ones(2, 1, 3, 3).bool(), "b.weight": torch.ones(3, 8).bool()}
    # 3x3 on 4x4: an edge loses 3 per position, a corner is counted twice
    one = 9 * 16 - 4 * 3 * 4 + 4

    def counts():
        layers = measure(model, torch.rand(1, 1, 4, 4), masks).layers
        return [(x.synapses, x.reached, x.alive, x.dense_synapses) for x in layers]

    assert counts() == [(2 * one,) * 4, (24,) * 4]
    masks["a.weight"][1] = False  # channel 1 has no input: its 4 pooled outputs are not reachable
    assert counts() == [(one, one, one, 2 * one), (24, 12, 12, 24)]
    masks["b.weight"][:, :4] = False  # and channel 0 leads nowhere, which UPR's count does not see
    assert counts() == [(one, one, 0, 2 * one), (12, 0, 0, 24)]


@pytest.mark.parametrize("seed", range(3))
def test_three_counts_of_a_convolutional_net_at_5_percent_equal_a_search(seed):
    model = Spiking(
        {"a": nn.Conv2d(2, 8, 3, padding=1, bias=False), "bn": nn.BatchNorm2d(8), "n": LIF(),
         "p": nn.MaxPool2d(2), "b": nn.Conv2d(8, 6, 3, padding=1, bias=False), "m": LIF(),
         "q": nn.MaxPool2d(2), "flat": nn.Flatten(), "c": nn.Linear(24, 20, bias=False),
         "o": LIF(), "d": nn.Linear(20, 10, bias=False)}, time_steps=2,
    )  # fmt: skip
    masks = prune_(model, 0.05, seed)
    measured = measure(model, torch.rand(1, 2, 8, 8), masks)
    present, reached, alive = search_synapses(model, masks, (2, 8, 8))
    assert [x.synapses for x in measured.layers] == present
    assert [x.reached for x in measured.layers] == reached
    assert [x.alive for x in measured.layers] == alive
    # one 3x3 map on n x n: (3n - 2)^2 synapses
    dense = 2 * 8 * 22**2 + 8 * 6 * 10**2 + 24 * 20 + 20 * 10
    assert measured.synapses == sum(present) / dense
    assert measured.synapses_reached == sum(reached) / dense
    assert measured.synapses_alive == sum(alive) / dense
    assert sum(alive) < sum(reached) < sum(present)


def test_a_layer_that_is_never_called_has_no_synapses_to_count():
    class Partial(nn.Sequential):
        def forward(self, x):
            return self[0](x)

    measured = measure(Partial(nn.Linear(3, 2), nn.Linear(2, 2)), torch.ones(1, 3))
    assert [layer.alive for layer in measured.layers] == [6, None]
    assert measured.synapses is measured.synapses_reached is measured.synapses_alive is None


class Again(nn.Module):
    """One layer that is used twice, with neurons after each use."""

    def __init__(self):
        super().__init__()
        self.a, self.n, self.m = nn.Linear(2, 2, bias=False), LIF(), LIF()
        self.b = nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return self.b(self.m(self.a(self.n(self.a(x.expand(3, *x.shape))))))


@pytest.mark.parametrize(
    ("a", "b", "counts"),
    [
        ([[1, 1], [0, 0]], [[1, 0]], (4, 3, 3, 8)),  # neuron 1 has no input: a source of use 2
        ([[1, 1], [1, 0]], [[0, 1]], (6, 6, 3, 8)),  # only neuron 1 leads out: 2 alive, then 1
    ],
)
def test_a_layer_that_is_used_twice_has_the_synapses_of_both_uses(a, b, counts):
    masks = {"a.weight": torch.tensor(a).bool(), "b.weight": torch.tensor(b).bool()}
    layer = measure(Again(), torch.rand(1, 2), masks).layers[0]
    assert (layer.synapses, layer.reached, layer.alive, layer.dense_synapses) == counts


@pytest.mark.parametrize(
    ("pool", "windows"),
    [
        (nn.AdaptiveMaxPool2d(4), [[2 * i, 2 * i + 1] for i in range(4)]),
        (nn.MaxPool2d(3, 1, dilation=2), [[i, i + 2, i + 4] for i in range(4)]),
        (nn.MaxPool2d(2, 5, padding=1, dilation=(3, 3)), [[2], [4, 7]]),  # -1 is padding
        (nn.MaxPool2d(2, 4, dilation=3, ceil_mode=True), [[0, 3], [4, 7]]),
        (nn.MaxPool2d(2, 3, dilation=3, ceil_mode=True), [[0, 3], [3, 6], [6]]),  # 9 is outside
    ],
)
def test_max_pooling_links_all_inputs_of_its_windows(pool, windows):
    """One convolution of size 1, and a readout of one window, the same along both dimensions."""
    for first, window in enumerate(windows):
        readout = nn.Linear(len(windows) ** 2, 1, bias=False)
        model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), pool, nn.Flatten(), readout)
        mask = torch.zeros(len(windows), len(windows), dtype=torch.bool)
        mask[first, first] = True
        measured = measure(model, torch.rand(1, 1, 8, 8), {"3.weight": mask.view(1, -1)})
        assert [layer.alive for layer in measured.layers] == [len(window) ** 2, 1]
