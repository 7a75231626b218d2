"""Operations and spikes against slow counts; measuring leaves the model unchanged."""

import pytest
import torch
from brute_force import brute_force_conv, brute_force_linear, prune_, spikes
from torch import nn

from spikewire.errors import SpikewireError
from spikewire.metrics import measure, packed_bytes
from spikewire.nn import models
from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.layers import Spiking
from spikewire.nn.neurons import LIF
from spikewire.nn.sequence import Residual
from spikewire.pruning.statistics import MaskCounter

torch.set_num_threads(1)


def test_linear_synops_equal_brute_force():
    model = nn.Linear(7, 5)
    masks = prune_(model)
    x = spikes(4, 7)
    assert measure(model, x).synops * 4 == pytest.approx(brute_force_linear(x, masks["weight"]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": 1},
        {"padding": 2, "stride": 2},
        {"dilation": 2, "padding": 1},
        {"groups": 2, "padding": 1},
    ],
)
def test_conv_synops_equal_brute_force(options):
    model = nn.Conv2d(4, 6, 3, **options)
    masks = prune_(model)
    x = spikes(2, 4, 6, 6)
    measured = measure(model, x)
    assert measured.synops * 2 == brute_force_conv(x, masks["weight"], model)
    everything = torch.ones_like(masks["weight"])
    assert measured.unpruned * 2 == brute_force_conv(x, everything, model)
    assert measured.dense * 2 == brute_force_conv(torch.ones_like(x), everything, model)
    assert measured.macs == 0


@pytest.mark.parametrize("mode", ["circular", "reflect"])
def test_padding_that_repeats_the_image_counts_its_spikes(mode):
    model = nn.Conv2d(1, 1, 3, padding=1, padding_mode=mode)
    assert measure(model, torch.ones(1, 1, 4, 4)).synops == 16 * 9


def test_transposed_convolution_spreads_each_spike():
    model = nn.ConvTranspose2d(2, 3, 2, stride=2)
    masks = prune_(model, 0.5)
    x = spikes(3, 2, 4, 4)
    expected = sum(x[:, c].sum() * masks["weight"][c].sum() for c in range(2)) / 3
    assert measure(model, x).synops == pytest.approx(float(expected))


def test_analogue_input_counts_as_macs_and_the_static_first_layer_once():
    model = models.build("digits-mlp", time_steps=4)
    scale_to_fire_(model, torch.rand(8, 1, 8, 8))
    measured = measure(model, torch.rand(8, 1, 8, 8) + 0.1)
    first, second = measured.layers
    assert (first.macs, first.synops) == (64 * 256, 0)
    assert second.macs == 0
    assert second.synops == pytest.approx(measured.firing[0].rate * 256 * 4 * 10)
    assert second.dense == 256 * 10 * 4


def test_a_given_mask_counts_instead_of_non_zero_weights():
    model = nn.Linear(3, 2)
    model.weight.data.zero_()
    assert measure(model, torch.ones(1, 3)).synops == 0
    assert measure(model, torch.ones(1, 3), {"weight": torch.ones(2, 3).bool()}).synops == 6
    with pytest.raises(SpikewireError, match=r"masks\['weight'\]: \(3, 2\) is not allowed"):
        measure(model, torch.ones(1, 3), {"weight": torch.ones(3, 2).bool()})


def test_a_mask_counts_for_all_layers_of_a_tied_weight():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), LIF(), nn.Linear(3, 3, bias=False))
    model[2].weight = model[0].weight
    mask = torch.eye(3).bool()
    for name in ("0.weight", "2.weight"):
        measured = measure(model, torch.ones(1, 1, 3), {name: mask})
        assert [layer.present for layer in measured.layers] == [3, 3]


def test_a_layer_that_is_used_without_being_called_is_uncounted():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(4, 8, bias=False)
            self.attention = nn.MultiheadAttention(8, 2, bias=False)

        def forward(self, x):
            x = self.fc1(x)
            return self.attention(x, x, x)[0]

    measured = measure(Attention(), torch.ones(5, 2, 4), time_first=True, synapses=False)
    assert measured.uncounted == ["attention.in_proj_weight", "attention.out_proj.weight"]
    assert measured.layers[0].synops == 5 * 4 * 8


