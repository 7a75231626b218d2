"""ADMM pruning against its three updates in plain Python."""

import copy
import math

import numpy as np
import pytest
import torch
from reference import Task, Twin, agrees, blank, compete, pull, row
from refusal import refused

from spikewire import METHODS

ADMM = METHODS["admm"]
KINDS = {torch.optim.SGD: 0.5, torch.optim.Adam: 0.02}


def each(function, *layers):
    """Apply it to the numbers at the same place of each argument."""
    return [
        [function(*xs) for xs in zip(*group, strict=True)] for group in zip(*layers, strict=True)
    ]


def sparse(values, fraction):
    return blank(values, compete(each(abs, values), fraction))


@pytest.mark.parametrize("begin", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_its_twin(kind, begin):
    task, steps, every, rho, fraction = Task(6, 5, 3), 40, 4, 0.05, 0.2
    twin, optimizer = Twin(task, kind, KINDS[kind]), kind(task.weights, lr=KINDS[kind])
    pruner = ADMM(connectivity=fraction, rho=rho, begin=begin, harden=0.7, every=every).attach(
        task.model, optimizer, total_steps=steps
    )
    first, u = round(begin * steps), each(lambda x: 0.0, twin.read())
    z = u if begin else sparse(twin.read(), fraction)
    for step in range(1, steps + 1):
        task.backward(step)
        optimizer.step()
        pulling = first < step <= 28
        pull_of = each(lambda w, z, u: rho * (w - z + u), twin.read(), z, u) if pulling else None
        twin.masked_step(step, add=pull_of)
        if step == first:  # never at the start, where Z is known before the first step
            z = sparse(twin.read(), fraction)
        elif first < step < 28 and step % every == 0:
            z = sparse(each(lambda w, u: w + u, twin.read(), u), fraction)
            u = each(lambda w, z, u: u + w - z, twin.read(), z, u)
        elif step == 28:
            twin.prune(compete(twin.sizes(), fraction))
        assert agrees(task, pruner.masks(), twin, atol=1e-10)
    assert sum(map(sum, twin.masks)) == 9


def percentile_kept(weights, percent):
    """As the authors' `projection`: weights below the percentile of |w| become 0."""
    array = np.array(weights)
    return np.where(np.abs(array) < np.percentile(np.abs(array), percent), 0.0, array).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_authors_script_with_its_settings(kind):
    """Z from the first weights, the norm of the distance, Z and U once per epoch, percentiles."""
    task, epochs, per_epoch, rho = Task(6, 5, 3), 5, 8, 0.05
    twin, optimizer = Twin(task, kind, KINDS[kind]), kind(task.weights, lr=KINDS[kind])
    pruner = ADMM(
        connectivity=0.2,
        rho=rho,
        begin=0.0,
        harden=0.6,
        every=per_epoch,
        scope="layer",
        distance="norm",
    ).attach(task.model, optimizer, total_steps=epochs * per_epoch)
    z = [percentile_kept(layer, 80) for layer in twin.read()]
    u = each(lambda x: 0.0, z)
    step = 0
    for epoch in range(1, epochs + 1):
        for _ in range(per_epoch):
            step += 1
            task.backward(step)
            optimizer.step()
            gap = each(lambda w, z, u: w - z + u, twin.read(), z, u)
            norms = [math.sqrt(sum(x * x for x in layer)) for layer in gap]
            pulls = [[rho * x / n for x in layer] for layer, n in zip(gap, norms, strict=True)]
            twin.masked_step(step, add=pulls if epoch <= 3 else None)
            if step == 3 * per_epoch:  # after the ADMM epochs come those of retraining
                cut = [percentile_kept(layer, 80) for layer in twin.read()]
                twin.prune([[x != 0 for x in layer] for layer in cut])
            elif step % per_epoch == 0 and epoch < 3:
                total = each(lambda w, u: w + u, twin.read(), u)
                z = [percentile_kept(layer, 80) for layer in total]
                u = each(lambda w, z, u: u + w - z, twin.read(), z, u)
            assert agrees(task, pruner.masks(), twin, atol=1e-10)
    assert [sum(mask) for mask in twin.masks] == [6, 3]


def test_by_hand():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    ADMM(connectivity=0.5, rho=1.0, begin=0.0, harden=0.5, every=2).attach(
        layer, optimizer, total_steps=6
    )
    # Z = (.5, -.3, 0, 0), U = 0: the two that Z lacks shrink by a tenth
    pull(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.3, 0.18, 0.09])
    pull(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.3, 0.162, 0.081])
    # now U = (0, 0, .162, .081), so they shrink by a tenth of (.324, .162), and are cut
    pull(layer, optimizer, 0.0, 0.0, 0.0, -2.0)
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.3, 0.0, 0.0])


def test_the_pull_alone_makes_the_weights_sparse():
    torch.manual_seed(0)
    layer = torch.nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = ADMM(connectivity=0.1, rho=1.0, begin=0.0, harden=1.0, every=1).attach(
        layer, optimizer, total_steps=200
    )
    for _ in range(199):
        layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()
    assert 1 <= (layer.weight.abs() > 1e-6).sum() <= 10
    assert pruner.connectivity() == 1


def test_no_pull_until_cut_is_dense_and_everything_kept_is_dense_bit_for_bit():
    for options in (
        {"connectivity": 0.1, "rho": 0.0, "harden": 1.0},
        {"connectivity": 1.0, "rho": 0},
    ):
        task = Task(6, 5, 3, dtype=torch.float32)
        dense = copy.deepcopy(task)
        optimizer, plain = (torch.optim.Adam(x.weights, lr=0.02) for x in (task, dense))
        ADMM(**options).attach(task.model, optimizer, total_steps=20)
        for step in range(19):
            for each_task, mover in ((task, optimizer), (dense, plain)):
                each_task.backward(step)
                mover.step()
        assert all(map(torch.equal, task.weights, dense.weights))


def test_layers_without_gradient_of_one_weight_and_of_zeros_are_cut_too():
    model = torch.nn.ModuleDict({"used": row(0.0, 0.0, 0.0, 0.0), "idle": row(1.0, 2.0, 3.0, 4.0)})
    model["one"] = row(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = ADMM(connectivity=0.25, begin=0.0, harden=1.0, scope="layer", every=1000).attach(
        model, optimizer, total_steps=3
    )
    for _ in range(3):
        pull(model["used"], optimizer, 0.0, 0.0, 0.0, 0.0)
    assert [int(m.sum()) for m in pruner.finish().values()] == [1, 1, 1]
    assert model["idle"].weight.tolist() == [[0.0, 0.0, 0.0, 4.0]]


@pytest.mark.parametrize(
    ("field", "value"),
    [("connectivity", 0.0), ("rho", -1.0), ("begin", 1.0), ("harden", 0.1), ("every", 0)]
    + [("distance", "square")],
)
def test_a_wrong_value_is_named(field, value):
    refused(lambda: ADMM(**{field: value}), field, value)
