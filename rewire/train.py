"""`fit()`: the one training loop, for CPU and GPU, with checkpoint and resume.

What a step computes is a function of (config, step, saved state) alone: batches and rates come from
the step's number, so a resumed run ends bit for bit where a never-stopped one does.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rewire import data as datasets
from rewire import models, teacher
from rewire.averaging import Average, reestimate_
from rewire.config import Config
from rewire.data import Batches, Dataset
from rewire.errors import RewireError, check
from rewire.evaluate import connectivity, describe, evaluate
from rewire.interrupts import interrupts
from rewire.losses import LOSSES
from rewire.method import Method
from rewire.parts import (
    autocast,
    build_model,
    build_optimizer,
    choose_device,
    test_batches,
    training_batches,
)
from rewire.rundir import RunDir
from rewire.schedules import RATES
from rewire.traces import Collector, Traces

BN_BATCHES = 100  # that make the statistics of averaged weights
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


@dataclass
class Place:
    """Where a run is: all that has happened before batch `batch` of epoch `epoch`."""

    epoch: int = 0
    batch: int = 0
    loss_sum: float | Tensor = 0.0  # on the device while an epoch runs
    seconds: float = 0.0


@dataclass
class Training:
    """The moving parts of a run, built from its config alone."""

    config: Config
    device: torch.device
    model: models.Spiking
    forward: Callable[[Tensor], Tensor]
    optimizer: Optimizer
    train: Batches
    test: Batches
    teacher: Callable[[Tensor], Tensor] | None = None
    place: Place = field(default_factory=Place)

    def __post_init__(self) -> None:
        self.total_steps = self.config.epochs * len(self.train)
        if self.config.init == "firing":
            self._make_fire_()
        self.method = self._attached()
        self.average = Average(self.model, self.config.average) if self.config.average else None
        self.collector = Collector(self.config.trace_every, self.config.epochs, self.method)

    def _attached(self) -> Method:
        return self.config.build_method().attach(
            self.model, self.optimizer, total_steps=self.total_steps, seed=self.config.seed
        )

    @torch.no_grad()
    def _make_fire_(self) -> None:
        """Scale each layer so that the method's first wiring, sparse or not, fires."""
        parameters = list(self.model.parameters())
        given = [parameter.clone() for parameter in parameters]
        self._attached().detach()  # leaves the weights of the first wiring
        wired = [parameter.clone() for parameter in parameters]
        models.excite_(self.model, next(self.train.epoch(0))[0])
        for parameter, before, first in zip(parameters, given, wired, strict=True):
            scale = 1.0 if parameter.equal(first) else parameter.norm() / first.norm()
            parameter.copy_(before * scale)

    @property
    def steps(self) -> int:
        """Optimizer steps taken."""
        return self.place.epoch * len(self.train) + self.place.batch

    def rate(self) -> float:
        """Return the learning rate of the step to come; each round of the method starts anew."""
        progress = self.steps / self.total_steps * self.method.rounds
        return self.config.lr * RATES[self.config.schedule](progress % 1.0, self.config.warmup)

    def time_steps(self) -> int:
        """Return the time steps of the step to come: fewer in the early part, where there is one."""
        config = self.config
        early = config.early_time_steps and self.steps < config.early * self.total_steps
        return config.early_time_steps if early else config.time_steps

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """Return the config's loss."""
        config = self.config
        return LOSSES[config.loss](output, labels, config.rate_scale, config.label_smoothing)

    def lesson(self, images: Tensor, output: Tensor) -> Tensor:
        """Return the loss against the teacher's output."""
        assert self.teacher is not None
        with autocast(self.config, self.device):
            return teacher.lesson(output, self.teacher(images), self.config.rate_scale)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take one optimizer step; return its loss, still on the device."""
        rate = self.rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.time_steps = self.time_steps()
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.config, self.device):
            output = self.forward(images)
        loss = self.loss(output, labels)
        if self.teacher:
            loss = torch.lerp(loss, self.lesson(images, output), self.config.teacher_weight)
        loss.backward()
        self.optimizer.step()
        if self.average:
            self.average.update()
        self.place.batch += 1
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides what follows."""
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return {
            "place": {**asdict(self.place), "loss_sum": float(self.place.loss_sum)},
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "average": self.average.state_dict() if self.average else {},
            "seen": self.collector.seen,
            "rng": {"cpu": torch.get_rng_state(), "cuda": cuda},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.place = Place(**state["place"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.method.load_state_dict(state["method"])
        if self.average:
            self.average.load_state_dict(state["average"])
        self.collector.seen = {k: v.to(self.device) for k, v in state["seen"].items()}
        torch.set_rng_state(state["rng"]["cpu"])
        if self.device.type == "cuda" and state["rng"]["cuda"] is not None:
            torch.cuda.set_rng_state(state["rng"]["cuda"], self.device)


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
    with threads(config.threads):
        training = prepare(config, data)
        return _run(training, _open(training, run, resume), progress)


def prepare(config: Config, data: Dataset | None = None) -> Training:
    """Return network, optimizer, method and batches at step 0; seeds torch with `config.seed`."""
    device = choose_device(config.device)
    data = data or datasets.load(config.dataset, config.data_dir or None)
    data = data.hold_out(config.hold_out) if config.hold_out else data
    torch.manual_seed(config.seed)
    model = build_model(config, data, device)
    train = training_batches(config, data, device)
    next(train.epoch(0))  # an augmentation too large for the images says so here
    return Training(
        config=config,
        device=device,
        model=model,
        forward=torch.compile(model) if config.compile else model,
        optimizer=build_optimizer(config, model),
        train=train,
        test=test_batches(config, data, device),
        teacher=teacher.load(config.teacher, data, device) if config.teacher else None,
    )


def _open(training: Training, run: str | Path | None, resume: bool) -> RunDir | None:
    """Make the run directory, or bring `training` to where the one that is there has stopped."""
    config = training.config
    if run is None:
        check(not resume, "resume", resume, "given together with a run directory")
        return None
    if not resume:
        folder = RunDir.create(run, config, training.device)
        folder.save_checkpoint(config, training.state_dict())
        return folder
    folder = RunDir.open(run)
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
            masks = finish(training) if last else method.masks()
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


def finish(training: Training) -> dict[str, Tensor]:
    """Fix the wiring; where weights are averaged, test and keep the mean under it."""
    masks = training.method.finish()
    if training.average:
        training.average.install(masks)
        epochs = training.train.epoch(training.place.epoch)
        with autocast(training.config, training.device):
            reestimate_(training.model, (images for images, _ in islice(epochs, BN_BATCHES)))
    return masks


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
    """Test the network as it is; return the epoch's line of the metrics, shares in [0, 1]."""
    place, start = training.place, time.perf_counter()
    training.model.eval()
    training.model.time_steps = training.config.time_steps
    with autocast(training.config, training.device):
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
