"""The worked example of docs/adding-a-method.md runs as it stands there, and does what it says."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-method.md"


@pytest.fixture
def example():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names = {"__name__": "example"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_every_neuron_ends_with_the_same_number_of_inputs(example):
    mask = example["masks"]["weight"]
    assert mask.sum(1).tolist() == [6] * 10
    assert not example["model"].weight[~mask].any()


def test_by_hand(example):
    layer = torch.nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -0.3, 0.2, 0.1], [1.0, 2.0, -4.0, 3.0]]))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    example["FanIn"](connectivity=0.5).attach(layer, optimizer, total_steps=1)
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
    assert layer.weight.tolist()[1] == [0.0, 0.0, -4.0, 3.0]
    assert layer.weight.tolist()[0] == pytest.approx([0.5, -0.3, 0.0, 0.0])
