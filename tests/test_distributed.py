"""Data parallel training. torchrun also runs this file as a script: see `work`."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused
from torch import nn

from spikewire import data as datasets
from spikewire.cli.train import plan
from spikewire.config import Config, flag, method_fields, resolve
from spikewire.data import Batches
from spikewire.distributed import GradientMean, Ranks, RanksDiffer, fingerprint, process_group
from spikewire.methods import METHODS
from spikewire.nn.fusion import find_groups
from spikewire.nn.layers import Spiking, conv, linear
from spikewire.nn.neurons import LIF
from spikewire.nn.penalty import RatePenalty, rate_penalty
from spikewire.runs.rundir import RunDir
from spikewire.train.build import build_optimizer, training_batches
from spikewire.train.build import test_batches as eval_batches
from spikewire.train.evaluate import evaluate
from spikewire.train.loop import fit, train_epoch
from spikewire.train.signals import Received
from spikewire.train.step import Position, Training, prepare

torch.set_num_threads(1)  # as each rank: sums over threads are rounded in another order

PLAIN = {"optimizer": "sgd", "lr": 0.02, "schedule": "constant", "batch_size": 48, "epochs": 10}
LONG = {"method": "deepr", "epochs": "16", "dropout": "0.2", "checkpoint_every": "2"}
UNITS = {"synapses": 0.3, "synops": 300, "bytes": 12_000}  # targets of budget
TRAIN = ("-m", "spikewire", "train")
pytestmark = pytest.mark.xdist_group("ranks")  # they share a slow fixture
TRAIN_LONG = (*TRAIN, *(word for key, value in LONG.items() for word in (flag(key), value)))


def small_data():
    """Return every sixth image of the digits."""
    whole = datasets.load("digits")
    parts = {
        name: value[::6]
        for name, value in vars(whole).items()
        if name.startswith(("train_", "test_"))
    }
    return type(whole)(**{**vars(whole), **parts})


def tiny(method="gradr", **changes):
    given = {"connectivity": 0.6} if "connectivity" in method_fields(method) else {}
    values = {"epochs": 3, "batch_size": 16, "time_steps": 4, "threads": 1, "init": "firing"}
    return Config(method=method, **{"options": given, **values, **changes})


def plain(method):
    """Return settings of 50 steps without dropout and BatchNorm."""
    return tiny(method, options={"alpha": 0.01} if method == "gradr" else {}, **PLAIN)


def convolutional(ranks):
    """Return the training of a network with BatchNorm and channels-last weights."""
    torch.manual_seed(0)
    config, data, cpu = tiny("dense", **PLAIN, init="default"), small_data(), torch.device("cpu")
    layers = {"conv1": conv(1, 4, 3, 1), "bn1": nn.BatchNorm2d(4), "lif1": LIF()}
    layers |= {"conv2": conv(4, 8, 3, 1), "bn2": nn.BatchNorm2d(8), "lif2": LIF()}
    model = Spiking({**layers, "flatten": nn.Flatten(), "fc1": linear(512, 10)}, time_steps=4)
    model.to(memory_format=torch.channels_last)
    return Training(
        config=config,
        device=cpu,
        model=model,
        forward=model,
        optimizer=build_optimizer(config, model),
        train=training_batches(config, data, cpu),
        test=eval_batches(config, data, cpu),
        ranks=ranks,
    )


def penalty_gradient(ranks, world):
    """Return the gradient of a penalty on rates, with the same images in the part of each rank."""
    torch.manual_seed(0)
    layers = {"fc1": nn.Linear(20, 30), "lif1": LIF(), "rates": RatePenalty(0.1, 0.01)}
    model = Spiking({**layers, "fc2": nn.Linear(30, 5)}, time_steps=4)
    nn.init.uniform_(model.fc1.weight, 0, 0.5)
    images = torch.rand(8, 20).repeat(world, 1)
    loss = 0 * model(images[ranks.part(len(images))]).mean()
    gradients = GradientMean(ranks, model, ranks.fraction(len(images)))
    shown, _ = gradients.backward(loss, penalty=rate_penalty(model))
    assert shown == 0
    return model.fc1.weight.grad


def run(training, epochs):
    """Train without a run directory; return the tensors that ranks compare, and the losses."""
    losses = []
    for epoch in range(epochs):
        training.position = Position(epoch=epoch)
        train_epoch(training, lambda event: None, Received())
        losses.append(float(training.position.loss_sum))
    return {name: value.clone() for name, value in training.shared_tensors().items()}, losses


# ---------------------------------------------------------------------- on every rank


def work(out):
    """Do all that needs several ranks, and save the results of each."""
    with process_group() as ranks:
        torch.set_num_threads(1)
        found = {}
        for method in METHODS:
            config = tiny(method, dropout=0.2, average=0.9, augment=("shift:1",), lr=2e-2)
            found[method] = run(prepare(config, small_data(), ranks=ranks), config.epochs)
        for unit, target in UNITS.items():
            config = tiny("budget", options={unit: target, "every": 2}, dropout=0.2, lr=2e-2)
            found[unit] = run(prepare(config, small_data(), ranks=ranks), config.epochs)
        found["dropout"] = torch.rand(4)
        found["penalty"] = penalty_gradient(ranks, ranks.world_size)
        for method in ("dense", "gradr"):
            training = prepare(plain(method), small_data(), ranks=ranks)
            found["plain", method] = run(training, training.config.epochs)
        training = convolutional(ranks)
        found["convolutional"] = run(training, training.config.epochs)
        training.model.eval()
        pair = training.model, training.test, training.loss
        found["tests"] = evaluate(*pair, ranks), evaluate(*pair)
        fit(resolve(flags=LONG), out / "whole")
        found["differences"] = differences(prepare(tiny("rigl"), small_data(), ranks=ranks))
    torch.save(found, out / f"{ranks.rank}.pt")


def differences(training):
    """Return the messages when the last rank moves a synapse, and when it changes a weight."""
    mask = training.pruner.layers[0].state["mask"].view(-1)
    present, absent = mask.nonzero()[0], mask.logical_not().nonzero()[0]
    changed = training.ranks.rank == training.ranks.world_size - 1
    messages = []
    training.require_equal_ranks()
    for values in (mask, training.model.fc2.weight.detach().view(-1)):
        if changed:
            values[present], values[absent] = values[absent].clone(), values[present].clone()
        with pytest.raises(RanksDiffer) as caught:
            training.require_equal_ranks()
        messages.append(str(caught.value))
    return messages


# ---------------------------------------------------------------------- the results


def torchrun(*words, ranks=2, restarts=0):
    """Return the command that starts the ranks."""
    options = f"--standalone --nproc-per-node {ranks} --max-restarts {restarts}"
    return [sys.executable, "-m", "torch.distributed.run", *options.split(), *map(str, words)]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def found(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    subprocess.run(torchrun(__file__, out, ranks=request.param), check=True, timeout=300)
    return [torch.load(out / f"{rank}.pt") | {"out": out} for rank in range(request.param)]


@pytest.mark.parametrize("method", [*METHODS, *UNITS])
def test_all_ranks_hold_the_same_bits(found, method):
    (first, losses), *others = [rank[method] for rank in found]
    assert losses[-1] < losses[0]
    assert len(first) > 4
    for tensors, same_losses in others:
        assert same_losses == losses
        assert tensors.keys() == first.keys()
        assert all(torch.equal(value, first[name]) for name, value in tensors.items())


def test_spikes_are_counted_over_the_images_of_all_ranks(found):
    """What is left in the running sums is the same number of images as in one process."""
    config = tiny("budget", options={"synops": 300, "every": 2}, dropout=0.2, lr=2e-2)
    alone, _ = run(prepare(config, small_data()), config.epochs)
    images = alone["activity (remembered)"][-1]
    assert images > 0
    for rank in found:
        assert rank["synops"][0]["activity (remembered)"][-1] == images


def test_dropout_differs_between_ranks(found):
    assert len({tuple(rank["dropout"].tolist()) for rank in found}) == len(found)


def test_a_penalty_on_rates_does_not_grow_with_the_number_of_ranks(found):
    expected = penalty_gradient(Ranks(), len(found))
    assert expected.abs().max() > 0
    for rank in found:
        torch.testing.assert_close(rank["penalty"], expected)


def difference(left, right):
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)


@pytest.mark.parametrize("method", ["dense", "gradr"])
def test_several_ranks_train_like_one(found, method):
    training = prepare(plain(method), small_data())
    alone, losses = run(training, training.config.epochs)
    weights, same_losses = found[0]["plain", method]
    assert training.steps == 50
    assert losses == pytest.approx(same_losses, rel=1e-5)
    assert losses[-1] < losses[0] / 2
    assert difference(weights, alone) < 1e-5


def test_batchnorm_uses_the_statistics_of_each_rank(found):
    training = convolutional(Ranks())
    model, parts = training.model, [Ranks(rank, len(found)) for rank in range(len(found))]
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    for epoch in range(training.config.epochs):
        for images, labels in training.train.epoch(epoch):
            before = [buffer.clone() for buffer in statistics]
            means = [torch.zeros_like(buffer) for buffer in statistics]
            training.optimizer.zero_grad()
            for rank in parts:
                part, fraction = rank.part(len(labels)), rank.fraction(len(labels))
                for buffer, value in zip(statistics, before, strict=True):
                    buffer.copy_(value)
                (training.loss(model(images[part]), labels[part]) * fraction).backward()
                for mean, buffer in zip(means, statistics, strict=True):
                    mean.add_(buffer, alpha=fraction)
            for buffer, mean in zip(statistics, means, strict=True):
                buffer.copy_(mean)
            training.optimizer.step()
    weights, losses = found[0]["convolutional"]
    expected = {name: x for name, x in model.state_dict().items() if x.is_floating_point()}
    assert difference(expected, weights) < 1e-5
    assert losses[-1] < losses[0] / 2


def test_each_rank_evaluates_its_part(found):
    for (accuracy, loss), (whole_accuracy, whole_loss) in (rank["tests"] for rank in found):
        assert accuracy == whole_accuracy > 0.2
        assert loss == pytest.approx(whole_loss, rel=1e-6)


def test_the_confusion_matrix_counts_the_images_of_all_ranks(found):
    run = RunDir(found[0]["out"] / "whole")
    matrix, accuracy = run.load_snapshots()["confusion"], run.history()[-1]["accuracy"]
    assert matrix.sum() == len(datasets.load("digits").test_labels)
    assert matrix.trace() / matrix.sum() == pytest.approx(accuracy)


def test_a_rank_that_differs_stops_all(found):
    for rank in found:
        moved, changed = rank["differences"]
        assert "the ranks differ at step 0 in fc1.weight (mask); the last checkpoint" in moved
        assert "in fc2.weight, fc1.weight (mask)" in changed


# ---------------------------------------------------------------------- parts and fingerprints


@given(st.integers(1, 200), st.integers(1, 9))
def test_each_item_belongs_to_one_rank(size, world):
    parts = [Ranks(rank, world).part(size) for rank in range(world)]
    assert [i for part in parts for i in range(size)[part]] == list(range(size))
    assert sum(Ranks(rank, world).fraction(size) for rank in range(world)) == pytest.approx(1)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [True, False])
def test_any_number_of_ranks_sees_the_same_samples(world, drop_last):
    data = datasets.load("digits")
    statistics = {"mean": data.mean, "std": data.std, "drop_last": drop_last}
    batches = Batches(
        data.train_images[:97],
        data.train_labels[:97],
        batch_size=32,
        augment=["affine"],
        **statistics,
    )
    seen = [list(batches.epoch(3, part=Ranks(rank, world).part)) for rank in range(world)]
    for index, (images, labels) in enumerate(batches.epoch(3)):
        parts = [part[index] for part in seen if index < len(part)]  # the last has one image
        assert torch.equal(torch.cat([x for x, _ in parts]), images)
        assert torch.equal(torch.cat([y for _, y in parts]), labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_fingerprint_depends_on_values_and_positions(dtype):
    values = torch.arange(64).remainder(3).to(dtype)
    flipped = values.clone()
    flipped[5] = values[5] == 0
    layout = values.view(1, 4, 4, 4).to(memory_format=torch.channels_last)
    assert fingerprint(values) == fingerprint(values.clone()) == fingerprint(layout)
    assert len({int(fingerprint(x)) for x in (values, flipped, values.roll(1))}) == 3
    zeros = torch.zeros(3)
    assert fingerprint(zeros) != fingerprint(-zeros)


def test_synchronized_batchnorm_needs_gpus_and_is_never_fused():
    refused(lambda: prepare(tiny(sync_batchnorm=True), small_data()), "sync_batchnorm: True")
    model = convolutional(Ranks()).model
    assert any(len(group) > 1 for group in find_groups(model))
    nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert all(len(group) == 1 for group in find_groups(model))


def test_another_number_of_ranks_cannot_resume():
    training = prepare(tiny(), small_data())
    state = training.state_dict()
    state["other_rngs"] = [state["rng"]]
    refused(lambda: training.load_state_dict(state), "1 cannot resume what 2 have saved")


# ---------------------------------------------------------------------- the command


def wait_for_lines(run, count):
    deadline = time.monotonic() + 120
    while len(RunDir(run).history()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill_second_rank(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        if b"\0RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes():
            os.kill(int(child), signal.SIGKILL)


@pytest.fixture
def started():
    """Start torchrun, and terminate it at the end of the test."""
    with ExitStack() as stack:

        def start(*words, **options):
            pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
            process = subprocess.Popen(torchrun(*words, **options), **pipes)
            stack.enter_context(process)
            stack.callback(process.terminate)
            return process

        yield start


def messages(process, timeout=120):
    """Return the lines of spikewire on stderr; torchrun adds its own."""
    _, errors = process.communicate(timeout=timeout)
    return [line for line in errors.splitlines() if line.startswith("spikewire: ")]


def test_a_run_survives_a_dead_rank_and_a_signal(found, started):
    world_size, out = len(found), found[0]["out"]
    whole, stopped = out / "whole", out / "stopped"
    process = started(*TRAIN_LONG, "--out", stopped, ranks=world_size, restarts=1)
    wait_for_lines(stopped, 3)
    kill_second_rank(process)
    wait_for_lines(stopped, 8)
    process.terminate()
    lines = messages(process)
    assert (
        lines[-1]
        == f"spikewire: stopped; resume with {world_size} ranks: torchrun ... --resume {stopped}"
    )
    assert len(lines) <= 2  # one may report that it lost the other
    assert process.returncode != 0
    process = started(*TRAIN, "--resume", stopped, ranks=world_size)
    assert messages(process) == []
    assert process.returncode == 0
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"whole", "stopped"}
    assert (stopped / "model.safetensors").read_bytes() == (
        whole / "model.safetensors"
    ).read_bytes()
    figures = [
        [(row["epoch"], row["loss"]) for row in RunDir(x).history()] for x in (whole, stopped)
    ]
    assert figures[0] == figures[1]
    assert json.loads((stopped / "env.json").read_text())["ranks"] == world_size


def test_a_run_that_may_restart_needs_a_name(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    refused(lambda: plan({}, ExitStack()), "--out")
    assert plan({"out": "runs/x"}, ExitStack())[1:] == ("runs/x", False)


def test_a_mistake_is_reported_once(tmp_path, started):
    process = started(*TRAIN, "--out", tmp_path / "run", "--batch-size", 1)
    (line,) = messages(process)
    assert line.endswith(
        "--batch-size: 1 is not allowed; it must be at least the number of ranks, 2"
    )
    assert process.returncode != 0
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_dead_rank_ends_the_others(tmp_path, started):
    process = started(*TRAIN_LONG, "--out", tmp_path / "run")
    wait_for_lines(tmp_path / "run", 2)
    kill_second_rank(process)
    assert len(messages(process, timeout=60)) <= 1
    assert process.returncode != 0


if __name__ == "__main__":
    work(Path(sys.argv[1]))
