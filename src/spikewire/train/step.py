"""`Training`: what one step computes, and all state that decides how a run continues.

A step is a function of (config, step, saved state) alone: batches and rates come from the step's
number, so a resumed run ends with the same bits as an uninterrupted one.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import update_bn

from spikewire.config import Config
from spikewire.data import AnyDataset, Batches
from spikewire.data.reference import is_python
from spikewire.distributed import ALONE, GradientMean, Ranks
from spikewire.errors import SpikewireError, check
from spikewire.metrics.counting import reset_neurons_
from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.layers import Spiking
from spikewire.nn.losses import LOSSES, logits
from spikewire.nn.penalty import rate_penalty
from spikewire.plasticity import Plastic
from spikewire.pruning import Pruner
from spikewire.pruning.costs.synops import SynOps
from spikewire.schedules import RATES
from spikewire.train import distillation
from spikewire.train.averaging import WeightAverage
from spikewire.train.build import (
    autocast,
    build_model,
    build_optimizer,
    choose_device,
    forward_of,
    load_data,
    test_batches,
    training_batches,
    try_model,
)
from spikewire.train.cuda_graph import Graph, why_not
from spikewire.train.penalty import SynOpsPenalty
from spikewire.train.pretrained import field_of_errors, load_start_

BN_BATCHES = 100  # for the BatchNorm statistics of averaged weights
SCALE_IMAGES = 512  # of the first batch, to set the scale of the first weights


@dataclass
class Position:
    """Where a run is: all that has happened before batch `batch` of epoch `epoch`."""

    epoch: int = 0
    batch: int = 0
    loss_sum: float | Tensor = 0.0  # on the device while an epoch runs
    seconds: float = 0.0


@dataclass
class Training:
    """Model, pruner, optimizer and batches of a run, built from its config alone."""

    config: Config
    device: torch.device
    model: nn.Module
    forward: Callable[[Tensor], Tensor]
    optimizer: Optimizer
    train: Batches
    test: Batches
    teacher: Callable[[Tensor], Tensor] | None = None
    ranks: Ranks = ALONE
    position: Position = field(default_factory=Position)
    stop: bool = False  # whether this rank wants to stop
    any_stop: bool | Tensor = False  # whether any rank wanted to at the last step

    def __post_init__(self) -> None:
        self.total_steps = self.config.epochs * len(self.train)
        if self.config.init == "firing" and not self.config.start:
            self._scale_to_fire_()
        self.ranks.broadcast_model_(self.model)
        self.gradients = GradientMean(
            self.ranks, self.model, self.ranks.fraction(self.config.batch_size)
        )
        self.pruner = self._attach()
        if isinstance(self.pruner.uses, SynOps):
            self.pruner.uses.sum_over_ranks = self.ranks.sum_
        penalised = self.config.synops_penalty > 0
        self.synops_penalty = SynOpsPenalty(self.model) if penalised else None
        plastic = isinstance(self.model, Plastic)
        self.compute = self.learn_locally if plastic else self._captured()
        self.own_teacher = is_python(self.config.teacher)
        decay = self.config.average
        self.average = WeightAverage(self.model, decay) if decay else None

    def _attach(self) -> Pruner:
        return self.config.build_method().attach(
            self.model, self.optimizer, total_steps=self.total_steps, seed=self.config.seed
        )

    def _captured(self) -> Callable[..., Tensor]:
        """Return `learn` as a CUDA graph, or as it is where a graph is not possible or wanted."""
        wanted = not self.config.compile if self.config.graph is None else self.config.graph
        if self.device.type != "cuda" or not wanted:
            return self.learn
        if reason := why_not(self.model, self.pruner.method.name, self.ranks):
            if self.config.graph:
                warnings.warn(f"graph: not used, since {reason}", stacklevel=2)
            return self.learn
        return Graph(self.learn, self.model, self.pruner.uses)

    @torch.no_grad()
    def _scale_to_fire_(self) -> None:
        """Scale each layer so that the network fires under the method's first masks."""
        parameters = list(self.model.parameters())
        given = [parameter.clone() for parameter in parameters]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the real attach says the same
            self._attach().detach()  # leaves the weights under the first masks
        masked = [parameter.clone() for parameter in parameters]
        assert isinstance(self.model, Spiking)
        images = next(self.train.epoch(0))[0]
        few = images[:, :SCALE_IMAGES] if self.model.temporal else images[:SCALE_IMAGES]
        scale_to_fire_(self.model, few)
        for parameter, before, first in zip(parameters, given, masked, strict=True):
            scale = 1.0 if parameter.equal(first) else parameter.norm() / first.norm()
            parameter.copy_(before * scale)

    @property
    def steps(self) -> int:
        """Optimizer steps taken."""
        return self.position.epoch * len(self.train) + self.position.batch

    def learning_rate(self) -> float:
        """Return the learning rate of the next step; each cycle of the method starts again."""
        progress = self.steps / self.total_steps * self.pruner.method.cycles
        return self.config.lr * RATES[self.config.schedule](progress % 1.0, self.config.warmup)

    def time_steps(self) -> int:
        """Return the time steps of the next step: fewer in the early parts, if there are any."""
        config = self.config
        parts = zip(config.early_time_steps, config.early, strict=True)
        now = (steps for steps, end in parts if self.steps < end * self.total_steps)
        return next(now, 0) or config.time_steps

    def set_time_steps(self, count: int) -> None:
        """Set the time steps of the network; one of your own decides for itself."""
        if isinstance(self.model, Spiking | Plastic):
            self.model.time_steps = count

    def loss(self, output: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Return the config's loss; tests use no label smoothing."""
        return LOSSES[self.config.loss](output, labels, self.config.rate_scale, smoothing)

    def teach(self, images: Tensor) -> Tensor:
        """Return the teacher's logits."""
        assert self.teacher is not None
        with autocast(self.config, self.device):
            return self.teacher(images)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take one optimizer step; return its loss, still on the device."""
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.set_time_steps(self.time_steps())
        # a graph would repeat the kernels of the user's own code, not what else it does
        expected = (self.teach(images),) if self.own_teacher else ()
        loss = self.compute(images, labels, *expected)
        self.optimizer.step()
        if self.average:
            self.average.update()
        self.position.batch += 1
        return loss

    def learn(self, images: Tensor, labels: Tensor, expected: Tensor | None = None) -> Tensor:
        """Leave the gradients of a batch; return its loss.

        Args:
            images: a batch of inputs.
            labels: its labels.
            expected: the teacher's logits; None: the teacher is called here, if there is one.
        """
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.config, self.device):
            output = self.forward(images)
        loss = self.loss(output, labels, self.config.label_smoothing)
        if self.teacher:
            expected = self.teach(images) if expected is None else expected
            own = logits(output, self.config.rate_scale)
            distilled = distillation.distillation_loss(own, expected)
            loss = torch.lerp(loss, distilled, self.config.teacher_weight)
        penalty = rate_penalty(self.model)
        if self.synops_penalty:
            penalty = penalty + self.config.synops_penalty * self.synops_penalty.take()
        loss, self.any_stop = self.gradients.backward(loss, self.stop, penalty)
        return loss

    def learn_locally(self, images: Tensor, labels: Tensor) -> Tensor:
        """Leave the updates of the network's own rule as gradients; return the loss before it."""
        assert isinstance(self.model, Plastic)
        self.optimizer.zero_grad(set_to_none=True)
        self.any_stop = self.stop
        return self.loss(self.model.learn(images, labels), labels)

    def finish(self) -> dict[str, Tensor]:
        """Fix the masks; where weights are averaged, leave their mean in the model."""
        masks = self.pruner.finish()
        if self.synops_penalty:
            self.synops_penalty.remove()
        if self.average:
            self.average.install_(masks)
            self.set_time_steps(self.config.time_steps)
            epoch = self.train.epoch(self.position.epoch, part=self.ranks.part)
            with autocast(self.config, self.device), _reset_before_batches(self.model):
                update_bn(islice(epoch, BN_BATCHES), self.model)
            self.gradients.average_statistics_()
        return masks

    def shared_tensors(self) -> dict[str, Tensor]:
        """Return what must be equal on all ranks: weights, masks, all else a method keeps.

        The optimizer's state is left out: a difference there is one in the weights a step later.
        """
        pruner, average = self.pruner, self.average.state_dict() if self.average else {}
        states = {f"{x.name} ({key})": v for x in pruner.layers for key, v in x.state.items()}
        memory = {f"{name} (remembered)": value for name, value in pruner.memory.items()}
        means = {f"{name} (averaged)": value for name, value in average.items()}
        generator = {"the pruner's generator": pruner.generator.get_state()}
        return self.model.state_dict() | states | memory | means | generator

    def require_equal_ranks(self) -> None:
        """Raise on all ranks if what must be equal is not."""
        if not self.ranks.alone:
            self.ranks.require_equal(self.shared_tensors(), self.steps)

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides how the run continues."""
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        rng, *others = self.ranks.gather({"cpu": torch.get_rng_state(), "cuda": cuda})
        return {
            "position": {**asdict(self.position), "loss_sum": float(self.position.loss_sum)},
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "pruner": self.pruner.state_dict(),
            "average": self.average.state_dict() if self.average else {},
            "rng": rng,
            "other_rngs": others,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            SpikewireError: if it was saved by another number of ranks or another pruner.
        """
        rngs = [state["rng"], *state.get("other_rngs", ())]
        if len(rngs) != self.ranks.world_size:
            raise SpikewireError(
                f"ranks: {self.ranks.world_size} cannot resume what {len(rngs)} have saved, since "
                f"sums and random numbers differ; start it with {len(rngs)} in all"
            )
        self.position = Position(**state["position"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.pruner.load_state_dict(state["pruner"])
        if self.average:
            self.average.load_state_dict(state["average"])
        rng = rngs[self.ranks.rank]
        torch.set_rng_state(rng["cpu"])
        if self.device.type == "cuda" and rng["cuda"] is not None:
            torch.cuda.set_rng_state(rng["cuda"], self.device)


@contextmanager
def _reset_before_batches(model: nn.Module) -> Iterator[None]:
    """Reset neurons that keep their state before every forward pass inside, and at the end."""
    handle = model.register_forward_pre_hook(lambda module, _: reset_neurons_(module))
    try:
        yield
    finally:
        handle.remove()
        reset_neurons_(model)


def prepare(
    config: Config, data: AnyDataset | None = None, *, fresh: bool = True, ranks: Ranks = ALONE
) -> Training:
    """Return network, optimizer, pruner and batches at step 0; seeds torch with `config.seed`.

    Args:
        config: all settings.
        data: a data set to use instead of the named one.
        fresh: whether the run starts here; a resumed one gets its weights from a checkpoint.
        ranks: the processes that train together.
    """
    device = choose_device(config.device, ranks)
    enough = f"at least the number of ranks, {ranks.world_size}"
    check(config.batch_size >= ranks.world_size, "batch_size", config.batch_size, enough)
    data = load_data(config, data)
    data = data.hold_out(config.hold_out) if config.hold_out else data
    torch.manual_seed(config.seed)
    model = build_model(config, data, device)
    alone = ranks.alone or not isinstance(model, Plastic)
    check(alone, "ranks", ranks.world_size, f"1 for {config.model!r}: its rule is not averaged")
    train = training_batches(config, data, device)
    images, _ = next(train.epoch(0))  # an augmentation too large for the images raises here
    if config.start and fresh:
        with field_of_errors("start"):
            load_start_(model, config.start, data, images)
    if config.sync_batchnorm:
        check(device.type == "cuda", "sync_batchnorm", True, "false on a CPU, where torch has none")
        nn.SyncBatchNorm.convert_sync_batchnorm(model)  # in place; not fused by our kernels
    if is_python(config.model):
        try_model(config, model, images, data)
    training = Training(
        config=config,
        device=device,
        model=model,
        forward=forward_of(model, config.compile),
        optimizer=build_optimizer(config, model),
        train=train,
        test=test_batches(config, data, device),
        teacher=distillation.load_teacher(config, data, device) if config.teacher else None,
        ranks=ranks,
    )
    if not ranks.first:  # its own dropout; the pruner has a generator of its own
        torch.manual_seed(int(torch.randint(2**62, (ranks.world_size,))[ranks.rank]))
    return training
