"""`fit()`: the one training loop, for CPU and GPU, with checkpoint and resume."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rewire.config import Config
from rewire.data import Dataset
from rewire.errors import RewireError, check
from rewire.evaluate import connectivity, describe, evaluate
from rewire.interrupts import interrupts
from rewire.parts import autocast
from rewire.rundir import RunDir
from rewire.traces import Traces
from rewire.training import Place, Training, prepare

PEEK = {"cpu": 1, "cuda": 50}  # steps between looks at the loss; on a GPU each one waits for it


class Diverged(ArithmeticError):
    """Training failed: loss or weights are not finite any more."""


@dataclass(frozen=True)
class Step:
    """Told after each optimizer step; `step` counts from 1."""

    step: int
    total_steps: int


@dataclass(frozen=True)
class Epoch:
    """Told after each epoch: its line of the metrics."""

    row: dict[str, Any]
    epochs: int


Progress = Callable[[Step | Epoch], None]


@dataclass
class Result:
    """What a run reached at its last epoch; `asked` is the connectivity asked for, if any."""

    accuracy: float
    connectivity: float
    asked: float | None
    seconds: float
    layers: list[dict[str, Any]]
    history: list[dict[str, Any]]
    model: nn.Module
    masks: dict[str, Tensor]


def fit(
    config: Config,
    run: str | Path | None = None,
    *,
    data: Dataset | None = None,
    resume: bool = False,
    progress: Progress = lambda event: None,
) -> Result:
    """Train as `config` says; with `run`, keep everything in that directory.

    `resume` goes on from the checkpoint in `run`. `data` stands in for the named data set.
    """
    with threads(config.threads), fastest_convolutions():
        training = prepare(config, data, fresh=not resume)
        return _run(training, _open(training, run, resume), progress)


def _open(training: Training, run: str | Path | None, resume: bool) -> RunDir | None:
    """Make the run directory, or bring `training` to where the one that is there has stopped."""
    config = training.config
    if run is None:
        check(not resume, "resume", resume, "given together with a run directory")
        return None
    if not resume:
        return RunDir.create(run, config, training.device, training.state_dict())
    folder = RunDir.open(run)
    folder.sweep()
    if folder.finished:
        raise RewireError(f"{run}: has already reached its end; there is nothing to resume")
    training.load_state_dict(folder.load_checkpoint(config))
    folder.cut(training.place.epoch)
    return folder


def _traces(training: Training, folder: RunDir | None) -> Traces:
    """Return what was traced up to here by the run that is gone on with."""
    arrays = folder.load_traces() if folder else None
    traces = Traces.of(arrays) if arrays else Traces()
    traces.cut(training.place.epoch)
    return traces


def _run(training: Training, folder: RunDir | None, progress: Progress) -> Result:
    """Go through the epochs that are left."""
    config, method = training.config, training.method
    history = folder.history() if folder else []
    collector = training.collector
    collector.traces = _traces(training, folder)

    def save() -> None:
        refuse_non_finite(training)
        if folder:
            folder.save_checkpoint(config, training.state_dict())

    with interrupts() as stop, _board(folder, config) as board:

        def tell(event: Step | Epoch) -> None:
            try:
                progress(event)
                stop()
            except KeyboardInterrupt:
                save()
                raise

        while True:
            train_epoch(training, tell)
            refuse_non_finite(training)
            last = training.place.epoch + 1 == config.epochs
            stats = method.stats()
            collector.look(training.place.epoch + 1, method)
            # What finish() changes belongs to the figure reported: it comes before the last test.
            masks = training.finish() if last else method.masks()
            row = measure(training, masks, stats)
            with autocast(config, training.device):
                images = (images for images, _ in training.test.epoch(0))
                row |= collector.row(row["epoch"], training.model, masks, images)
            history.append(row)
            if folder:
                if collector.due(row["epoch"]):
                    folder.save_traces(collector.traces.arrays())
                folder.append(row)
            board(row)
            if last:
                break
            training.place = Place(epoch=row["epoch"])
            if row["epoch"] % config.checkpoint_every == 0:
                save()
            tell(Epoch(row, config.epochs))
    weights = training.model.state_dict()
    if folder:
        folder.save_model(weights, masks)
    progress(Epoch(row, config.epochs))
    return Result(
        accuracy=row["accuracy"],
        connectivity=row["connectivity"],
        asked=config.asked,
        seconds=sum(past["seconds"] for past in history),
        layers=describe(weights, masks),
        history=history,
        model=training.model,
        masks=masks,
    )


def train_epoch(training: Training, tell: Progress) -> None:
    """Take the steps that are left of the epoch."""
    place, peek = training.place, PEEK[training.device.type]
    start = time.perf_counter() - place.seconds
    training.model.train()
    for images, labels in training.train.epoch(place.epoch, start=place.batch):
        place.loss_sum = place.loss_sum + training.step(images, labels).double()
        place.seconds = time.perf_counter() - start
        if training.steps % peek == 0 and not math.isfinite(place.loss_sum):
            refuse_non_finite(training)
        tell(Step(training.steps, training.total_steps))


def measure(
    training: Training, masks: dict[str, Tensor], stats: dict[str, float]
) -> dict[str, Any]:
    """Test the network as it is, where due; return the epoch's line of the metrics.

    Shares are in [0, 1]; what was not tested is None.
    """
    config, place, start = training.config, training.place, time.perf_counter()
    training.model.eval()
    training.model.time_steps = config.time_steps
    accuracy, test_loss = None, None
    if (place.epoch + 1) % config.test_every == 0 or place.epoch + 1 == config.epochs:
        with autocast(config, training.device):
            accuracy, test_loss = evaluate(training.forward, training.test, training.loss)
    return {
        "epoch": place.epoch + 1,
        "step": training.steps,
        "accuracy": accuracy,
        "connectivity": connectivity(masks),
        "loss": float(place.loss_sum) / len(training.train),
        "test_loss": test_loss,
        "lr": training.optimizer.param_groups[0]["lr"],
        "seconds": place.seconds + time.perf_counter() - start,
        "stats": stats,
    }


def refuse_non_finite(training: Training) -> None:
    """Raise if loss or weights are lost; spikes are bounded, so the loss alone does not tell."""
    lost = "loss" if not math.isfinite(training.place.loss_sum) else ""
    for name, parameter in training.model.named_parameters():
        lost = lost or ("" if bool(parameter.isfinite().all()) else name)
    if lost:
        raise Diverged(
            f"{lost} is not finite at step {training.steps} of {training.total_steps}; "
            f"try a lower lr than {training.config.lr:g}; the last good checkpoint is kept"
        )


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


@contextmanager
def _board(folder: RunDir | None, config: Config) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield what writes an epoch's figures to TensorBoard, if asked for."""
    if not (folder and config.tensorboard):
        yield lambda row: None
        return
    with folder.board() as writer:

        def write(row: dict[str, Any]) -> None:
            for key, value in {**row, **row["stats"], **row.get("measured", {})}.items():
                if isinstance(value, float):
                    writer.add_scalar(key, value, row["epoch"])

        yield write
