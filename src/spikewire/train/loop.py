"""`fit()`: the one training loop, for CPU, GPU and torchrun, with checkpoint and resume."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikewire.config import Config
from spikewire.data import Dataset
from spikewire.distributed import joined
from spikewire.errors import SpikewireError, TrainingFailed, check
from spikewire.runs.lock import locked
from spikewire.runs.rundir import RunDir
from spikewire.runs.traces import Traces
from spikewire.train.build import autocast
from spikewire.train.evaluate import connectivity, describe, evaluate
from spikewire.train.signals import Interrupted, interrupts
from spikewire.train.step import Place, Training, prepare

PEEK = {"cpu": 1, "cuda": 50}  # steps between looks at the loss; on a GPU each one waits for it
AGREE = 64  # steps between checks that all ranks hold the same bits


class Diverged(TrainingFailed):
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

    `resume` goes on from the checkpoint in `run`. `data` stands in for the named data set. Started
    by torchrun, it trains together with the other ranks; the first one reports and writes.
    """
    with joined() as ranks, fastest_convolutions():
        count = config.threads
        if resume and run:
            count = ranks.broadcast(lambda: RunDir.open(run).threads(config.threads))
        with threads(count):
            training = prepare(config, data, fresh=not resume, ranks=ranks)
            with _opened(training, run, resume) as folder:
                return _run(training, folder, progress)


@contextmanager
def _opened(training: Training, run: str | Path | None, resume: bool) -> Iterator[RunDir | None]:
    """Make the run directory, or bring `training` to where the one that is there has stopped.

    No other process trains in it meanwhile. Only the first rank has it; the others get its state.
    """
    if run is None:
        check(not resume, "resume", resume, "given together with a run directory")
        yield None
        return
    config, ranks = training.config, training.ranks
    fresh = None if resume else training.state_dict()  # to which every rank adds
    with ExitStack() as stack:

        def begin() -> dict[str, Any] | None:
            folder = RunDir.open(run) if resume else RunDir.make(run, config)
            stack.enter_context(locked(folder.path, "training"))
            if resume:
                return _saved(folder, config)
            RunDir.create(run, config, training.device, fresh)
            return None

        saved = ranks.broadcast(begin)
        folder = RunDir(run) if ranks.first else None
        if saved is not None:
            _load(training, saved, folder or RunDir(run))
            if folder:
                folder.cut(training.place.epoch)
        yield folder


def _saved(folder: RunDir, config: Config) -> dict[str, Any]:
    """Return the state to go on from."""
    folder.sweep()
    if folder.finished:
        raise SpikewireError(
            f"{folder.path}: has already reached its end; there is nothing to resume"
        )
    return folder.load_checkpoint(config)


def _load(training: Training, saved: dict[str, Any], folder: RunDir) -> None:
    """Bring `training` to a saved state that was written by such a run."""
    try:
        training.load_state_dict(saved)
        epoch, batch = training.place.epoch, training.place.batch
        fits = 0 <= epoch < training.config.epochs and 0 <= batch <= len(training.train)
    except SpikewireError:
        raise
    except Exception as error:  # what another program has written fails anywhere inside torch
        raise _foreign(folder) from error
    if not fits:
        raise _foreign(folder)


def _foreign(folder: RunDir) -> SpikewireError:
    return SpikewireError(
        f"{folder.path}: its checkpoint is not of such a run; it cannot be resumed"
    )


def _traces(training: Training, folder: RunDir | None) -> Traces:
    """Return what was traced up to here by the run that is gone on with."""
    if folder is None or (arrays := folder.load_traces()) is None:
        return Traces()
    try:
        traces = Traces.of(arrays)
    except (LookupError, TypeError, ValueError):
        raise SpikewireError(f"{folder.path}: its traces are damaged; remove them") from None
    traces.cut(training.place.epoch)
    return traces


def _run(training: Training, folder: RunDir | None, progress: Progress) -> Result:
    """Go through the epochs that are left."""
    config, method, ranks = training.config, training.method, training.ranks
    history = folder.history() if folder else []
    collector = training.collector
    collector.traces = _traces(training, folder)

    def save() -> None:
        refuse_non_finite(training)
        training.agree()
        state = training.state_dict()
        if folder:
            folder.save_checkpoint(config, state)

    with interrupts() as stop, _board(folder, config) as board:
        stopped = Interrupted(signal.SIGTERM)  # said by a rank that only follows the others

        def tell(event: Step | Epoch) -> None:
            nonlocal stopped
            try:
                if ranks.first:
                    progress(event)
                stop()
            except KeyboardInterrupt as asked:
                training.stop, stopped = True, asked
            if stops(training):
                save()
                raise stopped

        training.agree()
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
            folder.save_model(weights, masks)  # a signal waits for this too: then all is done
    if ranks.first:
        progress(Epoch(row, config.epochs))
    return Result(
        accuracy=row["accuracy"],
        connectivity=row["connectivity"],
        asked=config.asked,
        seconds=sum(past.get("seconds", 0.0) for past in history),
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
    batches = training.train.epoch(place.epoch, place.batch, training.ranks.part)
    for images, labels in batches:
        place.loss_sum = place.loss_sum + training.step(images, labels).double()
        place.seconds = time.perf_counter() - start
        if training.steps % peek == 0 and not math.isfinite(place.loss_sum):
            refuse_non_finite(training)
        if training.steps % AGREE == 0:
            training.agree()
        tell(Step(training.steps, training.total_steps))


def stops(training: Training) -> bool:
    """Tell whether to stop here: several ranks only where all of them look."""
    if training.ranks.alone:
        return training.stop
    return training.steps % PEEK[training.device.type] == 0 and bool(training.all_stop)


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
            accuracy, test_loss = evaluate(
                training.forward, training.test, training.loss, training.ranks
            )
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
