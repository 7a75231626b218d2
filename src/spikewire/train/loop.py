"""`fit`: the training loop: epochs, steps, evaluation, checkpoints, and stopping."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikewire.config import Config
from spikewire.data import AnyDataset
from spikewire.distributed import process_group
from spikewire.errors import check
from spikewire.pruning.masks import connectivity, layer_rows, totals
from spikewire.runs.rundir import RunDir
from spikewire.train.build import autocast, errors_of_model
from spikewire.train.evaluate import evaluate
from spikewire.train.finite import require_finite
from spikewire.train.resume import load_history, load_traces, open_run
from spikewire.train.signals import Interrupted, Received, deferred_signals
from spikewire.train.step import Position, Training, prepare
from spikewire.train.telemetry import Telemetry, tensorboard

LOOK_EVERY = {"cpu": 1, "cuda": 50}  # steps between looks at the loss; on a GPU each one waits
COMPARE_EVERY = 64  # steps between checks that all ranks hold the same bits

Row = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """Passed to the progress callback after each optimizer step; `step` counts from 1."""

    step: int
    total_steps: int


@dataclass(frozen=True)
class Epoch:
    """Passed to the progress callback after each epoch: its line of the metrics."""

    row: Row
    epochs: int


Progress = Callable[[Step | Epoch], bool | None]


@dataclass
class Result:
    """A finished run at its last epoch.

    Attributes:
        accuracy: test accuracy in [0, 1].
        connectivity: actual fraction of weights that exist.
        target: the target; None where the method has none.
        unit: unit of the target, such as ``"connectivity"`` or ``"synapses"``; "" without one.
        seconds: training and test time.
        layers: one row per layer: name, shape, present, total, nonzero, connectivity.
        history: one row per epoch, as in ``metrics.jsonl``.
        model: the trained network, a plain module with exact zeros.
        masks: name -> bool tensor, True = the synapse exists.
    """

    accuracy: float
    connectivity: float
    target: float | None
    unit: str
    seconds: float
    layers: list[Row]
    history: list[Row]
    model: nn.Module
    masks: dict[str, Tensor]


def fit(
    config: Config,
    run: str | Path | None = None,
    *,
    data: AnyDataset | None = None,
    resume: bool = False,
    progress: Progress = lambda event: None,
) -> Result:
    """Train a network; started by torchrun, train it together with the other ranks.

    Seeds torch's generators with ``config.seed``.

    Args:
        config: all settings.
        run: directory to keep config, metrics, checkpoints and the trained network in; None keeps
            nothing. Under torchrun the first rank writes.
        data: a data set to use instead of the one named in `config`.
        resume: continue from the checkpoint in `run`.
        progress: called with a `Step` after each step and an `Epoch` after each epoch; when it
            returns True, the run is saved and stops with `Interrupted`.

    Returns:
        The results of the last epoch and the trained network.

    Raises:
        SpikewireError: if settings, data or run directory cannot be used.
        TrainingFailed: if loss or weights are not finite any more.
        Interrupted: after SIGINT, SIGTERM, SIGHUP or a stop by `progress`; the state is saved.

    Example:
        >>> result = spikewire.fit(spikewire.resolve("digits", flags={"epochs": "3"}), "runs/first")
        >>> result.accuracy, result.connectivity
    """
    allowed = "a Config, such as spikewire.resolve('digits')"
    check(isinstance(config, Config), "config", config, allowed)
    with process_group() as ranks, fastest_convolutions(), deferred_signals() as received:
        count = config.threads
        if resume and run:
            count = ranks.broadcast(lambda: RunDir.open(run).thread_count(config.threads))
        with threads(count):
            with errors_of_model(config):
                training = prepare(config, data, fresh=not resume, ranks=ranks)
            if ranks.alone and received.first is not None:
                raise Interrupted(received.first)  # before anything is written
            with open_run(training, run, resume) as folder:
                return train(training, folder, progress, received)


def train(
    training: Training, folder: RunDir | None, progress: Progress, received: Received
) -> Result:
    """Train the epochs that are left; keep everything in `folder` if there is one."""
    config = training.config
    history = load_history(folder)
    telemetry = Telemetry(config.trace_every, config.epochs, *load_traces(training, folder))
    board = folder if config.tensorboard else None
    with tensorboard(board) as log:
        training.require_equal_ranks()
        while True:
            if train_epoch(training, progress, received):
                stop(training, folder, received)
            last = training.position.epoch + 1 == config.epochs
            with errors_of_model(config):
                row, masks = end_epoch(training, telemetry, last)
            require_finite(training)  # again: finish() and the mean of the weights change them
            history.append(row)
            save_row(folder, row, telemetry)
            log(row)
            if last:
                break
            training.position = Position(epoch=row["epoch"])
            if row["epoch"] % config.checkpoint_every == 0:
                save_checkpoint(training, folder)
            if stops(training, progress, received, Epoch(row, config.epochs)):
                stop(training, folder, received)
        weights = training.model.state_dict()
        if folder:
            folder.save_model(weights, masks)  # a signal waits for this too: then all is done
    if training.ranks.first:
        progress(Epoch(row, config.epochs))
    return Result(
        accuracy=row["accuracy"],
        connectivity=row["connectivity"],
        target=config.target,
        unit=config.unit,
        seconds=sum(past.get("seconds", 0.0) for past in history),
        layers=layer_rows(masks, weights),
        history=history,
        model=training.model,
        masks=masks,
    )


def train_epoch(training: Training, progress: Progress, received: Received) -> bool:
    """Take the steps that are left of the epoch; return whether to stop before its end."""
    position, look_every = training.position, LOOK_EVERY[training.device.type]
    start = time.perf_counter() - position.seconds
    training.model.train()
    batches = training.train.epoch(position.epoch, position.batch, training.ranks.part)
    for images, labels in batches:
        with errors_of_model(training.config):
            loss = training.step(images, labels)
        position.loss_sum = position.loss_sum + loss.double()
        position.seconds = time.perf_counter() - start
        if training.steps % look_every == 0 and not math.isfinite(position.loss_sum):
            require_finite(training)
        if training.steps % COMPARE_EVERY == 0:
            training.require_equal_ranks()
        if stops(training, progress, received, Step(training.steps, training.total_steps)):
            return True
    return False


def stops(training: Training, progress: Progress, received: Received, event: Step | Epoch) -> bool:
    """Call `progress`; return whether to stop here. Several ranks stop where all of them look."""
    wanted = training.ranks.first and bool(progress(event))
    training.stop = training.stop or wanted or received.first is not None
    if training.ranks.alone:
        return training.stop
    looking = training.steps % LOOK_EVERY[training.device.type] == 0
    return looking and bool(training.any_stop)


def stop(training: Training, folder: RunDir | None, received: Received) -> None:
    """Save the state and raise `Interrupted`; a rank that follows the others was not signalled."""
    save_checkpoint(training, folder)
    unsignalled = signal.SIGINT if training.stop else signal.SIGTERM
    raise Interrupted(received.first or unsignalled)


def end_epoch(
    training: Training, telemetry: Telemetry, last: bool
) -> tuple[Row, dict[str, Tensor]]:
    """Test and measure the network; return the epoch's line of the metrics, and the masks.

    Fractions are in [0, 1]; accuracy and test_loss are None where the epoch is not tested.
    """
    require_finite(training)
    config, pruner, epoch = training.config, training.pruner, training.position.epoch + 1
    telemetry.trace(epoch, pruner)
    # What finish() changes belongs to the figures reported: it comes before the last test.
    masks = training.finish() if last else pruner.masks()
    changes = pruner.changes()
    training.model.eval()
    training.set_time_steps(config.time_steps)
    start, accuracy, test_loss = time.perf_counter(), None, None
    if last or epoch % config.test_every == 0:
        with autocast(config, training.device):
            accuracy, test_loss = evaluate(
                training.forward,
                training.test,
                training.loss,
                training.ranks,
                tally=telemetry.confusion.add if last else None,
            )
        telemetry.confusion.sum_(training.ranks)
    row = {
        "epoch": epoch,
        "step": training.steps,
        "accuracy": accuracy,
        "connectivity": connectivity(masks),
        "loss": float(training.position.loss_sum) / len(training.train),
        "test_loss": test_loss,
        "lr": training.optimizer.param_groups[0]["lr"],
        "seconds": training.position.seconds + time.perf_counter() - start,
        "stats": totals(changes),
        "layers": changes,
    }
    with autocast(config, training.device):
        images = (images for images, _ in training.test.epoch(0))
        row |= telemetry.measure(epoch, training.model, masks, images, training.test.temporal)
        batches = training.test.epoch(0)
        telemetry.picture(epoch, training.model, masks, batches, training.test.temporal)
    return row, masks


def save_row(folder: RunDir | None, row: Row, telemetry: Telemetry) -> None:
    """Write the epoch's line of the metrics, and its traces and snapshots where due."""
    if folder is None:
        return
    if telemetry.due(row["epoch"]):
        folder.save_traces(telemetry.traces.arrays())
    if row["epoch"] in telemetry.pictured:
        folder.save_snapshots(telemetry.snapshots.arrays())
    folder.append(row)


def save_checkpoint(training: Training, folder: RunDir | None) -> None:
    """Write all that decides how the run continues, if it is finite and the same on all ranks."""
    require_finite(training)
    training.require_equal_ranks()
    state = training.state_dict()
    if folder:
        folder.save_checkpoint(training.config, state)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use `count` CPU threads inside; 0 leaves torch's choice."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms inside; shapes stay the same, so it tries once."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
