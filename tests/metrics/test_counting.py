import math
import os
import warnings

import pytest
import torch
from torch import nn

import spikewire.metrics.counting as metrics
from spikewire.errors import SpikewireError
from spikewire.metrics.counting import measure
from spikewire.nn import models
from spikewire.nn.neurons import LIF

with warnings.catch_warnings():  # what they do when imported is not ours to mend
    warnings.simplefilter("ignore")
    import norse.torch as norse
    import snntorch
    from spikingjelly.activation_based import functional, layer, neuron, op_counter

torch.set_num_threads(1)


def prune_(model, share=0.3, seed=0):
    """Zero weights at random; return the masks."""
    generator = torch.Generator().manual_seed(seed + 1000)  # not the seed of the weights
    masks = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            mask = torch.rand(parameter.shape, generator=generator) < share
            parameter.data.mul_(mask)
            masks[name] = mask
    return masks


def spikes(*shape, share=0.3, seed=1):
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share).float()


def brute_force_linear(x, mask):
    """Count one operation for every (spike, surviving weight) pair, one by one."""
    return sum(
        int(mask[o, i])
        for frame in x
        for i in range(x.shape[1])
        if frame[i]
        for o in range(len(mask))
    )


def brute_force_conv(x, mask, conv):
    """Walk over every output position and kernel place; padding holds no spike."""
    (stride, _), (pad, _), (dilation, _) = conv.stride, conv.padding, conv.dilation
    out_per, in_per = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    height = (x.shape[2] + 2 * pad - dilation * (conv.kernel_size[0] - 1) - 1) // stride + 1
    total = 0
    for frame in x:
        for o in range(conv.out_channels):
            for y in range(height):
                for z in range(height):
                    for c in range(in_per):
                        for i in range(conv.kernel_size[0]):
                            for j in range(conv.kernel_size[1]):
                                row = y * stride + i * dilation - pad
                                column = z * stride + j * dilation - pad
                                inside = 0 <= row < x.shape[2] and 0 <= column < x.shape[3]
                                channel = o // out_per * in_per + c
                                if inside and frame[channel, row, column]:
                                    total += int(mask[o, c, i, j])
    return total


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
    models.scale_to_fire_(model, torch.rand(8, 1, 8, 8))
    measured = measure(model, torch.rand(8, 1, 8, 8) + 0.1)
    first, second = measured.layers
    assert (first.macs, first.synops) == (64 * 256, 0)
    assert second.macs == 0
    assert second.synops == pytest.approx(measured.firing[0].rate * 256 * 4 * 10)
    assert second.dense == 256 * 10 * 4


def test_the_mask_is_the_truth_where_it_is_given():
    model = nn.Linear(3, 2)
    model.weight.data.zero_()
    assert measure(model, torch.ones(1, 3)).synops == 0
    assert measure(model, torch.ones(1, 3), {"weight": torch.ones(2, 3).bool()}).synops == 6
    with pytest.raises(SpikewireError, match=r"masks\['weight'\]: \(3, 2\) is not allowed"):
        measure(model, torch.ones(1, 3), {"weight": torch.ones(3, 2).bool()})


def test_a_loader_is_averaged_over_its_samples():
    model = nn.Sequential(nn.Linear(6, 4), LIF_flat())
    x = spikes(10, 6)
    whole = measure(model, x)
    parts = measure(model, [(x[:3], 0), (x[3:], 0)])
    assert parts.samples == 10
    assert parts.synops == pytest.approx(whole.synops)
    assert torch.allclose(parts.firing[0].rates, whole.firing[0].rates)


class LIF_flat(LIF):
    """One time step of ours."""

    def forward(self, current):
        return super().forward(current.unsqueeze(0))


# ---------------------------------------------------------------------- peers


def small_snntorch():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.lif1 = nn.Linear(12, 20), snntorch.Leaky(beta=0.5)
            self.fc2, self.lif2 = nn.Linear(20, 5), snntorch.Leaky(beta=0.5)

        def forward(self, x):
            m1, m2 = self.lif1.init_leaky(), self.lif2.init_leaky()
            out = []
            for _ in range(6):
                s1, m1 = self.lif1(self.fc1(x), m1)
                s2, m2 = self.lif2(self.fc2(s1), m2)
                out.append(s2)
            return torch.stack(out)

    return Net()


def small_spikingjelly(mode="m"):
    net = nn.Sequential(
        layer.Conv2d(1, 4, 3, padding=1, bias=False),
        layer.BatchNorm2d(4),
        neuron.LIFNode(),
        layer.MaxPool2d(2),
        layer.Conv2d(4, 6, 3, bias=False),
        neuron.LIFNode(),
        layer.Flatten(),
        layer.Linear(24, 5, bias=False),
        neuron.LIFNode(),
    )
    functional.set_step_mode(net, mode)
    return net


def small_norse():
    return norse.SequentialState(
        nn.Linear(12, 20), norse.LIFBoxCell(), nn.Linear(20, 5), norse.LIFBoxCell()
    )


