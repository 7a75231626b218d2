"""The moving parts of a run: what one step computes, and all that decides what follows.

A step is a function of (config, step, saved state) alone: batches and rates come from the step's
number, so a resumed run ends bit for bit where a never-stopped one does.
"""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikewire.config import Config
from spikewire.data import Batches, Dataset
from spikewire.distributed import ALONE, GradientMean, Ranks
from spikewire.errors import SpikewireError, check
from spikewire.nn import models
from spikewire.nn.losses import LOSSES, logits
from spikewire.pruning.method import Method
from spikewire.runs.traces import Collector
from spikewire.schedules import RATES
from spikewire.train import distillation as teacher
from spikewire.train.averaging import Average, reestimate_
from spikewire.train.build import (
    autocast,
    build_model,
    build_optimizer,
    choose_device,
    load_data,
    test_batches,
    training_batches,
)
from spikewire.train.cuda_graph import Graph, why_not
from spikewire.train.trained import field_of_errors, load_weights_

BN_BATCHES = 100  # that make the statistics of averaged weights
REHEARSAL = 512  # images of the first batch that are enough to set the scale of the first weights


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
    ranks: Ranks = ALONE
    place: Place = field(default_factory=Place)
    stop: bool = False  # whether this rank was asked to
    all_stop: bool | Tensor = False  # whether any was, as told at the last step

    def __post_init__(self) -> None:
        self.total_steps = self.config.epochs * len(self.train)
        if self.config.init == "firing" and not self.config.start:
            self._make_fire_()
        self.ranks.broadcast_model_(self.model)
        self.means = GradientMean(self.ranks, self.model, self.ranks.share(self.config.batch_size))
        self.method = self._attached()
        field = self.method.sees_images
        value, other = getattr(self.method, field, None), "one that looks at no images"
        check(self.ranks.alone or not field, field, value, f"{other}, for several ranks")
        self.work = self._captured() if self.config.graph else self.learn
        self.average = Average(self.model, self.config.average) if self.config.average else None
        self.collector = Collector(self.config.trace_every, self.config.epochs, self.method)

    def _attached(self) -> Method:
        return self.config.build_method().attach(
            self.model, self.optimizer, total_steps=self.total_steps, seed=self.config.seed
        )

    def _captured(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return `learn` as a CUDA graph, or as it is where there can be none."""
        if self.device.type != "cuda":
            return self.learn
        if reason := why_not(self.model, self.method, self.ranks):
            warnings.warn(f"graph: not used, since {reason}", stacklevel=2)
            return self.learn
        return Graph(self.learn, self.model)

    @torch.no_grad()
    def _make_fire_(self) -> None:
        """Scale each layer so that the method's first wiring, sparse or not, fires."""
        parameters = list(self.model.parameters())
        given = [parameter.clone() for parameter in parameters]
        self._attached().detach()  # leaves the weights of the first wiring
        wired = [parameter.clone() for parameter in parameters]
        models.scale_to_fire_(self.model, next(self.train.epoch(0))[0][:REHEARSAL])
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
        """Return the time steps of the step to come: fewer in the early parts, if there are any."""
        config = self.config
        parts = zip(config.early_time_steps, config.early, strict=True)
        now = (steps for steps, end in parts if self.steps < end * self.total_steps)
        return next(now, 0) or config.time_steps

    def loss(self, output: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the config's loss; tests are not smoothed."""
        return LOSSES[self.config.loss](output, labels, self.config.rate_scale, smoothing)

    def distillation_loss(self, images: Tensor, output: Tensor) -> Tensor:
        """Return the loss against the teacher's output."""
        assert self.teacher is not None
        with autocast(self.config, self.device):
            taught = self.teacher(images)
        return teacher.distillation_loss(logits(output, self.config.rate_scale), taught)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take one optimizer step; return its loss, still on the device."""
        rate = self.rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.time_steps = self.time_steps()
        loss = self.work(images, labels)
        self.optimizer.step()
        if self.average:
            self.average.update()
        self.place.batch += 1
        return loss

    def learn(self, images: Tensor, labels: Tensor) -> Tensor:
        """Leave the gradients of a batch; return its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.config, self.device):
            output = self.forward(images)
        loss = self.loss(output, labels, self.config.label_smoothing)
        if self.teacher:
            loss = torch.lerp(
                loss, self.distillation_loss(images, output), self.config.teacher_weight
            )
        loss, self.all_stop = self.means.backward(loss, self.stop)
        return loss

    def finish(self) -> dict[str, Tensor]:
        """Fix the wiring; where weights are averaged, leave the mean under it in the model."""
        masks = self.method.finish()
        if self.average:
            self.average.install(masks)
            self.model.time_steps = self.config.time_steps
            batches = islice(self.train.epoch(self.place.epoch, part=self.ranks.part), BN_BATCHES)
            with autocast(self.config, self.device):
                reestimate_(self.model, (images for images, _ in batches))
            self.means.statistics_()
        return masks

    def same(self) -> dict[str, Tensor]:
        """Return what must be the same on all ranks: weights, wiring, all else a method keeps.

        What an optimizer keeps is left out: a difference there is one in the weights a step later.
        """
        method, average = self.method, self.average.state_dict() if self.average else {}
        states = {f"{x.name} ({key})": v for x in method._layers for key, v in x.state.items()}
        memory = {f"{name} (remembered)": value for name, value in method.memory.items()}
        means = {f"{name} (averaged)": value for name, value in average.items()}
        draws = {"the method's generator": method._generator.get_state()}
        return self.model.state_dict() | states | memory | means | draws

    def agree(self) -> None:
        """Raise on all ranks if what must be the same is not."""
        if not self.ranks.alone:
            self.ranks.agree(self.same(), self.steps)

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides what follows."""
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        rng, *others = self.ranks.gather({"cpu": torch.get_rng_state(), "cuda": cuda})
        return {
            "place": {**asdict(self.place), "loss_sum": float(self.place.loss_sum)},
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "average": self.average.state_dict() if self.average else {},
            "seen": self.collector.seen,
            "rng": rng,
            "other_rngs": others,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        rngs = [state["rng"], *state.get("other_rngs", ())]
        if len(rngs) != self.ranks.world:
            raise SpikewireError(
                f"ranks: {self.ranks.world} cannot go on with what {len(rngs)} have saved, since "
                f"sums and random numbers differ; start it with {len(rngs)} in all"
            )
        self.place = Place(**state["place"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.method.load_state_dict(state["method"])
        if self.average:
            self.average.load_state_dict(state["average"])
        self.collector.seen = {k: v.to(self.device) for k, v in state["seen"].items()}
        rng = rngs[self.ranks.rank]
        torch.set_rng_state(rng["cpu"])
        if self.device.type == "cuda" and rng["cuda"] is not None:
            torch.cuda.set_rng_state(rng["cuda"], self.device)


def prepare(
    config: Config, data: Dataset | None = None, *, fresh: bool = True, ranks: Ranks = ALONE
) -> Training:
    """Return network, optimizer, method and batches at step 0; seeds torch with `config.seed`.

    What is not `fresh` gets its weights from a checkpoint, and needs no `start` any more.
    """
    device = choose_device(config.device, ranks)
    enough = f"at least the number of ranks, {ranks.world}"
    check(config.batch_size >= ranks.world, "batch_size", config.batch_size, enough)
    data = load_data(config, data)
    data = data.hold_out(config.hold_out) if config.hold_out else data
    torch.manual_seed(config.seed)
    model = build_model(config, data, device)
    if config.start and fresh:
        with field_of_errors("start"):
            load_weights_(model, config.start)
    if config.sync_batchnorm:
        check(device.type == "cuda", "sync_batchnorm", True, "false on a CPU, where torch has none")
        nn.SyncBatchNorm.convert_sync_batchnorm(model)  # in its place; no kernel of ours fuses it
    train = training_batches(config, data, device)
    next(train.epoch(0))  # an augmentation too large for the images says so here
    training = Training(
        config=config,
        device=device,
        model=model,
        forward=torch.compile(model) if config.compile else model,
        optimizer=build_optimizer(config, model),
        train=train,
        test=test_batches(config, data, device),
        teacher=teacher.load(config, data, device) if config.teacher else None,
        ranks=ranks,
    )
    if not ranks.first:  # dropout of its own; the method draws from a generator of its own
        torch.manual_seed(int(torch.randint(2**62, (ranks.world,))[ranks.rank]))
    return training
