"""A model that is moved to the GPU after `attach`, as Accelerate and Fabric do."""

import pytest
import torch
from plain_loop import STEPS, batches, net, new_optimizer

from spikewire import METHODS, SpikewireError
from spikewire.fields import defaults
from spikewire.nn.layers import Spiking, conv, linear
from spikewire.nn.neurons import IF

UNITS = [  # methods with a target in a unit
    (name, unit)
    for name in METHODS
    for unit in ("synops", "synapses", "bytes")
    if unit in defaults(METHODS[name])
]

pytestmark = pytest.mark.gpu


def build(name):
    wanted = {"connectivity": 0.3, "every": 2}
    return METHODS[name](**{k: v for k, v in wanted.items() if k in defaults(METHODS[name])})


def attached(name, model):
    optimizer = new_optimizer(model)
    return optimizer, build(name).attach(model, optimizer, total_steps=STEPS)


def train(model, optimizer, pruner):
    for images, labels in batches():
        optimizer.zero_grad()
        logits = model(images.cuda())
        torch.nn.functional.cross_entropy(logits, labels.cuda()).backward()
        optimizer.step()
        pruner.stats()
    return [*model.parameters(), *pruner.finish().values()]


@pytest.mark.parametrize("name", METHODS)
def test_a_model_moved_after_attach_equals_one_attached_on_the_gpu(name):
    """From the same state: random numbers and sums of a CPU are not those of a GPU."""
    moved = net()
    optimizer, pruner = attached(name, moved)
    pruner.stats()
    there = net().cuda()
    other, twin = attached(name, there)
    there.load_state_dict(moved.state_dict())
    twin.load_state_dict(pruner.state_dict())
    moved.cuda()
    first, second = train(moved, optimizer, pruner), train(there, other, twin)
    assert all(value.is_cuda for value in first)
    for mine, theirs in zip(first, second, strict=True):
        if name in ("upr", "sampling"):  # sigmoids, exponentials: a CPU's are not those of a GPU
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(mine, theirs)


def test_a_move_that_also_writes_is_refused():
    model = net()
    optimizer = new_optimizer(model)
    build("budget").attach(model, optimizer, total_steps=STEPS)
    model.cuda()
    model[0].weight.data.mul_(1.5)
    model(torch.ones(2, 8).cuda()).sum().backward()
    with pytest.raises(SpikewireError, match=r"0\.weight: was modified .*device went from cpu"):
        optimizer.step()


@pytest.mark.parametrize("name", ["budget", "gradr", "stds"])
@pytest.mark.parametrize("pruned", ["*", "fc2"])
def test_operations_of_a_model_moved_after_attach_are_those_of_one_attached_there(name, pruned):
    found = []
    for move_first in (True, False):
        torch.manual_seed(0)
        layers = {"fc1": linear(20, 30), "if1": IF(0.1), "fc2": linear(30, 30), "if2": IF(0.1)}
        model = Spiking(layers | {"fc3": linear(30, 4)}, time_steps=3, input_shape=(20,))
        if move_first:
            model.cuda()
        optimizer = new_optimizer(model)
        method = METHODS[name](synops=700.0, every=2)
        pruner = method.attach(model, optimizer, total_steps=6, targets=pruned)
        model.cuda()
        for seed in range(6):
            optimizer.zero_grad()
            images = torch.rand(8, 20, generator=torch.Generator().manual_seed(seed))
            model(images.cuda()).square().mean().backward()
            optimizer.step()
        found.append([pruner.memory["activity"], *pruner.finish().values()])
    assert all(map(torch.equal, *found))


def small_net():
    torch.manual_seed(0)
    layers = {"conv1": conv(2, 6, 3, padding=1), "if1": IF(0.1), "conv2": conv(6, 6, 3, padding=1)}
    layers |= {"if2": IF(0.1), "flatten": torch.nn.Flatten(), "fc": linear(6 * 64, 4)}
    return Spiking(layers, time_steps=3, input_shape=(2, 8, 8))


@pytest.mark.parametrize("pruned", ["*", "conv*"])
@pytest.mark.parametrize(("name", "unit"), UNITS)
def test_a_model_moved_back_to_the_cpu_meets_its_target(name, unit, pruned):
    found = []
    for back in (99, 6, 5):  # the step before which it is moved: never, before finish(), the last
        model = small_net().cuda()
        optimizer = new_optimizer(model)
        target = {"synops": 6000.0, "synapses": 0.3, "bytes": 6000.0}[unit]
        every = {"every": 2} if "every" in METHODS[name].__dataclass_fields__ else {}
        method = METHODS[name](**{unit: target}, **every)
        pruner = method.attach(model, optimizer, total_steps=6, targets=pruned)
        for seed in range(7):
            if seed == back:
                model.cpu()
                move_state_(optimizer, "cpu")
            if seed == 6:
                break
            optimizer.zero_grad()
            images = torch.rand(8, 2, 8, 8, generator=torch.Generator().manual_seed(seed))
            model(images.to(model[0].weight.device)).square().mean().backward()
            optimizer.step()
        pruner.stats()
        found.append([mask.cpu() for mask in pruner.finish().values()])
    assert all(map(torch.equal, *found[:2]))
    never, last = (sum(int(mask.sum()) for mask in masks) for masks in found[::2])
    assert last == pytest.approx(never, rel=0.1)  # a CPU's sums and random numbers are others


def move_state_(optimizer, device):
    """Move what the optimizer has of its parameters, as its owner has to."""
    for state in optimizer.state.values():
        state.update({k: v.to(device) for k, v in state.items() if k != "step"})
