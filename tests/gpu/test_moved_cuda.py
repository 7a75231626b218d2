"""A model that is moved to the GPU after `attach`, as Accelerate and Fabric do."""

import pytest
import torch
from plain_loop import STEPS, batches, net, new_optimizer

from spikewire import METHODS, SpikewireError
from spikewire.fields import defaults

pytestmark = pytest.mark.gpu


def build(name):
    wanted = {"connectivity": 0.3, "every": 2}
    return METHODS[name](**{k: v for k, v in wanted.items() if k in defaults(METHODS[name])})


def run(name, before):
    model = net() if before else net().cuda()
    optimizer = new_optimizer(model)
    pruner = build(name).attach(model, optimizer, total_steps=STEPS)
    pruner.stats()
    model.cuda()
    for images, labels in batches():
        optimizer.zero_grad()
        logits = model(images.cuda())
        torch.nn.functional.cross_entropy(logits, labels.cuda()).backward()
        optimizer.step()
        pruner.stats()
    masks = pruner.finish()
    return [*model.parameters(), *masks.values()]


@pytest.mark.parametrize("name", METHODS)
def test_attached_before_the_move_equals_attached_after_it(name):
    first, second = run(name, before=True), run(name, before=False)
    assert all(value.is_cuda for value in first)
    assert all(map(torch.equal, first, second))


def test_a_move_that_also_writes_is_refused():
    model = net()
    optimizer = new_optimizer(model)
    build("budget").attach(model, optimizer, total_steps=STEPS)
    model.cuda()
    model[0].weight.data.mul_(1.5)
    model(torch.ones(2, 8).cuda()).sum().backward()
    with pytest.raises(SpikewireError, match=r"0\.weight: was modified .*device went from cpu"):
        optimizer.step()
