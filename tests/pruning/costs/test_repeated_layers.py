"""A layer that is called several times per forward pass: every use counts, time steps do not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spikewire import UPR, Budget, measure
from spikewire.nn.layers import conv, linear
from spikewire.nn.neurons import LIF, NeuronConstants
from spikewire.nn.recurrent import Cell, Recurrent

STEPS, THRESHOLD = 3, 0.1


class OverTime(nn.Module):
    """One convolution, `twice`, on 8 x 8 and on 4 x 4; its neurons see all time steps at once."""

    def __init__(self, loop=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.twice = conv(2, 4, 3, padding=1), conv(4, 4, 3, padding=1)
        self.last = linear(16, 10)
        constants = NeuronConstants(threshold=THRESHOLD)
        self.neurons = nn.ModuleList(
            Cell(constants) if loop else LIF(threshold=THRESHOLD) for _ in range(3)
        )

    def forward(self, images):
        one, two, three = self.neurons
        current = self.first(images).expand(STEPS, *images.shape[:1], 4, 8, 8)
        x = two(self.twice(one(current).flatten(0, 1)).unflatten(0, (STEPS, -1)))
        x = F.max_pool2d(x.flatten(0, 1), 2)
        x = three(self.twice(x).unflatten(0, (STEPS, -1)))
        x = F.max_pool2d(x.flatten(0, 1), 2).flatten(1)
        return self.last(x.unflatten(0, (STEPS, -1)))


class Looped(OverTime):
    """The same network, one time step per call of a layer; the first is called once."""

    def __init__(self):
        super().__init__(loop=True)

    def forward(self, images):
        current, states, out = self.first(images), [None] * 3, []
        for _ in range(STEPS):
            x, states[0] = self.neurons[0](current, states[0])
            x, states[1] = self.neurons[1](self.twice(x), states[1])
            x, states[2] = self.neurons[2](self.twice(F.max_pool2d(x, 2)), states[2])
            out.append(self.last(F.max_pool2d(x, 2).flatten(1)))
        return torch.stack(out)


class OneNeuron(OverTime):
    """The same network, whose neurons are one module too: it starts at rest at every call."""

    def __init__(self):
        super().__init__()
        self.neurons = nn.ModuleList([LIF(threshold=THRESHOLD)] * 3)


def images(batch=4):
    return torch.rand(batch, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def positions(size):
    """Return for each tap of a 3 x 3 kernel with padding 1 where it meets an input, one by one."""
    count = torch.zeros(3, 3, dtype=torch.int64)
    for y in range(size):
        for x in range(size):
            for i in range(3):
                for j in range(3):
                    inside = 0 <= y + i - 1 < size and 0 <= x + j - 1 < size
                    count[i, j] += inside
    return count


def synapses(masks):
    """Return the synapses that masks leave, counted weight by weight."""
    total = 0
    for name, sizes in {"first": [8], "twice": [8, 4]}.items():
        for _, _, i, j in masks[f"{name}.weight"].nonzero().tolist():
            total += sum(int(positions(size)[i, j]) for size in sizes)
    return total + int(masks["last.weight"].sum())


def train(model, method, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    pruner = method.attach(model, optimizer, total_steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        model(images()).square().sum().backward()
        optimizer.step()
    return pruner


@pytest.mark.parametrize("kind", [OverTime, Looped, OneNeuron])
def test_every_use_of_a_layer_has_synapses_of_its_own(kind):
    model = kind()
    masks = train(model, Budget(synapses=0.2, ramp=0.5)).finish()
    total = synapses({name: torch.ones_like(mask) for name, mask in masks.items()})
    assert 0.2 * total - 1 < synapses(masks) <= 0.2 * total + 0.5
    found = measure(model, images(), masks)
    assert found.synapses == synapses(masks) / total
    uses = 16 * (22**2 + 10**2)  # (3 n - 2)^2 per pair of channels
    assert {x.name: x.dense_synapses for x in found.layers}["twice.weight"] == uses


@pytest.mark.parametrize("kind", [OverTime, Looped, OneNeuron])
def test_every_use_of_a_layer_has_operations_of_its_own(kind):
    model, seen = kind(), []
    hook = model.twice.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    pruner = train(model, Budget(synops=1e9), steps=1)
    hook.remove()
    ones = torch.ones_like(model.twice.weight)
    expected = sum(F.conv2d(x, ones, padding=1).sum().item() for x in seen) / len(images())
    assert expected > 0
    pruner.uses.update_costs_(pruner.layers)
    costs = {x.name: x.state["cost"].expand(x.weight.shape).sum().item() for x in pruner.layers}
    assert costs["twice.weight"] == pytest.approx(expected, rel=1e-6)
    assert costs["first.weight"] == 0, "it sees the image"


def test_a_call_on_an_image_is_no_operation_though_another_call_is():
    """One linear layer sees the image, then its own spikes: only the second call counts."""

    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.lif = linear(16, 16), LIF(threshold=0.05)

        def forward(self, x):
            spikes = self.spikes = self.lif(self.layer(x).expand(STEPS, -1, -1))
            return self.layer(spikes)

    model = Again()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = Budget(synops=1e9).attach(model, optimizer, total_steps=1)
    model(torch.rand(4, 16)).sum().backward()
    optimizer.step()
    pruner.uses.update_costs_(pruner.layers)
    cost = pruner.layers[0].state["cost"]
    assert cost.sum() > 0
    torch.testing.assert_close(cost, model.spikes.sum((0, 1), keepdim=True)[0].double() / 4)


def test_a_recurrent_layer_has_the_same_synapses_at_every_time_step():
    torch.manual_seed(0)
    model = nn.Sequential(linear(6, 8), LIF(), linear(8, 8), Recurrent(8), linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    pruner = Budget(synapses=0.5, ramp=0.5).attach(model, optimizer, total_steps=2)
    for _ in range(2):
        model(torch.rand(STEPS, 4, 6)).sum().backward()
        optimizer.step()
    assert {int(layer.state["cost"]) for layer in pruner.layers} == {1}
    found = measure(model, torch.rand(STEPS, 4, 6), time_first=True)
    assert [x.dense_synapses for x in found.layers] == [48, 64, 64, 32]


@pytest.mark.parametrize("kind", [OverTime, Looped])
def test_the_price_of_a_gate_counts_every_use(kind):
    pruner = train(kind(), UPR(connectivity=0.5, per_use=True), steps=2)
    costs = {layer.name: layer.state["cost"].item() for layer in pruner.layers}
    assert costs == {"first.weight": 64, "twice.weight": 64 + 16, "last.weight": 1}


@pytest.mark.parametrize("method", [Budget(synapses=0.5, every=1), UPR(connectivity=0.5, every=1)])
def test_a_resumed_run_of_a_recurrent_layer_ends_with_the_same_bits(method):
    """Hooks make it run time step by time step, with other roundings: none may come back."""

    def build():
        torch.manual_seed(0)
        model = nn.Sequential(linear(6, 32), Recurrent(32), linear(32, 4))
        return model, torch.optim.Adam(model.parameters(), lr=1e-2)

    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            x = torch.rand(12, 16, 6, generator=torch.Generator().manual_seed(step))
            (4 * model(4 * x)).square().mean().backward()
            optimizer.step()

    whole, optimizer = build()
    pruner = method.attach(whole, optimizer, total_steps=20)
    train(whole, optimizer, range(20))
    masks = pruner.finish()
    model, optimizer = build()
    pruner = method.attach(model, optimizer, total_steps=20)
    train(model, optimizer, range(7))
    saved = [x.state_dict() for x in (model, optimizer, pruner)]
    other, optimizer = build()
    resumed = method.attach(other, optimizer, total_steps=20)
    for x, state in zip((other, optimizer, resumed), saved, strict=True):
        x.load_state_dict(state)
    train(other, optimizer, range(7, 20))
    assert all(torch.equal(resumed.finish()[name], mask) for name, mask in masks.items())
    for a, b in zip(whole.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