def recorded(model, forward):
    """Return each synaptic layer's inputs by independent hooks."""
    seen = {}
    handles = [
        m.register_forward_pre_hook(lambda m, i, n=n: seen.setdefault(n, []).append(i[0].detach()))
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear | nn.Conv2d)
    ]
    forward()
    for handle in handles:
        handle.remove()
    return seen


def test_snntorch_model():
    torch.manual_seed(0)
    model = small_snntorch()
    masks = prune_(model, 0.5)
    x = torch.rand(8, 12) * 20
    measured = measure(model, x, masks)
    seen = recorded(model, lambda: model(x))
    spiking = torch.stack(seen["fc2"])
    assert spiking.sum() > 0
    expected = sum(brute_force_linear(frame, masks["fc2.weight"]) for frame in spiking)
    assert measured.layers[1].synops * 8 == expected
    assert measured.layers[0].macs * 8 == 6 * brute_force_linear(x != 0, masks["fc1.weight"])
    assert torch.allclose(measured.firing[0].rates.float(), spiking.mean((0, 1)), atol=1e-6)


@pytest.mark.parametrize("mode", ["m", "s"])
def test_spikingjelly_model_in_both_modes_and_its_state_is_kept(mode):
    torch.manual_seed(0)
    model = small_spikingjelly(mode)
    masks = prune_(model, 0.5)
    x = torch.rand(*((4,) if mode == "m" else ()), 4, 1, 8, 8) * 50  # time = batch: the hard case
    model(x)
    before = model[2].v.clone()
    measured = measure(model, x, masks, time_first=mode == "m")
    assert torch.equal(model[2].v, before)
    assert model.training
    functional.reset_net(model.eval())
    seen = recorded(model, lambda: model(x))
    flat = seen["4"][0].reshape(-1, 4, 4, 4)
    assert measured.layers[1].synops * 4 == brute_force_conv(flat, masks["4.weight"], model[4])
    assert measured.firing[0].rates.shape == (4, 8, 8)
    assert 0 < measured.firing[0].rate < 1


def test_a_counter_that_ignores_zeros_does_not_agree():
    """SpikingJelly's own counter, on the same pruned net and input."""
    torch.manual_seed(0)
    model = small_spikingjelly()
    masks = prune_(model, 0.1)
    x = torch.rand(4, 2, 1, 8, 8) * 50
    measured = measure(model, x, masks, time_first=True)
    functional.reset_net(model.eval())
    counter = op_counter.SynOpCounter()
    with torch.no_grad(), op_counter.DispatchCounterMode([counter]):
        model(x)
    blind = sum(counter.records["Global"].values()) / 2
    spiking = measured.layers[1:]  # the image itself is no spike
    assert blind == sum(layer.unpruned for layer in spiking)
    assert 0 < sum(layer.synops for layer in spiking) < 0.3 * blind


def test_norse_model():
    torch.manual_seed(0)
    model = small_norse()
    masks = prune_(model, 0.5)
    x = torch.rand(8, 12) * 40
    measured = measure(model, x, masks)
    seen = recorded(model, lambda: model(x))
    assert measured.layers[1].synops * 8 == brute_force_linear(seen["2"][0], masks["2.weight"])
    assert len(measured.firing) == 2


def test_recurrent_matrices_are_named_as_uncounted():
    model = norse.SequentialState(nn.Linear(3, 4), norse.LIFRecurrentCell(4, 4))
    measured = measure(model, torch.ones(2, 3), synapses=False)
    assert measured.uncounted == ["1.input_weights", "1.recurrent_weights"]
    assert measured.synapse_connectivity is None


def test_neurobench_agrees_on_a_pruned_net():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from neurobench.metrics.workload.synaptic_operations import SynapticOperations
            from neurobench.models import SNNTorchModel
    except ImportError:
        assert not os.environ.get("CI"), "pip install --no-deps neurobench==2.3.0"
        pytest.skip("pip install --no-deps neurobench==2.3.0")
    torch.manual_seed(0)
    net = small_snntorch()
    prune_(net, 0.3)
    x = torch.rand(8, 12) * 20
    peer, metric = SNNTorchModel(net, custom_forward=True), SynapticOperations()
    peer.register_hooks()
    with torch.no_grad():
        theirs = metric(peer, peer(x), (x, None))
    peer.cleanup_hooks()
    ours = measure(net, x)
    assert ours.synops == pytest.approx(float(theirs["Effective_ACs"]))
    assert ours.macs == pytest.approx(float(theirs["Effective_MACs"]))
    assert ours.dense == pytest.approx(float(theirs["Dense"]))
    assert 0 < ours.synops < 0.4 * ours.unpruned


# ---------------------------------------------------------------------- purity


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
    with pytest.raises(SpikewireError, match="batch: is empty"):
        measure(nn.Linear(2, 2), [])


# ---------------------------------------------------------------------- synapse connectivity


