"""Adaptive threshold pruning against a loop over neurons."""

import pytest
import torch
from reference import pull, row
from torch import nn

from spikewire import METHODS
from spikewire.config import resolve
from spikewire.train.loop import fit

APTN, Magnitude = METHODS["aptn"], METHODS["magnitude"]


def slow(weight, mask, adapt, keep):
    """Keep the present weights of largest |w| / mean^adapt, neuron by neuron."""
    scores = {}
    for i, (values, present) in enumerate(zip(weight.tolist(), mask.tolist(), strict=True)):
        sizes = [abs(w) for w, here in zip(values, present, strict=True) if here]
        for j, here in enumerate(present):
            if here:
                scores[i, j] = abs(values[j]) / (sum(sizes) / len(sizes)) ** adapt
    kept = sorted(scores, key=scores.get, reverse=True)[:keep]
    return torch.tensor([[(i, j) in kept for j in range(len(r))] for i, r in enumerate(mask)])


@pytest.mark.parametrize("adapt", [0.0, 0.5, 1.0])
def test_each_pruning_is_that_of_the_equation(adapt):
    torch.manual_seed(0)
    model = nn.Linear(12, 5, bias=False)
    model.weight.data *= torch.tensor([[0.1], [1], [1], [3], [1]])  # weak and strong neurons
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = APTN(connectivity=0.3, adapt=adapt, begin=0.0, ramp=0.8, every=2)
    pruner = method.attach(model, optimizer, total_steps=20)
    mask = torch.ones(5, 12, dtype=torch.bool)
    for step in range(1, 21):
        before = model.weight.detach().clone()
        model.weight.grad = torch.randn(5, 12)
        moved = (before - 0.1 * model.weight.grad * mask) * mask
        optimizer.step()
        if step % 2 == 0 and step <= 16:
            fraction = 0.3 + 0.7 * (1 - step / 16) ** 3
            mask &= slow(moved, mask, adapt, round(fraction * 60))
        assert torch.equal(pruner.masks()["weight"], mask)
    assert int(mask.sum()) == 18


def test_a_weak_neuron_keeps_inputs_that_magnitude_takes():
    def pruned(method, **options):
        model = nn.Linear(4, 2, bias=False)
        model.weight.data = torch.tensor([[8.0, 4, 2, 2], [0.4, 0.2, 0.1, 0.1]])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pruner = method(connectivity=0.5, gradual=False, begin=0.0, **options).attach(
            model, optimizer, total_steps=2
        )
        model.weight.grad = torch.zeros(2, 4)
        optimizer.step()
        return pruner.masks()["weight"].sum(1).tolist()

    assert pruned(Magnitude) == [4, 0]
    assert pruned(APTN, adapt=1.0) == [2, 2]


def test_by_hand():
    layer = row(0.5, -0.3, 0.2, 0.1)  # one neuron: the order is that of the sizes
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    APTN(connectivity=0.5, gradual=False, begin=0.0).attach(layer, optimizer, total_steps=4)
    pull(layer, optimizer, 4.0, 0.0, 0.0, -3.0)
    assert layer.weight.tolist()[0] == pytest.approx([0.0, -0.3, 0.0, 0.4])


def test_it_prunes_neurons_that_learn_digits_by_stdp():
    flags = {"dataset": "digits", "hidden": "40", "epochs": "3", "lr": "0.3", "time_steps": "30"}
    flags |= {"plasticity": "adaptation:2", "method": "aptn", "connectivity": "0.5", "adapt": "1"}
    result = fit(resolve("mnist-diehl", flags=flags))
    assert result.accuracy > 0.7
    assert result.connectivity == 0.5
