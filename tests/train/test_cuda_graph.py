"""CUDA graphs without a GPU: the setting does nothing; tests of the graph itself are in `gpu/`."""

import pytest
import torch

from spikewire.config import Config
from spikewire.distributed import Ranks
from spikewire.errors import SpikewireError
from spikewire.train.cuda_graph import why_not
from spikewire.train.step import prepare


def test_on_a_cpu_the_field_changes_nothing():
    losses = []
    for graph in (False, True):
        training = prepare(Config(method="dense", time_steps=2, device="cpu", graph=graph))
        images, labels = next(training.train.epoch(0))
        losses.append([training.step(images, labels) for _ in range(2)])
    assert torch.equal(torch.stack(losses[0]), torch.stack(losses[1]))


def test_what_does_not_go_with_it_is_refused():
    with pytest.raises(SpikewireError, match="graph: True is not allowed.*together with compile"):
        Config(graph=True, compile=True)


def test_where_a_graph_is_not_possible_one_line_says_why():
    plain = prepare(Config(device="cpu", graph=True))
    assert why_not(plain.model, "gradr", plain.ranks) == ""
    assert why_not(plain.model, "gradr", Ranks(world_size=2)) == "there are several ranks"
    counting = Config(method="upr", graph=True, device="cpu")
    training = prepare(counting)
    training.device = torch.device("cuda")  # as if there were one
    with pytest.warns(
        UserWarning, match="graph: not used, since upr has hooks on the forward pass"
    ):
        assert training._captured() == training.learn