def brute_force_links(weights, masks):
    """Depth-first over an MLP's neurons: a link lives if some path input -> output uses it."""
    sizes = [masks[weights[0]].shape[1], *(masks[w].shape[0] for w in weights)]
    reached = [set(range(sizes[0]))]
    for w in weights:
        reached.append(
            {o for o in range(masks[w].shape[0]) if any(masks[w][o, i] for i in reached[-1])}
        )
    leads = [set(range(sizes[-1]))]
    for w in reversed(weights):
        leads.insert(
            0, {i for i in range(masks[w].shape[1]) if any(masks[w][o, i] for o in leads[0])}
        )
    return [
        sum(int(masks[w][o, i]) for i in reached[k] for o in leads[k + 1])
        for k, w in enumerate(weights)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_living_links_of_an_mlp_equal_a_search(seed):
    model = models.Spiking(
        {"a": nn.Linear(6, 9, bias=False), "n": LIF(), "b": nn.Linear(9, 7, bias=False),
         "m": LIF(), "c": nn.Linear(7, 3, bias=False)}, time_steps=3,
    )  # fmt: skip
    masks = prune_(model, 0.2, seed)
    measured = measure(model, torch.rand(2, 6), masks)
    names = ["a.weight", "b.weight", "c.weight"]
    assert [layer.links for layer in measured.layers] == brute_force_links(names, masks)
    assert [layer.dense_links for layer in measured.layers] == [54, 63, 21]
    assert any(layer.links < layer.present for layer in measured.layers)


def test_a_convolution_counts_each_use_and_a_dead_channel_takes_its_links_along():
    model = models.Spiking(
        {"a": nn.Conv2d(1, 2, 3, padding=1, bias=False), "bn": nn.BatchNorm2d(2), "n": LIF(),
         "pool": nn.MaxPool2d(2), "flat": nn.Flatten(), "b": nn.Linear(8, 3, bias=False)}
        , time_steps=2,
    )  # fmt: skip
    masks = {"a.weight": torch.ones(2, 1, 3, 3).bool(), "b.weight": torch.ones(3, 8).bool()}
    links = 9 * 16 - 4 * 3 * 4 + 4  # 3x3 on 4x4: an edge loses 3 per place, a corner counted twice
    assert [x.links for x in measure(model, torch.rand(1, 1, 4, 4), masks).layers] == [
        2 * links,
        24,
    ]
    masks["a.weight"][1] = False  # channel 1 hears nothing: its 4 pooled outputs lead nowhere
    assert [x.links for x in measure(model, torch.rand(1, 1, 4, 4), masks).layers] == [links, 12]
    masks["b.weight"][:, :4] = False  # and channel 0 is not listened to
    assert measure(model, torch.rand(1, 1, 4, 4), masks).synapse_connectivity == 0


def test_synapse_connectivity_of_snntorch_and_spikingjelly():
    dense = measure(small_snntorch(), torch.rand(2, 12)).layers
    assert [x.links for x in dense] == [12 * 20, 20 * 5]
    jelly = measure(small_spikingjelly(), torch.rand(4, 2, 1, 8, 8), time_first=True)
    assert [x.links for x in jelly.layers] == [x.dense_links for x in jelly.layers]
    assert jelly.synapse_connectivity == 1


# ---------------------------------------------------------------------- energy, bytes, changes


def test_energy_keeps_memory_apart():
    measured = measure(nn.Linear(10, 10), torch.ones(1, 10))
    assert measured.energy().compute == pytest.approx(90.0)
    assert measured.energy().memory == pytest.approx(500.0)
    costs = metrics.Costs(accumulate=0.1, weight_read=0)
    assert measured.energy(costs) == metrics.Energy(pytest.approx(10.0), 0.0)


def test_silent_and_saturated_shares():
    firing = metrics.Firing("lif", torch.tensor([0.0, 0.0, 0.5, 1.0]))
    assert (firing.rate, firing.silent, firing.saturated) == (0.375, 0.5, 0.25)


def test_packed_bytes_by_hand():
    mask = torch.zeros(2000).bool()
    mask[[0, 300, 301]] = True  # gaps 0, 299 (one escape), 0
    assert metrics.packed_bytes(mask) == 3 + 1 + 3 * 2
    assert metrics.packed_bytes(torch.ones(80).bool()) == 160
    half = torch.arange(800) % 2 == 0
    assert metrics.packed_bytes(half) == 100 + 800
    assert metrics.packed_bytes(torch.zeros(5).bool()) == 0


def test_changes_count_both_ways():
    before = {"w": torch.tensor([True, True, False, False])}
    after = {"w": torch.tensor([True, False, True, True])}
    assert metrics.changes(before, after)["w"] == {
        "present": 3, "total": 4, "pruned": 1, "regrown": 2, "turnover": 3 / 5,
    }  # fmt: skip


def test_row_is_flat_and_finite():
    model = models.build("digits-mlp", time_steps=2)
    row = measure(model, torch.rand(4, 1, 8, 8)).row()
    assert all(isinstance(v, int | float) and math.isfinite(v) for v in row.values())
