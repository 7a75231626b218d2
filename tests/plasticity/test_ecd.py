"""Event-driven contrastive divergence: neurons as published, learning against loops, digits."""

import math

import pytest
import torch
from refusal import refused

from spikewire import plasticity
from spikewire.config import resolve
from spikewire.plasticity import ECD
from spikewire.plasticity.ecd import Layer
from spikewire.train.loop import fit

STEPS = 30


def machine():
    sizes = {"input_shape": (1, 1, 3), "classes": 2, "hidden": 4, "time_steps": STEPS}
    network = plasticity.build("ecd", **sizes, constants=("label_units:1", "start:1"))
    with torch.no_grad():
        network.fc1.bias.normal_()
        network.visible_bias.normal_()
    return network


def test_neurons_have_the_published_transfer_function():
    # Neftci et al. 2014: C 1 pF, g 1 nS, threshold 100 mV, noise 4.24e-11, beta 2.044e9 / A,
    # gamma 8808 Hz, refractory 4 ms, steps of 50 us; rate = sigmoid(x + ln(4 ms gamma)) / 4 ms
    volt = 1e-9 * 2.044e9  # log odds
    noise = 4.24e-11 / 1e-12 * math.sqrt(1e-3 / 2) * volt
    constants = ECD.Constants(dt=0.05, offset=0.0, threshold=0.1 * volt, noise=noise)
    defaults = ECD.Constants()
    assert (defaults.threshold, defaults.noise) == pytest.approx((0.1 * volt, noise), rel=0.01)
    torch.manual_seed(0)
    x = torch.tensor([-8.0, -5.0, -4.0, -3.0, -2.0, 2.0]).expand(60, 6)
    layer = Layer(torch.zeros(60, 6), constants)
    spikes = sum(layer.step(x) for _ in range(1600))
    found = spikes.mean(0) / (1600 * 0.05 / 4)
    published = torch.sigmoid(x[0] + math.log(0.004 * 8808))
    torch.testing.assert_close(found, published, atol=0.12, rtol=0.0)


def test_zero_input_is_half_of_the_highest_rate():
    torch.manual_seed(1)
    layer = Layer(torch.zeros(100, 1), ECD.Constants())
    spikes = sum(layer.step(torch.zeros(100, 1)) for _ in range(800))
    assert float(spikes.mean()) * 4 / 400 == pytest.approx(0.5, abs=0.05)


def test_learning_is_the_equations():
    torch.manual_seed(2)
    network, c = machine(), ECD.Constants()
    images, labels = torch.tensor([[0.0, 1.0, 0.3], [1.0, 0.0, 0.9]]).view(2, 1, 1, 3), [1, 0]
    torch.manual_seed(3)
    network.learn(images, torch.tensor(labels))
    torch.manual_seed(3)
    weight = network.fc1.weight.tolist()
    bias = {"h": network.fc1.bias.tolist(), "v": network.visible_bias.tolist()}
    clip = [[min(max(p, 1e-3), 1 - 1e-3) for p in row] for row in images.flatten(1).tolist()]
    for row, label in zip(clip, labels, strict=True):
        row += [0.999 if label == k else 0.001 for k in range(2)]
    size, leak, fading = {"h": 4, "v": 5}, math.exp(-c.dt / c.tau), math.exp(-c.dt / c.tau_synapse)
    u, k = ({x: torch.zeros(2, n).tolist() for x, n in size.items()} for _ in range(2))
    last = {x: torch.full((2, n), -99).tolist() for x, n in size.items()}
    sums = {"w": torch.zeros(4, 5), "h": torch.zeros(4), "v": torch.zeros(5)}
    events = 0
    for t in range(STEPS):
        drawn = {x: torch.randn(2, n) for x, n in size.items()}
        gate = 1 if 3 <= t < 14.7 else -1 if 18 <= t < 29.7 else 0
        spikes = {x: [[0] * n, [0] * n] for x, n in size.items()}
        for n in range(2):
            for x in "hv":
                for i in range(size[x]):
                    rows = weight[i] if x == "h" else [w[i] for w in weight]
                    other = k["v" if x == "h" else "h"][n]
                    current = bias[x][i] + sum(a * b for a, b in zip(rows, other, strict=True))
                    if x == "v" and t < STEPS / 2:
                        current = math.log(clip[n][i] / (1 - clip[n][i]))
                    fresh = c.noise * math.sqrt(1 - leak**2) * float(drawn[x][n, i])
                    m = leak * u[x][n][i] + (1 - leak) * (current - c.offset) + fresh
                    rested = t - last[x][n][i] >= 8  # 4 ms in steps of 0.5 ms
                    spikes[x][n][i] = int(rested and m >= c.threshold)
                    u[x][n][i] = m if rested and not spikes[x][n][i] else 0.0
                    if spikes[x][n][i]:
                        last[x][n][i] = t
                        events += 1
            for i in range(4):
                sums["h"][i] += gate * spikes["h"][n][i]
                for j in range(5):
                    sums["w"][i, j] += gate * spikes["h"][n][i] * k["v"][n][j]
                    sums["w"][i, j] += gate * spikes["v"][n][j] * k["h"][n][i]
            for j in range(5):
                sums["v"][j] += gate * spikes["v"][n][j]
            for x in "hv":
                k[x][n] = [fading * a + s for a, s in zip(k[x][n], spikes[x][n], strict=True)]
    assert events > 20
    most = 12 * 0.5 / 4  # spikes in the 12 steps of a phase, 4 ms apart
    torch.testing.assert_close(network.fc1.weight.grad, -sums["w"] / (2 * most * 2))
    torch.testing.assert_close(network.fc1.bias.grad, -sums["h"] / (most * 2))
    torch.testing.assert_close(network.visible_bias.grad, -sums["v"] / (most * 2))


def test_the_free_energy_is_that_of_logistic_units():
    # by definition exp(-F(v)) = sum over all h of exp(-E(v, h))
    torch.manual_seed(4)
    network = machine()
    image = torch.rand(3)
    weight, bias = network.fc1.weight.detach(), network.fc1.bias.detach()
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)
    expected = []
    for label in range(2):
        visible = torch.cat([image, torch.eye(2)[label]])
        energies = -(states @ (weight @ visible + bias)) - network.visible_bias[3 + label].detach()
        expected.append(-torch.logsumexp(-energies, 0))
    torch.testing.assert_close(
        network.free_energy(image.view(1, 1, 1, 3))[0], torch.stack(expected)
    )


def test_it_learns_digits_and_prunes():
    flags = {"dataset": "digits", "hidden": "40", "epochs": "3", "batch_size": "20", "lr": "0.4"}
    flags |= {"time_steps": "140", "plasticity": "dt:1,offset:1.1", "method": "magnitude"}
    options = {"connectivity": "0.5", "gradual": "false", "begin": "0.5"}
    result = fit(resolve("mnist-ecd", flags=flags | options))
    assert result.accuracy > 0.75
    assert result.connectivity == 0.5


@pytest.mark.parametrize("steps", [1, 2])
def test_a_presentation_too_short_for_its_two_phases_is_one_line(steps):
    network = plasticity.build("ecd", input_shape=(1, 4, 4), classes=2, hidden=3, time_steps=steps)
    images, labels = torch.rand(2, 1, 4, 4), torch.zeros(2, dtype=torch.long)
    refused(lambda: network.learn(images, labels), "time_steps", "at least 3")
    network.time_steps = 3
    network.learn(images, labels)
    assert network.fc1.weight.grad is not None
