"""Iterative magnitude pruning with rewinding against a loop in plain Python."""

import copy

import pytest
import torch
from reference import Task, Twin, agrees, compete, pull, row
from refusal import refused

from spikewire import METHODS

Lottery = METHODS["lottery"]
KINDS = {torch.optim.SGD: 0.5, torch.optim.Adam: 0.02}


@pytest.mark.parametrize("rewind", [0.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_its_twin(kind, rewind):
    task, steps, rounds = Task(6, 5, 3), 40, 4
    twin, optimizer = Twin(task, kind, KINDS[kind]), kind(task.weights, lr=KINDS[kind])
    pruner = Lottery(connectivity=0.2, rounds=rounds, rewind=rewind).attach(
        task.model, optimizer, total_steps=steps
    )
    early = twin.read()
    for step in range(1, steps + 1):
        task.backward(step)
        optimizer.step()
        twin.masked_step(step)
        if step == int(rewind * steps / rounds):
            early = twin.read()
        if step % 10 == 0 and step < 40:
            masks = compete(twin.sizes(), 0.2 ** (step / 10 / (rounds - 1)))
            twin.write(early)
            twin.prune(masks)
            twin.optimizer = kind(twin.task.weights, lr=KINDS[kind])
        assert agrees(task, pruner.masks(), twin)
    assert sum(map(sum, twin.masks)) == 9


def test_by_hand():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    Lottery(connectivity=0.5, rounds=2, rewind=0.0).attach(layer, optimizer, total_steps=4)
    pull(layer, optimizer, 2.0, 0.0, 0.0, 0.0)
    pull(layer, optimizer, 2.0, 0.0, 0.0, -3.0)
    # .5 - .4 = .1, -.3, .2, .1 + .3 = .4: the second and the last win, with their first values
    assert layer.weight.tolist()[0] == pytest.approx([0.0, -0.3, 0.0, 0.1])
    pull(layer, optimizer, 9.0, 1.0, 9.0, 0.0)
    assert layer.weight.tolist()[0] == pytest.approx([0.0, -0.4, 0.0, 0.1])


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.Rprop, torch.optim.Adam])
def test_a_round_starts_with_a_fresh_optimizer_weights_and_statistics(kind):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU())
    images, fresh = torch.randn(8, 4), copy.deepcopy(model)
    optimizer, plain = kind(model.parameters(), lr=0.01), kind(fresh.parameters(), lr=0.01)
    Lottery(connectivity=1.0, rounds=2, rewind=0.0).attach(model, optimizer, total_steps=6)

    def train(net, mover, steps):
        for _ in range(steps):
            mover.zero_grad()
            net(images).square().sum().backward()
            mover.step()

    train(model, optimizer, 3)
    for key, value in fresh.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key  # biases and statistics too
    train(model, optimizer, 3)
    train(fresh, plain, 3)
    for key, value in fresh.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key


def test_a_layer_without_gradient_and_zero_weights_are_pruned_and_rewound_too():
    model = torch.nn.ModuleDict({"used": row(0.0, 0.0, 0.0, 0.0), "idle": row(1.0, 2.0, 3.0, 4.0)})
    model["one"] = row(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Lottery(connectivity=0.25, rounds=2, rewind=0.0, scope="layer").attach(
        model, optimizer, total_steps=2
    )
    for _ in range(2):
        pull(model["used"], optimizer, 0.0, 0.0, 0.0, -1.0)
    assert model["idle"].weight.tolist() == [[0.0, 0.0, 0.0, 4.0]]
    assert model["used"].weight.tolist()[0] == pytest.approx([0.0, 0.0, 0.0, 0.1])
    assert model["one"].weight.tolist() == [[0.5]]
    pruner.finish()


def test_an_optimizer_without_pruned_layers_is_reset_too():
    model = torch.nn.ModuleDict({"pruned": row(0.5, -0.3), "plain": torch.nn.Linear(2, 2)})
    pruned = torch.optim.SGD(model["pruned"].parameters(), lr=0.1, momentum=0.9)
    other = torch.optim.Adam(model["plain"].parameters(), lr=0.1)
    Lottery(connectivity=0.5, rounds=2, rewind=0.0).attach(
        model, pruned, other, total_steps=4, targets=["pruned"]
    )
    first = model["plain"].weight.detach().clone()
    for _ in range(2):
        model["plain"](torch.ones(1, 2)).sum().backward()
        other.step()
        pull(model["pruned"], pruned, 1.0, 1.0)
    assert torch.equal(model["plain"].weight, first)
    assert not other.state
    assert not pruned.state


@pytest.mark.parametrize("compiled_first", [True, False])
def test_the_state_of_a_compiled_model_resumes_an_uncompiled_one_and_back(compiled_first):
    def attached(compiled):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        model[1].register_buffer("seen", torch.zeros(2))
        net = torch.compile(model, backend="eager") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method = Lottery(connectivity=0.5, rounds=2, rewind=0.0)
        return model, optimizer, method.attach(net, optimizer, total_steps=4)

    def train(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.eye(4)).square().sum().backward()
            optimizer.step()

    model, optimizer, pruner = attached(compiled_first)
    train(model, optimizer, 1)
    other, moving, resumed = attached(not compiled_first)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(pruner.state_dict())
    train(model, optimizer, 3)
    train(other, moving, 3)
    assert torch.equal(other[0].weight, model[0].weight)
    assert int(resumed.finish()["0.weight"].sum()) == 6


def test_rounds_that_do_not_fit_and_an_early_end_are_refused():
    layer = row(0.5, -0.3, 0.2, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    method = Lottery(connectivity=0.5, rounds=4)
    refused(lambda: method.attach(layer, optimizer, total_steps=3), "rounds", 4, 3)
    pruner = method.attach(layer, optimizer, total_steps=8)
    for _ in range(4):
        pull(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    refused(pruner.finish, "round 3 of 4", "step 4 of 8")
    for _ in range(2):
        pull(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    assert int(pruner.finish()["weight"].sum()) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [("connectivity", 0.0), ("rounds", 1), ("rewind", 1.0), ("scope", "globe")],
)
def test_a_wrong_value_is_named(field, value):
    refused(lambda: Lottery(**{field: value}), field, value)
