"""Spike-train similarity: correlations and removals against loops, exact counts, digits."""

import math
import warnings

import pytest
import torch
from refusal import refused
from torch import nn

from spikewire import Similarity, plasticity
from spikewire.config import resolve
from spikewire.methods.similarity import removals
from spikewire.pruning import SpikeTrains, correlation
from spikewire.train.loop import fit

torch.set_num_threads(1)  # tiny tensors: threads only cost


def pearson(trains, i, j):
    """Return mean of i, covariance and correlation of two spike trains, from the definition."""
    n = len(trains)
    mean = [sum(row[k] for row in trains) / n for k in (i, j)]
    cov = sum((row[i] - mean[0]) * (row[j] - mean[1]) for row in trains) / n
    deviations = [
        math.sqrt(sum((row[k] - m) ** 2 for row in trains) / n)
        for k, m in zip((i, j), mean, strict=True)
    ]
    return mean[0], cov, cov / (deviations[0] * deviations[1]) if all(deviations) else 0.0


def slow_removals(trains, present, most, least=-1.0):
    """Silent neurons first; then again and again the most similar pair loses its quieter one."""
    count, alive, removed = len(trains[0]), list(present), []
    for i in range(count):
        if alive[i] and not any(row[i] for row in trains) and len(removed) < most:
            alive[i] = False
            removed.append((i, -1))
    while len(removed) < most:
        rest = [i for i in range(count) if alive[i]]
        scores = [
            (pearson(trains, i, j)[2], -i, -j) for i in rest for j in rest if i < j
        ]  # of equal pairs the first
        if not scores or max(scores)[0] < least:
            break
        _, i, j = max(scores)
        i, j = -i, -j
        spikes = [sum(row[k] for row in trains) for k in (i, j)]
        less, more = (i, j) if spikes[0] < spikes[1] else (j, i)
        alive[less] = False
        removed.append((less, more))
    return removed


def trains_of(seed, frames=60, neurons=9):
    """Random spike trains: copies with noise of a few, one silent, one that always spikes."""
    torch.manual_seed(seed)
    base = torch.rand(frames, 3) < torch.tensor([0.2, 0.5, 0.7])
    picks = torch.randint(3, (neurons,))
    noise = torch.rand(frames, neurons) < torch.rand(neurons) * 0.3
    trains = (base[:, picks] ^ noise).double()
    trains[:, 4], trains[:, 7] = 0.0, 1.0
    return trains


def sums_of(trains):
    rows = torch.cat([trains, torch.ones(len(trains), 1)], 1)
    return rows.T @ rows


@pytest.mark.parametrize("seed", range(4))
def test_correlations_and_removals_are_those_of_loops(seed):
    trains = trains_of(seed)
    rows, found = trains.tolist(), correlation(sums_of(trains))
    for i in range(9):
        for j in range(9):
            if i != j:
                mean, cov, r = pearson(rows, i, j)
                assert float(found.mean[i]) == pytest.approx(mean)
                assert float(found.matrix[i, j]) == pytest.approx(r, abs=1e-9)
                if found.variance[j]:
                    slope = cov / float(found.variance[j])
                    assert found.regression(i, j) == pytest.approx(slope, abs=1e-9)
    present = [i != seed for i in range(9)]
    for most in (0, 1, 3, 7):
        expected = slow_removals(rows, present, most)
        assert removals(found, torch.tensor(present), most) == expected
        assert len(expected) == most
    expected = slow_removals(rows, present, 7, 0.4)
    assert removals(found, torch.tensor(present), 7, 0.4) == expected


def twins():
    """A network in which the hidden neurons 1 and 3 are the same, and 2 never spikes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        for parameter in (model[0].weight, model[0].bias):
            parameter[3] = parameter[1]
        model[0].weight[2], model[0].bias[2] = 0.0, -1.0
    return model


def test_a_merged_twin_and_a_silent_neuron_are_not_missed():
    model, images = twins(), torch.randn(64, 6)
    before = model(images).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = Similarity(neurons=0.6, begin=0.0, ramp=0.5, every=1)
    pruner = method.attach(model, optimizer, total_steps=2)
    model(images).sum().backward()
    optimizer.step()
    masks = pruner.masks()
    assert masks["0.weight"].all(1).tolist() == [True, True, False, False, True]
    assert torch.equal(masks["2.weight"].all(0), masks["0.weight"].all(1))
    torch.testing.assert_close(model(images), before)
    optimizer.step()
    masks = pruner.finish()
    assert [int(masks[key].sum()) for key in masks] == [18, 9]
    torch.testing.assert_close(model(images), before)


def test_without_merging_the_outgoing_weights_are_lost():
    model, images = twins(), torch.randn(64, 6)
    weight = model[2].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = Similarity(neurons=0.6, merge=False, begin=0.0, ramp=1.0, every=1)
    pruner = method.attach(model, optimizer, total_steps=1)
    model(images).sum().backward()
    optimizer.step()
    pruner.finish()
    weight[:, 2:4] = 0.0
    assert torch.equal(model[2].weight, weight)


def test_spikes_are_summed_over_the_steps_between_prunings():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Similarity(every=3, begin=0.0).attach(model, optimizer, total_steps=9)
    trains, seen = pruner.uses, []
    assert isinstance(trains, SpikeTrains)
    for step in range(1, 6):
        images = torch.randn(10, 4)
        with torch.no_grad():
            seen.append(model[:2](images).double())
            model(images)  # not counted: no gradient
        model(images).sum().backward()
        optimizer.step()
        if step == 3:
            seen = []
        group = trains.groups[0]
        torch.testing.assert_close(
            trains.sums(group), sums_of(torch.cat(seen)) if seen else torch.zeros(4, 4).double()
        )
    model(images).sum().backward()
    optimizer.step()
    assert pruner.step == 6
    assert not model[2]._forward_hooks, "after the last pruning nothing is watched"


def test_the_number_of_neurons_is_exact_and_the_connectivity_an_outcome():
    flags = {"method": "similarity", "neurons": "0.2", "epochs": "4", "lr": "1e-2"}
    result = fit(resolve("digits", flags=flags))
    into, out = result.masks.values()
    assert int(into.any(1).sum()) == round(0.2 * 256) == int(out.any(0).sum())
    assert torch.equal(into.all(1), into.any(1))
    assert torch.equal(into.any(1), out.any(0))
    assert result.connectivity == 51 / 256
    assert result.accuracy > 0.9


def test_a_network_without_hidden_neurons_is_left_as_it_is():
    network = plasticity.build("rbm", input_shape=(1, 2, 2), classes=2, hidden=4)
    optimizer = network.optimizer(0.1)
    pruner = Similarity(begin=0.0, every=1).attach(network, optimizer, total_steps=2)
    network.learn(torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0]))
    with pytest.warns(UserWarning, match="similarity: no hidden neurons"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was said once
        optimizer.step()
    pruner.finish()
    assert pruner.connectivity() == 1.0


def test_what_it_takes():
    assert Similarity().neurons == 0.5
    assert Similarity(similar=0.9).neurons is None
    refused(lambda: Similarity(connectivity=0.3), "connectivity", "removes whole neurons")
    refused(lambda: Similarity(neurons=0.3, similar=0.5), "either neurons or similar")
