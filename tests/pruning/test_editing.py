"""`with pruner.editing()`: writes to pruned weights from outside, for every method."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, swa_utils

from spikewire import METHODS, SpikewireError
from spikewire.fields import defaults

STEPS = 12


def run(name, edit=lambda model, step: None, editing=True):
    """Train a small network; `edit(model, step)` is called after each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    wanted = {"connectivity": 0.4, "every": 2}
    known = {key: value for key, value in wanted.items() if key in defaults(METHODS[name])}
    pruner = METHODS[name](**known).attach(model, optimizer, total_steps=STEPS)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        images = torch.randn(16, 8, generator=generator)
        labels = torch.randint(4, (16,), generator=generator)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if editing:
            with pruner.editing(), torch.no_grad():
                edit(model, step)
        else:
            edit(model, step)
    return model, pruner.finish()


def absent_are_zero(model, masks):
    return all(bool((model.get_parameter(k)[~m] == 0).all()) for k, m in masks.items())


def largest(model):
    return max(float(p.detach().abs().max()) for p in model.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_weights_put_back_leave_no_trace(name):
    """SAM and an EMA swap: perturb, look at the network, restore."""

    def perturb_and_restore(model, step):
        saved = [p.clone() for p in model.parameters()]
        for parameter in model.parameters():
            parameter.data.add_(torch.ones_like(parameter))
        model(torch.ones(1, 8))
        for parameter, value in zip(model.parameters(), saved, strict=True):
            parameter.data.copy_(value)

    plain, masks = run(name)
    edited, found = run(name, perturb_and_restore)
    assert all(torch.equal(masks[key], found[key]) for key in masks)
    assert all(map(torch.equal, plain.parameters(), edited.parameters()))


@pytest.mark.parametrize("name", METHODS)
def test_a_clamp_holds_and_absent_synapses_stay_absent(name):
    def clamp(model, step):
        for parameter in model.parameters():
            parameter.data.clamp_(-0.1, 0.1)

    model, masks = run(name, clamp)
    assert absent_are_zero(model, masks)
    assert largest(model) <= 0.1 + 1e-6
    assert largest(run(name)[0]) > 0.1, "the clamp has to matter"


@pytest.mark.parametrize("name", METHODS)
def test_lookahead_moves_towards_the_slow_weights(name):
    slow = []

    def lookahead(model, step):
        if not slow:
            slow.extend(p.detach().clone() for p in model.parameters())
        if step % 4 == 3:
            for value, parameter in zip(slow, model.parameters(), strict=True):
                value.lerp_(parameter.detach(), 0.5)
                parameter.data.copy_(value)

    model, masks = run(name, lookahead)
    assert absent_are_zero(model, masks)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_write_outside_the_block_is_still_refused():
    def write(model, step):
        with torch.no_grad():
            model[0].weight.add_(1.0)

    with pytest.raises(SpikewireError, match=r"0\.weight: was modified outside .*pruner\.editing"):
        run("gradr", write, editing=False)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_written_to_present_synapses_is_what_the_network_sees(name):
    """In the middle of the run: soft thresholds and soft gates too."""
    options = {"budget": {"shrink": 0.5, "every": 1}, "stds": {"every": 1}}.get(name, {})
    torch.manual_seed(0)
    layer = nn.Linear(6, 6, bias=False)
    optimizer = SGD(layer.parameters(), lr=0.05)
    pruner = METHODS[name](**options).attach(layer, optimizer, total_steps=12)
    for _ in range(4):
        layer.weight.grad = torch.randn(6, 6)
        optimizer.step()
    before, mask = layer.weight.detach().clone(), pruner.masks()["weight"]
    with pruner.editing():
        layer.weight.data.mul_(0.5)
    torch.testing.assert_close(layer.weight.detach(), before * 0.5)
    assert torch.equal(pruner.masks()["weight"], mask)


def write_and_fail(layer):
    layer.weight.data.add_(100.0)
    raise ZeroDivisionError


@pytest.mark.parametrize("name", METHODS)
def test_if_the_block_raises_the_weights_are_put_back(name):
    torch.manual_seed(0)
    layer = nn.Linear(4, 4, bias=False)
    pruner = METHODS[name]().attach(layer, SGD(layer.parameters(), lr=0.1), total_steps=9)
    before = layer.weight.detach().clone()
    with pytest.raises(ZeroDivisionError), pruner.editing():
        write_and_fail(layer)
    assert torch.equal(layer.weight, before)
    pruner.state_dict()


def test_an_optimizer_must_not_step_inside_the_block():
    layer = nn.Linear(4, 4)
    optimizer = SGD(layer.parameters(), lr=0.1)
    pruner = METHODS["gradr"]().attach(layer, optimizer, total_steps=9)
    layer(torch.ones(1, 4)).sum().backward()
    with pytest.raises(SpikewireError, match="not inside `with pruner.editing"), pruner.editing():
        optimizer.step()
    optimizer.step()


def test_by_hand_a_latent_moves_as_far_as_its_weight():
    layer = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.9, -0.8, 0.3, 0.1]]))
    optimizer = SGD(layer.parameters(), lr=0.1)
    method = METHODS["budget"](connectivity=0.5, ramp=0.1, every=1)
    pruner = method.attach(layer, optimizer, total_steps=10)
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
    assert layer.weight.tolist()[0] == pytest.approx([0.9, -0.8, 0.0, 0.0])
    with pruner.editing():
        layer.weight.data.copy_(torch.tensor([[0.5, -0.9, 0.7, 0.0]]))
    latent = pruner.state_dict()["layers"]["weight"]["latent"]
    assert latent.tolist()[0] == pytest.approx([0.5, -0.9, 0.3, 0.1])
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.9, 0.0, 0.0])