class OneStepLIF(LIF):
    """A LIF of one time step."""

    def forward(self, current):
        return super().forward(current.unsqueeze(0))


def test_a_loader_is_averaged_over_its_samples():
    model = nn.Sequential(nn.Linear(6, 4), OneStepLIF())
    x = spikes(10, 6)
    whole = measure(model, x)
    parts = measure(model, [(x[:3], 0), (x[3:], 0)])
    assert parts.samples == 10
    assert parts.synops == pytest.approx(whole.synops)
    assert torch.allclose(parts.firing[0].rates, whole.firing[0].rates)


# ---------------------------------------------------------------------- the model is left unchanged


def test_measuring_changes_nothing():
    torch.manual_seed(0)
    model = models.build("lenet5", time_steps=2).train()
    calls = []
    handle = model.conv1.register_forward_hook(lambda *_: calls.append(1))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.rand(2, 1, 28, 28)
    rng = torch.get_rng_state()
    measure(model, x)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert model.training
    assert all(m.training for m in model.modules())
    assert not model.fc1._forward_pre_hooks
    seen = len(calls)
    handle.remove()
    model(x)
    assert len(calls) == seen
    assert all(p.grad is None for p in model.parameters())


def test_a_failure_leaves_no_hook_behind():
    model = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(RuntimeError):
        measure(model, torch.ones(1, 5))
    assert not model[0]._forward_pre_hooks


def test_bad_input_is_refused():
    with pytest.raises(SpikewireError, match="model: 'ReLU' is not allowed"):
        measure(nn.ReLU(), torch.ones(1))
    with pytest.raises(SpikewireError, match="batch: 'ndarray' is not allowed; it must be a ten"):
        measure(nn.Linear(3, 2), torch.ones(2, 3).numpy())
    with pytest.raises(SpikewireError, match="batch: is empty"):
        measure(nn.Linear(2, 2), [])


# ---------------------------------------------------------------------- bytes, changes


def test_packed_bytes_by_hand():
    mask = torch.zeros(2000).bool()
    mask[[0, 300, 301]] = True  # gaps 0, 299 (one escape), 0
    assert packed_bytes(mask) == 3 + 1 + 3 * 2
    assert packed_bytes(torch.ones(80).bool()) == 160
    half = torch.arange(800) % 2 == 0
    assert packed_bytes(half) == 100 + 800
    assert packed_bytes(torch.zeros(5).bool()) == 0


def test_changes_count_both_ways():
    before = {"w": torch.tensor([True, True, False, False])}
    after = {"w": torch.tensor([True, False, True, True])}
    assert MaskCounter(before).changes(after)["w"] == {
        "present": 3, "total": 4, "pruned": 1, "regrown": 2, "turnover": 3 / 5,
    }  # fmt: skip


def test_sums_of_spikes_count_every_spike():
    """A shortcut adds spikes: an input of 2 makes two operations per synapse, as brute force."""
    block = Residual({"conv": nn.Conv2d(3, 3, 3, padding=1, bias=False), "lif": LIF(tau=1.0)})
    last = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)
    model = Spiking({"lif1": LIF(tau=1.0), "block": block, "last": last, "lif2": LIF()})
    masks = prune_(model)
    model.time_steps = 2
    nn.init.constant_(block.branch.conv.weight, 0.1)
    x, seen = spikes(2, 3, 6, 6), []
    handle = last.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0]))
    model.eval()(x)
    handle.remove()
    assert seen[0].unique().tolist() == [0, 1, 2]
    once = [(seen[0] >= n).float() for n in (1, 2)]  # one spike each, in two layers of 0 and 1
    mask = masks["last.weight"]
    expected = sum(brute_force_conv(part, mask, last) for part in once)
    measured = measure(model, x, {name: m for name, m in masks.items() if name == "last.weight"})
    assert measured.layers[1].synops * 2 == expected
    assert measured.macs == 0


def test_whole_numbers_of_an_image_are_not_spikes():
    measured = measure(nn.Sequential(nn.Linear(3, 2), LIF()), torch.tensor([[2.0, 0.0, 1.0]]))
    assert (measured.macs, measured.synops) == (4, 0)
