"""Soft pruning: frozen weights keep their value, every synapse exists."""

import pytest
import torch
from refusal import refused
from torch import nn

from spikewire import METHODS
from spikewire.config import resolve
from spikewire.train.loop import fit

SoftPruning = METHODS["soft"]
KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_freezing_by_hand(kind):
    torch.manual_seed(0)
    model, twin = nn.Linear(10, 3, bias=False), nn.Linear(10, 3, bias=False)
    twin.load_state_dict(model.state_dict())
    optimizer, plain = (KINDS[kind](x.parameters()) for x in (model, twin))
    method = SoftPruning(trained=0.3, begin=0.0, ramp=0.5, every=2)
    pruner = method.attach(model, optimizer, total_steps=12)
    learns = [[True] * 10 for _ in range(3)]
    for step in range(1, 13):
        gradient = torch.randn(3, 10)
        model.weight.grad, twin.weight.grad = gradient.clone(), gradient.clone()
        before = twin.weight.detach().clone()
        optimizer.step()
        plain.step()
        for i in range(3):
            for j in range(10):
                if not learns[i][j]:
                    twin.weight.data[i, j] = before[i, j]
            if step in (2, 4, 6):
                keep = round(10 * (0.3 + 0.7 * (1 - step / 6) ** 3))
                sizes = [abs(w) if here else -1 for w, here in zip(
                    twin.weight[i].tolist(), learns[i], strict=True)]  # fmt: skip
                largest = sorted(range(10), key=lambda j: -sizes[j])[:keep]  # noqa: B023
                learns[i] = [here and j in largest for j, here in enumerate(learns[i])]
        assert torch.equal(model.weight, twin.weight), step
    assert sum(map(sum, learns)) == 9
    assert pruner.connectivity() == 1.0, "it saves nothing"
    assert bool((model.weight != 0).all())


def test_it_has_no_target():
    refused(lambda: SoftPruning(connectivity=0.3), "connectivity", "removes none")


def test_it_learns_digits_in_a_winner_take_all_layer():
    flags = {"dataset": "digits", "hidden": "60", "epochs": "6", "lr": "0.02", "method": "soft"}
    flags |= {"plasticity": "sharpness:3,balance:20", "trained": "0.3"}
    result = fit(resolve("mnist-wta", flags=flags))
    assert result.accuracy > 0.8
    assert result.connectivity == 1.0
