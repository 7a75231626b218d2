"""The moving parts of a run: what one step computes, and all that decides what follows.

A step is a function of (config, step, saved state) alone: batches and rates come from the step's
number, so a resumed run ends bit for bit where a never-stopped one does.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rewire import data as datasets
from rewire import models, teacher
from rewire.averaging import Average, reestimate_
from rewire.config import Config
from rewire.data import Batches, Dataset
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
from rewire.schedules import RATES
from rewire.traces import Collector
from rewire.trained import blame, load_weights_

BN_BATCHES = 100  # that make the statistics of averaged weights


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
        if self.config.init == "firing" and not self.config.start:
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
        """Return the time steps of the step to come: fewer in the early part, if there is one."""
        config = self.config
        early = config.early_time_steps and self.steps < config.early * self.total_steps
        return config.early_time_steps if early else config.time_steps

    def loss(self, output: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the config's loss; tests are not smoothed."""
        return LOSSES[self.config.loss](output, labels, self.config.rate_scale, smoothing)

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
        loss = self.loss(output, labels, self.config.label_smoothing)
        if self.teacher:
            loss = torch.lerp(loss, self.lesson(images, output), self.config.teacher_weight)
        loss.backward()
        self.optimizer.step()
        if self.average:
            self.average.update()
        self.place.batch += 1
        return loss.detach()

    def finish(self) -> dict[str, Tensor]:
        """Fix the wiring; where weights are averaged, leave the mean under it in the model."""
        masks = self.method.finish()
        if self.average:
            self.average.install(masks)
            self.model.time_steps = self.config.time_steps
            batches = islice(self.train.epoch(self.place.epoch), BN_BATCHES)
            with autocast(self.config, self.device):
                reestimate_(self.model, (images for images, _ in batches))
        return masks

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


def prepare(config: Config, data: Dataset | None = None, *, fresh: bool = True) -> Training:
    """Return network, optimizer, method and batches at step 0; seeds torch with `config.seed`.

    What is not `fresh` gets its weights from a checkpoint, and needs no `start` any more.
    """
    device = choose_device(config.device)
    data = data or datasets.load(config.dataset, config.data_dir or None)
    data = data.hold_out(config.hold_out) if config.hold_out else data
    torch.manual_seed(config.seed)
    model = build_model(config, data, device)
    if config.start and fresh:
        with blame("start"):
            load_weights_(model, config.start)
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
