"""Gates: masks are those of the network, weights wait behind closed gates."""

import pytest
import torch
from reference import pull, row
from refusal import refused

from spikewire import Gated, SynapticSampling, plasticity


def test_by_hand_a_weight_waits_behind_a_closed_gate():
    layer = row(0.5, -0.3, 0.2)
    layer.register_buffer("gate", torch.tensor([[1.0, 0.4, 0.5]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = Gated().attach(layer, optimizer, total_steps=3)
    assert layer.weight.tolist() == [[0.5, 0.0, torch.tensor(0.2).item()]]
    layer.gate[0, 0], layer.gate[0, 1] = 0.1, 0.6
    pull(layer, optimizer, 1.0, 0.0, -1.0)
    torch.testing.assert_close(layer.weight.detach(), torch.tensor([[0.0, -0.3, 0.3]]))
    assert pruner.masks()["weight"].tolist() == [[False, True, True]]
    layer.gate.fill_(1.0)
    pull(layer, optimizer, 0.0, 0.0, 0.0)
    pruner.finish()
    torch.testing.assert_close(layer.weight.detach(), torch.tensor([[0.4, -0.3, 0.3]]))


def test_a_layer_without_gates_is_dense_and_connectivity_no_target():
    layer = row(0.5, -0.3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="gated: no layer has gates, so nothing is pruned"):
        pruner = Gated().attach(layer, optimizer, total_steps=1)
    pull(layer, optimizer, 1.0, 1.0)
    assert pruner.connectivity() == 1.0
    torch.testing.assert_close(layer.weight.detach(), torch.tensor([[0.4, -0.4]]))
    assert Gated().target is None
    refused(lambda: Gated(connectivity=0.5), "connectivity", "outcome of the network's gates")


def test_only_gated_heeds_the_gates_and_other_methods_attach_too():
    for method, present in ((Gated(), 4), (SynapticSampling(expected=0.5), 4)):
        torch.manual_seed(0)
        network = plasticity.build("tempotron", input_shape=(1, 2, 2), classes=2, hidden=2)
        network.fc1.gate[0] = 0.0
        optimizer = network.optimizer(0.1)
        pruner = method.attach(network, optimizer, total_steps=2)
        assert int(pruner.masks()["fc1.weight"].sum()) == present
        assert bool(pruner.masks()["fc1.weight"][0].any()) == (method.name != "gated")
        network.learn(torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0]))
        optimizer.step()
        pruner.detach()
