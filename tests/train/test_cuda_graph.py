"""CUDA graphs without a GPU: the setting does nothing; tests of the graph itself are in `gpu/`."""

import pytest
import torch

from spikewire.config import Config
from spikewire.distributed import ALONE, Ranks
from spikewire.errors import SpikewireError
from spikewire.methods import METHODS
from spikewire.nn.models import build
from spikewire.train.cuda_graph import Graph, why_not
from spikewire.train.step import prepare


def test_on_a_cpu_the_field_changes_nothing():
    losses = []
    for graph in (False, True, None):
        training = prepare(Config(method="dense", time_steps=2, device="cpu", graph=graph))
        images, labels = next(training.train.epoch(0))
        losses.append([training.step(images, labels) for _ in range(2)])
    assert torch.equal(torch.stack(losses[0]), torch.stack(losses[1]))
    assert torch.equal(torch.stack(losses[0]), torch.stack(losses[2]))


def test_what_does_not_go_with_it_is_refused():
    with pytest.raises(SpikewireError, match="graph: True is not allowed.*together with compile"):
        Config(graph=True, compile=True)


def test_where_a_graph_is_not_possible_one_line_says_why():
    plain = prepare(Config(device="cpu", graph=True))
    assert why_not(plain.model, "gradr", plain.ranks) == ""
    assert why_not(plain.model, "gradr", Ranks(world_size=2)) == "there are several ranks"
    plain.model.register_forward_hook(lambda module, inputs, output: None)
    plain.device = torch.device("cuda")  # as if there were one
    with pytest.warns(UserWarning, match="not used, since gradr has hooks on the forward pass"):
        assert plain._captured() == plain.learn


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", METHODS)
def test_no_method_keeps_a_hook_that_a_graph_would_skip(method):
    model = build("vgg11", width=0.02, time_steps=1)
    METHODS[method]().attach(model, torch.optim.Adam(model.parameters()), total_steps=10)
    watches = method == "similarity"  # the spikes of every step
    assert why_not(model, method, ALONE) == (f"{method} has hooks on the forward pass" * watches)


@pytest.mark.parametrize(
    ("options", "used"),
    [({}, True), ({"graph": False}, False), ({"compile": True}, False), ({"graph": True}, True)],
)
def test_a_graph_is_the_default_where_it_is_possible(options, used):
    training = prepare(Config(method="gradr", device="cpu", **options))
    training.device = torch.device("cuda")  # as if there were one
    assert isinstance(training._captured(), Graph) == used


def test_a_batch_of_another_shape_is_run_without_the_graph():
    training = prepare(Config(method="dense", time_steps=2, device="cpu"))
    images, labels = next(training.train.epoch(0))
    graph = Graph(training.learn, training.model)
    graph.captures, graph.batch = {False: None}, (images, labels)  # as after a capture
    loss = graph(images[:5], labels[:5])
    assert torch.equal(loss, training.learn(images[:5], labels[:5]))
