"""A step replayed as a CUDA graph equals the step run from Python."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spikewire.config import Config, resolve
from spikewire.data import Dataset
from spikewire.pruning.costs import synops
from spikewire.train.cuda_graph import Graph
from spikewire.train.loop import Step, fit
from spikewire.train.step import Training, prepare

pytestmark = pytest.mark.gpu


def noise() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.arange(64) % 10
    return Dataset(
        name="cifar10",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
        classes=tuple("abcdefghij"),
        mean=(0.5, 0.5, 0.5),
        std=(0.3, 0.3, 0.3),
    )


def digits(graph: bool) -> Config:
    """Return settings with dropout, a method that prunes, and fewer time steps early on."""
    short = {"epochs": 2, "batch_size": 128, "time_steps": 4}
    short |= {"early_time_steps": (2,), "early": (0.5,)}
    return Config(method="budget", dropout=0.2, init="firing", graph=graph, **short)


def results(training: Training, loss: Tensor) -> list[Tensor]:
    """Return the loss, gradients and buffers after a step."""
    gradients = [p.grad for p in training.model.parameters() if p.grad is not None]
    buffers = list(training.model.buffers())
    return [tensor.double() for tensor in (loss, *gradients, *buffers)]


def test_a_replay_leaves_the_same_gradients_and_buffers_as_the_step():
    """On another batch than that of the capture, with the same random numbers for dropout."""
    precise = {"precision": "bf16", "channels_last": True, "time_steps": 4, "init": "firing"}
    config = Config(dataset="cifar10", method="gradr", batch_size=16, graph=True, **precise)
    training = prepare(config, noise())
    training.model.train()
    first, second, *_ = training.train.epoch(0)
    training.step(*first)
    assert training.model.bn1.num_batches_tracked == 1  # warm-up runs do not count
    random, buffers = torch.cuda.get_rng_state(), [b.clone() for b in training.model.buffers()]
    replayed = results(training, training.compute(*second))
    assert not torch.equal(random, torch.cuda.get_rng_state())
    torch.cuda.set_rng_state(random)
    for buffer, before in zip(training.model.buffers(), buffers, strict=True):
        buffer.copy_(before)
    expected = results(training, training.learn(*second))
    assert len(replayed) == len(expected) == 1 + 8 + 2 * 6 + 3 * 6
    for a, b in zip(replayed, expected, strict=True):
        assert float((a - b).norm()) <= 1e-2 * float(b.norm())


def test_a_capture_changes_no_state():
    training = prepare(digits(True))
    before = {key: value.clone() for key, value in training.model.state_dict().items()}
    random = torch.cuda.get_rng_state()
    assert isinstance(training.compute, Graph)
    training.compute._capture(*next(training.train.epoch(0)))
    assert torch.equal(random, torch.cuda.get_rng_state())
    for key, value in training.model.state_dict().items():
        assert torch.equal(value, before[key])


def test_twenty_steps_are_the_same_with_and_without():
    losses, connectivity = [], []
    for graph in (False, True):
        training = prepare(digits(graph))
        batches = [batch for epoch in range(2) for batch in training.train.epoch(epoch)][:20]
        losses.append([training.step(*batch).item() for batch in batches])
        connectivity.append(training.pruner.connectivity())
    assert isinstance(training.compute, Graph)
    assert training.compute.time_steps == 4  # captured a second time
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1][-1] < losses[1][0]
    assert connectivity[0] == connectivity[1] < 0.5


def test_steps_that_count_spikes_are_a_graph_of_their_own(monkeypatch):
    """Counted at one of 4 steps; warm-up runs leave no spikes; the sums are those of Python."""
    monkeypatch.setattr(synops, "COUNTED", 6)
    sums, losses = [], []
    for graph in (False, True):
        config = digits(graph)
        config = replace(config, options={"synops": 400}, early_time_steps=(), early=())
        training = prepare(config)
        assert training.pruner.uses is not None
        assert training.pruner.uses.interval == training.total_steps // 6 > 1
        batches = [batch for epoch in range(2) for batch in training.train.epoch(epoch)][:12]
        losses.append([training.step(*batch).item() for batch in batches])
        sums.append(training.pruner.memory["activity"].cpu())
    assert isinstance(training.compute, Graph)
    assert set(training.compute.captures) == {True, False}
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert sums[0][-1] == sums[1][-1], "the same images"
    assert float(sums[1].sum()) == pytest.approx(float(sums[0].sum()), rel=0.05)


@pytest.mark.parametrize("method", ["budget", "upr"])
def test_a_residual_network_is_captured_for_every_number_of_time_steps(method):
    """At 1, 2 and 4 time steps, with targets in synapses."""
    data, losses = noise(), []
    for graph in (False, True):
        flags = {"method": method, "synapses": "0.1", "width": "0.125", "early": "0.8"}
        config = resolve("cifar100-sew18", flags=flags)
        config = replace(config, dataset="cifar10", epochs=5, batch_size=16, graph=graph)
        training = prepare(config, data)
        batches = [batch for epoch in range(5) for batch in training.train.epoch(epoch)]
        losses.append([training.step(*batch).item() for batch in batches])
    assert training.model.time_steps == 4
    assert isinstance(training.compute, Graph)
    assert losses[1][:8] == pytest.approx(losses[0][:8], rel=0.02)  # later, rounding has grown
    assert all(map(math.isfinite, losses[1]))


def test_a_stopped_run_is_captured_again(tmp_path):
    def stop(event):
        return isinstance(event, Step) and event.step == 13

    whole = fit(digits(True))
    with pytest.raises(KeyboardInterrupt):
        fit(digits(True), tmp_path / "run", progress=stop)
    resumed = fit(digits(True), tmp_path / "run", resume=True)
    assert resumed.connectivity == whole.connectivity
    assert resumed.history[-1]["loss"] == pytest.approx(whole.history[-1]["loss"], rel=0.02)


def test_a_network_of_any_kind_is_replayed():
    """As the teacher of benchmarks/ann_teacher.py: logits, another graph per shape, no state."""
    from ann_teacher import Replayed, resnet18

    torch.manual_seed(0)
    network = resnet18(10, channels=8).cuda().eval()
    teacher = Replayed(network).eval()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        for count in (2, 16, 16):
            images = torch.rand(count, 3, 32, 32, device="cuda")
            found, expected = teacher(images), network(images)
            assert found.shape == (count, 10)
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert len(teacher.graphs) == 2


def test_a_relu_network_learns_as_a_graph():
    from ann_teacher import accuracy, resnet18, train

    from spikewire.data import Batches

    labels = torch.arange(256) % 2
    images = (labels * 200).to(torch.uint8)[:, None, None, None].expand(-1, 3, 32, 32).contiguous()
    own = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "device": "cuda", "channels_last": True}
    batches = Batches(images, labels, batch_size=32, **own)
    model = resnet18(2, channels=8).cuda().to(memory_format=torch.channels_last)
    train(model, batches, epochs=10, lr=0.1)  # long enough for BatchNorm's running statistics
    assert accuracy(model, batches.epoch(0)) == 1.0
