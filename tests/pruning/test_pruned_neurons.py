"""Groups of hidden neurons: which layers write to them and which read from them."""

import pytest
import torch
from torch import nn

from spikewire import Similarity
from spikewire.errors import SpikewireError
from spikewire.nn.models import build
from spikewire.pruning import Neurons, SpikeTrains, trains


def groups(model: nn.Module, *images: torch.Tensor, targets="*") -> list[tuple]:
    """Return sources, targets and size of every group, after one step of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = Similarity().attach(model, optimizer, total_steps=100, targets=targets)
    model(*images).sum().backward()
    optimizer.step()
    assert isinstance(pruner.uses, SpikeTrains)
    found = [(names(x.sources), names(x.targets), x.size) for x in pruner.uses.groups]
    pruner.detach()
    return found


def names(layers) -> str:
    return " ".join(layer.name.removesuffix(".weight") for layer in layers)


def test_in_a_chain_a_layers_rows_are_the_columns_of_the_next():
    model = build("lenet5")
    assert groups(model, torch.rand(2, 1, 28, 28)) == [
        ("conv1", "conv2", 6),
        ("conv2", "fc1", 16),
        ("fc1", "fc2", 120),
        ("fc2", "fc3", 84),
    ]


def test_a_recurrent_layer_feeds_itself():
    model = build("recurrent", input_shape=(5,), classes=3, hidden=7, temporal=True)
    layers = ("fc1 rec1.synapses", "rec1.synapses fc2", 7)
    assert groups(model, torch.rand(4, 2, 5)) == [layers]


def test_layers_whose_outputs_are_added_are_one_group():
    model = build("sew-resnet18", input_shape=(3, 8, 8), classes=10, width=0.0625)
    found = groups(model, torch.rand(2, 3, 8, 8))
    assert found[0] == (
        "conv1 block1.branch.conv2 block2.branch.conv2",
        "block1.branch.conv1 block2.branch.conv1 block3.branch.conv1 block3.shortcut.conv",
        4,
    )
    assert len(found) == 12  # one per block, and one per stage
    assert found[-2][1].endswith("fc1")


class Odd(nn.Module):
    """Neurons that are left alone: joined, multiplied with each other, or read by another layer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(4, 6)
        self.joined, self.c = nn.Linear(12, 6), nn.Linear(6, 6)
        self.mixed, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        x = self.joined(torch.cat([self.a(x).relu(), self.b(x).relu()], 1)).relu()
        x = self.c(x).relu()
        x = self.mixed((x @ x.T) @ x)
        return self.last(x.relu())


def test_neurons_that_are_not_the_same_for_all_layers_are_left_alone():
    torch.manual_seed(0)
    assert groups(Odd(), torch.rand(3, 4)) == [("joined", "c", 6), ("mixed", "last", 6)]
    found = groups(Odd(), torch.rand(3, 4), targets=["joined", "mixed", "last"])
    assert found == [("mixed", "last", 6)], "c is not pruned, so what it reads must stay"


def test_dropping_and_merging_change_rows_and_columns_of_one_neuron():
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(3 * 4, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    conv, fc = Similarity().attach(model, optimizer, total_steps=9).layers
    group, before = Neurons((conv,), (fc,), 3), fc.weight.detach().clone()
    with torch.no_grad():
        group.merge_(2, 0, 0.5)
    group.drop_(2)
    assert group.present().tolist() == [True, True, False]
    assert conv.state["mask"].flatten(1).sum(1).tolist() == [4, 4, 0]
    assert fc.state["mask"].sum(0).tolist() == [5] * 8 + [0] * 4
    expected = before.clone()
    expected[:, :4] += 0.5 * before[:, 8:]
    torch.testing.assert_close(fc.weight.detach(), expected)


@pytest.mark.parametrize("side", [3, 5, 7, 9])
@pytest.mark.parametrize(("batch", "steps"), [(64, 8), (128, 4), (100, 5), (256, 2)])
def test_frames_are_of_all_positions_of_a_map(side, batch, steps):
    """A spacing that is a multiple of the positions would see one corner of the map only."""
    position = torch.arange(float(side * side)).view(1, 1, side, side)
    maps = position.expand(batch * steps, 2, side, side)
    assert len(trains.frames(maps, 2)[:, 0].unique()) == side * side


def test_a_state_of_before_the_selection_is_refused_after_it():
    model = build("digits-mlp", hidden=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pruner = Similarity(neurons=0.5, ramp=0.5).attach(model, optimizer, total_steps=4)
    early = pruner.state_dict()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(8, 1, 8, 8)).sum().backward()
        optimizer.step()
    with pytest.raises(SpikewireError, match="similarity: the state is of a step before"):
        pruner.load_state_dict(early)
