"""The Tempotron with gates: encoding, potentials and both rules against loops over time."""

import math

import pytest
import torch
from refusal import refused

from spikewire import plasticity
from spikewire.config import resolve
from spikewire.plasticity.spikes import latency
from spikewire.report import write
from spikewire.train.loop import fit

STEPS, DT, TAU = 12, 2.5, 15.0  # a membrane of 15 ms, a synapse of 3.75 ms


def network(*constants, hidden=5, classes=2):
    sizes = {"input_shape": (1, 2, 3), "classes": classes, "hidden": hidden, "time_steps": STEPS}
    return plasticity.build("tempotron", **sizes, constants=constants)


def times(pixels, window=0.4, dark=0.1):
    """Return the step at which each pixel spikes, None where it does not."""
    return [round((1 - x) * window * (STEPS - 1)) if x > dark else None for x in pixels]


def kernel(t):
    """K(t) = V0 (exp(-t / tau_m) - exp(-t / tau_s)), with tau_m = 4 tau_s and a peak of 1."""
    fast = TAU / 4
    peak = TAU * fast / (TAU - fast) * math.log(4)
    scale = math.exp(-peak / TAU) - math.exp(-peak / fast)
    return (math.exp(-t / TAU) - math.exp(-t / fast)) / scale if t >= 0 else 0.0


def potential(weights, spikes, t):
    pairs = zip(weights, spikes, strict=True)
    return sum(w * kernel((t - s) * DT) for w, s in pairs if s is not None)


def example(seed, *constants):
    torch.manual_seed(seed)
    net = network(*constants).double()
    net.fc1.weight.data.normal_(0.2, 0.3)
    return net, torch.rand(4, 1, 2, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0])


def test_the_brighter_a_pixel_the_earlier_it_spikes_and_dark_ones_do_not():
    pixels = [1.0, 0.9, 0.5, 0.11, 0.1, 0.0]
    spikes = latency(torch.tensor([pixels]), STEPS, 0.4, 0.1)[:, 0]
    found = [int(s.argmax()) if s.any() else None for s in spikes.T]
    assert found == times(pixels)
    assert found[0] == 0
    assert found[3] == 4
    assert found[4:] == [None, None]
    assert spikes.sum() == 4


@pytest.mark.parametrize("seed", [0, 1])
def test_the_weights_follow_the_tempotron_rule(seed):
    net, images, labels = example(seed)
    change = torch.zeros(5, 6, dtype=torch.float64)
    outputs, errors = [], 0
    for image, label in zip(images, labels.tolist(), strict=True):
        spikes, largest = times(image.flatten().tolist()), []
        for j, weights in enumerate(net.fc1.weight.tolist()):
            trace = [potential(weights, spikes, t) for t in range(STEPS)]
            largest.append(max(trace))
            error = (j % 2 == label) - (max(trace) >= 1.0)
            errors += abs(error)
            for i, s in enumerate(spikes):
                if s is not None:
                    change[j, i] += error * kernel((trace.index(max(trace)) - s) * DT)
        means = [sum(largest[k::2]) / len(largest[k::2]) for k in range(2)]
        outputs.append(torch.tensor(means, dtype=torch.float64).softmax(0))
    before = net.fc1.weight.detach().clone()
    found = net.learn(images, labels)
    torch.testing.assert_close(found[0], torch.stack(outputs))
    torch.testing.assert_close(net.fc1.weight.grad, -change)
    assert 0 < errors < 20
    net.optimizer(lr=0.1).step()
    torch.testing.assert_close(net.fc1.weight.detach(), before + 0.1 * change)
    assert bool((net.fc1.gate == 1).all())


@pytest.mark.parametrize("seed", [0, 1])
def test_every_second_batch_moves_the_gates_by_stdp_and_no_weight(seed):
    net, images, labels = example(seed, "offset:0.6", "gate_rate:0.1", "tau_gate:8")
    expected = torch.full((5, 6), 0.9, dtype=torch.float64)
    net.fc1.gate.fill_(0.9)
    net.learn(images, labels)
    assert bool((net.fc1.gate == 0.9).all())
    fired = 0
    for image in images:
        spikes = times(image.flatten().tolist())
        for j, weights in enumerate(net.fc1.weight.tolist()):
            trace = [potential(weights, spikes, t) for t in range(STEPS)]
            first = next((t for t, v in enumerate(trace) if v >= 1.0), None)
            if first is None:
                continue
            fired += 1
            for i, s in enumerate(spikes):
                before = s is not None and s <= first
                expected[j, i] -= 0.1 * 0.6
                if before:
                    expected[j, i] += 0.1 * math.exp(-(first - s) * DT / 8)
    net.learn(images, labels)
    assert 0 < fired < 20
    torch.testing.assert_close(net.fc1.gate, expected.clamp(0, 1))
    assert not net.fc1.weight.grad.any()


def test_it_needs_a_neuron_per_class():
    refused(lambda: network(hidden=3, classes=4), "hidden: 3", "at least 4")


def test_it_learns_digits_with_fewer_connections_and_resumes_to_the_same_bits(tmp_path, caplog):
    flags = {"dataset": "digits", "epochs": "6", "lr": "3e-3"}
    flags |= {"plasticity": "offset:0.05"}
    config = resolve("mnist-tempotron", flags=flags)
    whole = fit(config, tmp_path / "whole")
    assert whole.accuracy > 0.85
    assert "gradient is 0" not in caplog.text, "batches that move the gates move no weight"
    assert 0.4 < whole.connectivity < 0.9
    gate = whole.model.fc1.gate
    assert torch.equal(whole.masks["fc1.weight"], gate >= 0.5)
    assert torch.equal(whole.model.fc1.weight != 0, gate >= 0.5)
    measured = whole.history[-1]["measured"]
    assert measured["synops"] > 0, "inputs are spikes"
    assert measured["synapses"] is None, "which no tracer can follow, so the report must do without"
    write([tmp_path / "whole"], tmp_path / "page.md", format="md")

    def stop(event):
        if getattr(event, "step", 0) == 151:  # the next batch moves the gates
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(config, tmp_path / "cut", progress=stop)
    again = fit(config, tmp_path / "cut", resume=True)
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[key]), key