# ---------------------------------------------------------------------- the recipes of the docs
# Each is written once and run three ways: on a bare model, under `dense` (which must be the same to
# the bit) and under methods that prune.


def recipe_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))


def batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(16, 8, generator=generator), torch.randint(4, (16,), generator=generator)


def plain_step(model, optimizer, step):
    optimizer.zero_grad()
    images, labels = batch(step)
    functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


def sam(model, optimizer, editing, rho=0.05):
    for step in range(STEPS):
        images, labels = batch(step)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm() + 1e-12
        before = [p.detach().clone() for p in model.parameters()]
        with editing():
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=float(rho / norm))
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), before, strict=True):
                    parameter.copy_(value)
        optimizer.step()


def lookahead(model, optimizer, editing):
    slow = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(STEPS):
        plain_step(model, optimizer, step)
        if step % 5 == 4:
            with editing(), torch.no_grad():
                for value, parameter in zip(slow, model.parameters(), strict=True):
                    value.lerp_(parameter, 0.5)
                    parameter.copy_(value)


def clamping(model, optimizer, editing):
    for step in range(STEPS):
        plain_step(model, optimizer, step)
        with editing(), torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.2, 0.2)


def ema_swap(model, optimizer, editing):
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    for step in range(STEPS):
        plain_step(model, optimizer, step)
        average.update_parameters(model)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with editing(), torch.no_grad():
            for parameter, value in zip(model.parameters(), average.parameters(), strict=True):
                parameter.copy_(value)
            model(batch(step)[0])
            for parameter, value in zip(model.parameters(), before, strict=True):
                parameter.copy_(value)


RECIPES = {"sam": sam, "lookahead": lookahead, "clamping": clamping, "ema": ema_swap}


def run_recipe(recipe, name=None):
    model = recipe_net()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    if name is None:
        RECIPES[recipe](model, optimizer, contextlib.nullcontext)
        return model, {}
    wanted = {"connectivity": 0.4, "every": 2}
    known = {key: value for key, value in wanted.items() if key in defaults(METHODS[name])}
    pruner = METHODS[name](**known).attach(model, optimizer, total_steps=STEPS)
    RECIPES[recipe](model, optimizer, pruner.editing)
    return model, pruner.finish()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_under_dense_is_the_recipe_without_a_pruner(recipe):
    bare, dense = run_recipe(recipe)[0], run_recipe(recipe, "dense")[0]
    assert all(map(torch.equal, bare.parameters(), dense.parameters()))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", [name for name in METHODS if name != "dense"])
def test_a_recipe_keeps_zeros_and_the_target_under_every_method(name, recipe):
    model, masks = run_recipe(recipe, name)
    assert absent_are_zero(model, masks)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    if "connectivity" in defaults(METHODS[name]):
        present = sum(int(mask.sum()) for mask in masks.values())
        assert abs(present - 0.4 * 144) <= 1


@pytest.mark.parametrize("recipe", ["sam", "lookahead", "clamping"])
def test_a_recipe_without_the_block_is_refused(recipe):
    model = recipe_net()
    optimizer = SGD(model.parameters(), lr=0.05)
    METHODS["budget"]().attach(model, optimizer, total_steps=STEPS)
    with pytest.raises(SpikewireError, match=r"was modified outside .*pruner\.editing\(\)"):
        RECIPES[recipe](model, optimizer, contextlib.nullcontext)
