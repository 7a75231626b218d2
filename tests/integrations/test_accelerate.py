"""Accelerate and Fabric: attached before or after `prepare` or `setup`, equal to a plain loop."""

import warnings

import foreign_wheels  # noqa: F401
import pytest
import torch
from plain_loop import STEPS, batches, net, new_optimizer, plain_run

from spikewire import METHODS
from spikewire.fields import defaults

with warnings.catch_warnings():  # what they do when imported is not ours to fix
    warnings.simplefilter("ignore")
    import accelerate
    import lightning.fabric

NAMES = ("budget", "gradr", "rigl", "upr")


def build(name):
    wanted = {"connectivity": 0.3, "every": 2}
    return METHODS[name](**{k: v for k, v in wanted.items() if k in defaults(METHODS[name])})


def train(model, optimizer, backward, closure):
    for images, labels in batches():

        def compute(images=images, labels=labels):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            backward(loss)
            return loss

        if closure:
            optimizer.step(closure=compute)
        else:
            compute()
            optimizer.step()


def by_accelerate(model, optimizer, attach, before):
    accelerator = accelerate.Accelerator(cpu=True)
    pruner = attach(model, optimizer) if before else None
    model, optimizer = accelerator.prepare(model, optimizer)
    assert type(optimizer).__name__ == "AcceleratedOptimizer"
    return pruner or attach(model, optimizer), model, optimizer, accelerator.backward


def by_fabric(model, optimizer, attach, before):
    fabric = lightning.fabric.Fabric(accelerator="cpu", devices=1)
    pruner = attach(model, optimizer) if before else None
    model, optimizer = fabric.setup(model, optimizer)
    assert type(optimizer).__name__ == "FabricSGD"
    assert type(model).__name__ == "_FabricModule"
    return pruner or attach(model, optimizer), model, optimizer, fabric.backward


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("how", [by_accelerate, by_fabric])
@pytest.mark.parametrize("name", NAMES)
def test_a_run_equals_a_plain_loop_bit_for_bit(name, how, before, closure):
    expected, masks = plain_run(build(name))
    model = net()
    optimizer = new_optimizer(model)

    def attach(network, mover):
        return build(name).attach(network, mover, total_steps=STEPS)

    pruner, network, mover, backward = how(model, optimizer, attach, before)
    train(network, mover, backward, closure)
    assert pruner.step == STEPS
    found = pruner.finish()
    assert list(found) == list(masks), "names of the unwrapped model"
    assert all(torch.equal(found[key], masks[key]) for key in masks)
    assert all(map(torch.equal, expected.parameters(), model.parameters()))


def test_gradient_accumulation_counts_optimizer_steps():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = net()
    model, optimizer = accelerator.prepare(model, new_optimizer(model))
    pruner = build("budget").attach(model, optimizer, total_steps=STEPS // 3)
    for images, labels in batches():
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert pruner.step == STEPS // 3
