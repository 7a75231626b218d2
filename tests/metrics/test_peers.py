"""Models of SpikingJelly, snnTorch and Norse, and the counters of SpikingJelly and NeuroBench."""

import os
import warnings

import pytest
import torch
from brute_force import brute_force_conv, brute_force_linear, prune_
from torch import nn

from spikewire.errors import SpikewireError
from spikewire.metrics import measure

with warnings.catch_warnings():  # raised by their imports
    warnings.simplefilter("ignore")
    import norse.torch as norse
    import snntorch
    from spikingjelly.activation_based import functional, layer, neuron, op_counter

torch.set_num_threads(1)


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
    measured = measure(model, x, masks, time_first=mode == "m", time_steps=1)
    assert torch.equal(model[2].v, before)
    assert model.training
    functional.reset_net(model.eval())
    seen = recorded(model, lambda: model(x))
    flat = seen["4"][0].reshape(-1, 4, 4, 4)
    assert measured.layers[1].synops * 4 == brute_force_conv(flat, masks["4.weight"], model[4])
    assert measured.firing[0].rates.shape == (4, 8, 8)
    assert 0 < measured.firing[0].rate < 1


class Loop(nn.Module):
    """Call a model of one time step per call six times; its state is returned or kept."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        state = ()
        for _ in range(6):
            output = self.model(x, *state)
            state = (output[1],) if isinstance(output, tuple) else ()
        return output


def snntorch_that_keeps_its_state():
    first = snntorch.Leaky(beta=0.5, init_hidden=True)
    second = snntorch.Leaky(beta=0.5, init_hidden=True)
    return nn.Sequential(nn.Linear(12, 20), first, nn.Linear(20, 5), second)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: small_spikingjelly("s"), (4, 1, 8, 8)),
        (snntorch_that_keeps_its_state, (4, 12)),
        (lambda: small_norse(), (4, 12)),
    ],
    ids=["spikingjelly", "snntorch", "norse"],
)
def test_a_model_of_one_time_step_per_call_costs_what_a_loop_over_time_costs(make, shape):
    torch.manual_seed(0)
    model, x = make(), torch.rand(shape) * 20
    found, wanted = measure(model, x, time_steps=6), measure(Loop(model), x)
    assert found.row() == wanted.row()
    assert found.synops > 0


def test_one_time_step_of_a_model_that_runs_one_per_call_is_a_warning():
    x = torch.rand(4, 1, 8, 8)
    with pytest.warns(UserWarning, match="only one was counted; pass time_steps=") as caught:
        found = measure(small_spikingjelly("s"), x)
    assert [warning.filename for warning in caught] == [__file__]
    assert found.samples == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure(small_spikingjelly("s"), x, time_steps=1)
        measure(Loop(small_spikingjelly("s")), x)
        measure(small_snntorch(), torch.rand(4, 12))


def test_time_steps_of_a_model_that_keeps_no_state_are_refused():
    with pytest.raises(SpikewireError, match="time_steps: 6 .* keeps no state between calls"):
        measure(small_snntorch(), torch.rand(4, 12), time_steps=6)
    with pytest.raises(SpikewireError, match="time_steps: 0 .* at least 1"):
        measure(small_snntorch(), torch.rand(4, 12), time_steps=0)


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


class Counts(nn.Module):
    """Three layers that see all time steps in one call, or one after another."""

    def __init__(self, mode):
        super().__init__()
        torch.manual_seed(1)
        self.mode, layers = mode, []
        for inputs, outputs in ((20, 30), (30, 30), (30, 3)):
            linear = layer.Linear(inputs, outputs, bias=False)
            layers += [linear, neuron.IFNode(v_threshold=0.3)]
        self.layers = nn.Sequential(*layers)
        functional.set_step_mode(self, mode)

    def forward(self, x):
        return self.layers(x) if self.mode == "m" else torch.stack([self.layers(t) for t in x])


@pytest.mark.parametrize("first", [3, 1], ids=["counts", "spikes at the first time step"])
def test_counts_of_events_cost_the_same_step_by_step(first):
    """Counts are no spikes, also where neurons have fired at the time step before."""
    torch.manual_seed(0)
    x = torch.randint(0, 4, (6, 16, 20)).float()
    x[0].clamp_(max=first)
    whole, stepwise = (measure(Counts(mode), x, time_first=True).layers for mode in "ms")
    assert (whole[0].synops, stepwise[0].synops) == (0, 0)
    assert whole[1].synops > 0
    for a, b in zip(whole, stepwise, strict=True):
        assert (a.synops, a.macs, a.dense) == pytest.approx((b.synops, b.macs, b.dense))


def test_recurrent_matrices_are_named_as_uncounted():
    model = norse.SequentialState(nn.Linear(3, 4), norse.LIFRecurrentCell(4, 4))
    measured = measure(model, torch.ones(2, 3), synapses=False)
    assert measured.uncounted == ["1.input_weights", "1.recurrent_weights"]
    assert measured.synapses is measured.synapses_reached is measured.synapses_alive is None


def test_neurobench_agrees_on_a_pruned_net():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from neurobench.metrics.workload.synaptic_operations import SynapticOperations
            from neurobench.models import SNNTorchModel
    except ImportError:
        reason = "needs neurobench: pip install --no-deps neurobench==2.3.0"
        assert os.environ.get("SPIKEWIRE_TEST_NO_SKIP") != "1", reason
        pytest.skip(reason)
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


def test_synapses_of_snntorch_and_spikingjelly():
    dense = measure(small_snntorch(), torch.rand(2, 12)).layers
    assert [x.alive for x in dense] == [12 * 20, 20 * 5]
    jelly = measure(small_spikingjelly(), torch.rand(4, 2, 1, 8, 8), time_first=True)
    assert [x.alive for x in jelly.layers] == [x.dense_synapses for x in jelly.layers]
    assert jelly.synapses == jelly.synapses_reached == jelly.synapses_alive == 1
