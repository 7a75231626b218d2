"""Names of parameters inside wrappers: compiled, data parallel, averaged, Fabric's."""

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

from spikewire import Magnitude, apply_masks
from spikewire.nn.names import (
    clean_name,
    find_parameter,
    named_modules,
    named_parameters,
    unwrap,
)

# dynamo looks at the gradient of an input that is not a leaf
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

CLEAN = ["0.weight", "0.bias", "module.0.weight", "module.0.bias"]


class Net(nn.Sequential):
    """A network with a part that is called `module`, as a wrapper's would be."""

    def __init__(self):
        super().__init__()
        self.add_module("0", nn.Linear(4, 6))
        self.add_module("module", nn.Sequential(nn.Linear(6, 2)))


def compiled(model):
    return torch.compile(model, backend="eager")


def inside(model):
    model.module[0] = compiled(model.module[0])
    return model


WRAPPED = {
    "bare": lambda model: model,
    "compiled": compiled,
    "data parallel": nn.DataParallel,
    "compiled data parallel": lambda model: compiled(nn.DataParallel(model)),
    "averaged": AveragedModel,
    "compiled inside": inside,
}


@pytest.mark.parametrize("how", WRAPPED)
def test_names_are_those_of_the_unwrapped_model(how):
    wrapped = WRAPPED[how](Net())
    assert list(named_parameters(wrapped)) == CLEAN
    assert type(unwrap(wrapped)) is Net
    assert [name for name, _ in named_modules(wrapped)] == ["", "0", "module", "module.0"]
    for path, parameter in wrapped.named_parameters():
        assert find_parameter(wrapped, clean_name(wrapped, path)) is parameter
    assert find_parameter(wrapped, "1.weight") is None
    assert find_parameter(wrapped, "0.weight.data") is None


@pytest.mark.parametrize("how", WRAPPED)
def test_a_pruner_of_a_wrapped_model_has_clean_names_and_fits_the_bare_one(how):
    torch.manual_seed(0)
    model = WRAPPED[how](Net())
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = Magnitude(connectivity=0.5, every=1).attach(model, optimizer, total_steps=4)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
    masks = pruner.finish()
    assert list(masks) == ["0.weight", "module.0.weight"]
    assert sum(int(mask.sum()) for mask in masks.values()) == 18
    bare = Net()
    apply_masks(bare, masks)
    assert int(bare.get_parameter("0.weight").count_nonzero()) == int(masks["0.weight"].sum())


def test_a_part_that_is_compiled_after_attach_is_the_same_parameter():
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    pruner = Magnitude(connectivity=0.5, every=1).attach(model, optimizer, total_steps=2)
    inside(model)
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    assert list(pruner.finish()) == ["0.weight", "module.0.weight"]
