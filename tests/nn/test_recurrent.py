"""Recurrent layers: hand-computed spikes, a slow transcription of the equations, counts, masks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusal import refused
from torch import nn

import spikewire
from spikewire.nn import IF, LIF, LeakyIntegrator, Recurrent, Spiking
from spikewire.nn.surrogates import SURROGATES


def slow(x, weight, tau, threshold, reset, surrogate):
    """The equations, one neuron at a time, differentiated by autograd; the reset is detached."""
    time, batch, size = x.shape
    smooth = SURROGATES[surrogate].primitive
    spikes = [[[None] * size for _ in range(batch)] for _ in range(time)]
    for b in range(batch):
        u = [torch.zeros((), dtype=x.dtype)] * size
        for t in range(time):
            for n in range(size):
                current = x[t, b, n]
                for k in range(size):
                    if t:
                        current = current + weight[n, k] * spikes[t - 1][b][k]
                m = u[n] + current if tau is None else u[n] + (current - u[n]) / tau
                hard = float(m >= threshold)
                h = smooth(m - threshold)
                spikes[t][b][n] = hard + (h - h.detach())
                u[n] = m - hard * threshold if reset == "soft" else (1 - hard) * m
    return torch.stack([torch.stack([torch.stack(row) for row in step]) for step in spikes])


@given(
    seed=st.integers(0, 99),
    tau=st.sampled_from([None, 1.0, 2.0, 5.0]),
    reset=st.sampled_from(["hard", "soft"]),
    surrogate=st.sampled_from(["atan", "sigmoid", "triangle"]),
    hooked=st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_spikes_and_gradients_are_those_of_the_equations(seed, tau, reset, surrogate, hooked):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(5, 2, 3, generator=generator, dtype=torch.float64)
    common = {"threshold": 0.8, "surrogate": surrogate, "reset": reset}
    layer = Recurrent(3, IF(**common) if tau is None else LIF(tau, **common)).double()
    weight = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    layer.synapses.weight.data.copy_(weight)
    if hooked:
        layer.synapses.register_forward_hook(lambda *_: None)
    x.requires_grad_()
    found = layer(x)
    cost = torch.rand(found.shape, generator=generator, dtype=torch.float64)
    (found * cost).sum().backward()
    own = x.detach().clone().requires_grad_(), weight.clone().requires_grad_()
    expected = slow(*own, tau, 0.8, reset, surrogate)
    (expected * cost).sum().backward()
    assert torch.equal(found, expected.detach())
    torch.testing.assert_close(x.grad, own[0].grad)
    torch.testing.assert_close(layer.synapses.weight.grad, own[1].grad)


def test_a_spike_arrives_one_step_later_through_the_recurrent_synapse():
    layer = Recurrent(2, IF())
    layer.synapses.weight.data.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))  # 0 -> 1
    x = torch.zeros(3, 1, 2)
    x[0, 0, 0] = 1.0
    assert layer(x)[:, 0].tolist() == [[1, 0], [0, 1], [0, 0]]


def test_half_precision_is_integrated_in_float32():
    layer = Recurrent(8)
    x = 2 * torch.rand(6, 3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(layer(x).float(), layer(x.float()))
    assert layer(x).dtype == torch.bfloat16


def test_a_wrong_current_is_one_line():
    refused(lambda: Recurrent(4)(torch.rand(2, 4)), "current: (2, 4)", "[time, batch, 4]")


def test_a_leaky_integrator_is_the_recursion():
    x = torch.rand(7, 2, 3, generator=torch.Generator().manual_seed(0))
    y, found = torch.zeros(2, 3), LeakyIntegrator(4.0)(x)
    for t in range(7):
        y = y + (x[t] - y) / 4
        torch.testing.assert_close(found[t], y)
    assert torch.equal(LeakyIntegrator(1.0)(x), x)
    refused(lambda: LeakyIntegrator(0.5), "tau: 0.5")


def network(temporal=True):
    torch.manual_seed(0)
    layers = {"fc1": nn.Linear(3, 4, bias=False), "rec1": Recurrent(4)}
    layers |= {"fc2": nn.Linear(4, 2, bias=False), "lif2": LIF()}
    return Spiking(layers, input_shape=(3,), classes=2, temporal=temporal)


def test_recurrent_synapses_are_counted_by_the_spikes_that_pass_them():
    model = network()
    with torch.no_grad():
        model.get_submodule("fc1").weight.mul_(6).abs_()
    x = torch.rand(9, 5, 3, generator=torch.Generator().manual_seed(1))
    mask = torch.rand(4, 4, generator=torch.Generator().manual_seed(2)) < 0.5
    found = spikewire.measure(model, x, {"rec1.synapses.weight": mask}, time_first=True)
    by_name = {layer.name: layer for layer in found.layers}
    assert list(by_name) == ["fc1.weight", "rec1.synapses.weight", "fc2.weight"]
    with torch.no_grad():
        spikes = model.get_submodule("rec1")(model.get_submodule("fc1")(x))
    # each spike but those of the last step passes the present synapses of its neuron
    expected = float((spikes[:-1].sum((0, 1)) * mask.sum(0)).sum()) / 5
    assert expected > 0
    assert by_name["rec1.synapses.weight"].synops == expected
    assert by_name["rec1.synapses.weight"].dense_synapses == 16
    (cells,) = [firing for firing in found.firing if firing.name == "rec1.cell"]
    torch.testing.assert_close(cells.rates, spikes.double().mean((0, 1)))


def test_a_recurrent_synapse_can_be_the_only_path_to_the_output():
    model = network()
    masks = {
        "fc1.weight": torch.tensor([[1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]).bool(),
        "rec1.synapses.weight": torch.zeros(4, 4).bool(),
        "fc2.weight": torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]]).bool(),
    }
    x = torch.rand(4, 1, 3)
    before = spikewire.measure(model, x, masks, time_first=True)
    masks["rec1.synapses.weight"][1, 0] = True  # from neuron 0, which the input reaches
    after = spikewire.measure(model, x, masks, time_first=True)
    assert before.synapses_alive == 0
    assert after.synapses_alive == (3 + 1 + 1) / 36


@pytest.mark.parametrize("name", sorted(set(spikewire.METHODS) - {"dense"}))
def test_every_method_prunes_recurrent_weights(name):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    method = spikewire.METHODS[name]
    fields = {"connectivity": 0.5} if hasattr(method, "connectivity") else {}
    pruner = method(**fields).attach(model, optimizer, total_steps=6)
    x = torch.rand(5, 4, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(6):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    masks = pruner.finish()
    weight = model.get_submodule("rec1.synapses").weight
    assert bool((weight[~masks["rec1.synapses.weight"]] == 0).all())
    assert set(masks) == {"fc1.weight", "rec1.synapses.weight", "fc2.weight"}


def test_a_long_leaky_readout_is_that_of_its_equation():
    x = torch.randn(200, 3, 2, dtype=torch.float64)
    found, y = LeakyIntegrator(20.0)(x), torch.zeros(3, 2, dtype=torch.float64)
    for t, now in enumerate(x):
        y = y + (now - y) / 20.0
        torch.testing.assert_close(found[t], y)
