"""Dense: the baseline is the user's own training, to the bit."""

import pytest
import torch
from reference import Task, pull, row

from spikewire import Dense

torch.set_num_threads(1)  # tiny tensors: threads only cost


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_equals_training_without_any_method(kind):
    ends = []
    for attached in (True, False):
        task = Task(6, 5, 3, dtype=torch.float32)
        optimizer = kind(task.weights, lr=0.01)
        if attached:
            pruner = Dense().attach(task.model, optimizer, total_steps=50)
        for step in range(50):
            task.backward(step)
            optimizer.step()
        ends.append(task.flat())
    assert ends[0] == ends[1]
    assert ends[0] != Task(6, 5, 3, dtype=torch.float32).flat()
    assert all(mask.all() for mask in pruner.finish().values())
    assert not optimizer._optimizer_step_pre_hooks


def test_by_hand():
    layer = row(0.5, -0.2, 0.0, 0.1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    pruner = Dense().attach(layer, optimizer, total_steps=1)
    pull(layer, optimizer, 1.0, 1.0, -3.0, 1.0)  # the last lands on 0 and is present all the same
    assert layer.weight.tolist()[0] == pytest.approx([0.4, -0.3, 0.3, 0.0], abs=1e-7)
    assert pruner.masks()["weight"].all()
    assert pruner.connectivity() == 1
