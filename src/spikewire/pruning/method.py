"""`Method`: immutable hyper-parameters and the hooks a method writes; its two families.

::

    loss.backward(); optimizer.step()
                     |-- pre-hook:  before_step()
                     |-- the user's optimizer moves the weights
                     '-- post-hook: after_step(), the network sees the new masks

A method writes `init`, `before_step`, `after_step` and `mask`; the families `Latent` and `Masked`
say what the optimizer moves and what the network sees. All run-time state is in the `Pruner`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spikewire.errors import SpikewireError, not_sparsity
from spikewire.fields import declared, only_one, validate
from spikewire.pruning.layers import Layer, Targets, prunable
from spikewire.pruning.moments import cancel_weight_decay_, reset_moments_
from spikewire.pruning.pruner import Pruner

UNITS = ("connectivity", "synapses", "synops", "bytes")  # of a target


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to prune and regrow; its dataclass fields are its hyper-parameters, flags, TOML keys.

    A method is immutable and holds no run-time state: one instance may be attached to several
    models. All hooks run under ``torch.no_grad()`` and outside ``torch.compile``.
    """

    name: ClassVar[str] = ""
    exclusive: ClassVar[tuple[str, ...]] = ()  # fields of which only one may be given
    counts: ClassVar[str] = "it keeps a number of weights"  # why it takes no other unit
    for_trained: ClassVar[dict[str, Any]] = {}  # values for trained weights (``--start``)
    keeps_signs: ClassVar[bool] = False  # whether a synapse keeps the sign of its first weight

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Answer a sparsity with the connectivity that is meant."""
        if "sparsity" in given and "sparsity" not in declared(cls):
            raise not_sparsity("sparsity", given["sparsity"], "connectivity={}")
        for unit in [x for x in UNITS if x in given and x not in declared(cls)]:
            taken = [x for x in UNITS if x in declared(cls)]
            instead = f"; use {' or '.join(taken)}" if taken else ""
            raise SpikewireError(f"{unit}: {cls.name} has no such target: {cls.counts}{instead}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        validate(self)
        only_one(self, *self.exclusive)

    # ------------------------------------------------------------------ what a method writes

    def init(self, pruner: Pruner) -> None:
        """Prepare each ``layer.state`` in ``pruner.layers`` from its weight.

        Args:
            pruner: the pruner being attached; its `model` and `layers` are set.
        """

    def before_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Act on gradients, or on what the optimizer is about to move; once per optimizer.

        Args:
            pruner: the attached pruner.
            layers: the layers this optimizer moves now; each has a gradient.
        """

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Prune and regrow, after the last of the optimizers has stepped.

        Args:
            pruner: the attached pruner; its `step` counts this step.
            layers: the layers that moved in this step; ``pruner.all_layers()`` gives all of them.
        """

    def mask(self, layer: Layer) -> Tensor:
        """Return the mask of a layer, a function of ``layer.state`` alone: True = exists."""
        raise NotImplementedError

    def end(self, pruner: Pruner) -> None:
        """Make the last change before `Pruner.finish` hands the masks over.

        Args:
            pruner: the attached pruner.
        """

    # ------------------------------------------------------------------ what a family writes

    def lend_(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Write what the optimizer moves into the weights, and call `before_step`."""
        self.before_step(pruner, layers)

    def take_back_(self, layers: Sequence[Layer]) -> None:
        """Read back what the optimizer has moved."""

    def show_(self, layers: Sequence[Layer]) -> None:
        """Write what the network sees into the weights."""

    def accept_edit_(self, layer: Layer, before: Tensor) -> None:
        """Keep a write to the weight from outside; `before` is the weight without it."""

    # ------------------------------------------------------------------ what others read

    @property
    def target(self) -> float | None:
        """The connectivity to end with; None where the method has no target."""
        return getattr(self, "connectivity", None)

    @property
    def unit(self) -> str:
        """The unit of the target, one of `UNITS`; "" where the method has no target."""
        return "connectivity" if self.target is not None else ""

    @property
    def cycles(self) -> int:
        """How often the learning-rate schedule runs from start to end within the run."""
        return 1

    def attach(
        self,
        model: nn.Module,
        *optimizers: Optimizer,
        total_steps: int,
        targets: Targets = prunable,
        seed: int = 0,
    ) -> Pruner:
        """Attach the method to a model by hooks on the steps of its optimizers.

        Args:
            model: any ``nn.Module``; its weights may be fresh or trained.
            optimizers: the ``torch.optim`` optimizers that move its weights, unmodified.
            total_steps: optimizer steps of the whole run, which schedules are measured against.
            targets: which weights to prune: a predicate ``(name, module) -> bool``, a glob, a list
                of globs or names, or a mapping from these to each layer's own connectivity.
            seed: seed of the pruner's random choices.

        Returns:
            The pruner, which holds all run-time state.

        Raises:
            SpikewireError: if no optimizer moves a target, a target cannot be pruned, another
                pruner has it, or the method cannot work with this optimizer or number of steps.

        Example:
            >>> pruner = spikewire.Budget(connectivity=0.05).attach(
            ...     model, optimizer, total_steps=len(loader) * epochs
            ... )
        """
        return Pruner(self, model, optimizers, total_steps=total_steps, targets=targets, seed=seed)


class Latent(Method):
    """The optimizer moves a hidden tensor, the network sees ``project(latent)``.

    ``layer.state["latent"]`` is the hidden tensor. Absent synapses have one too, so the gradient at
    weight 0 can bring them back.
    """

    def project(self, layer: Layer) -> Tensor:
        """Return the weight the network sees, a function of ``layer.state`` alone."""
        raise NotImplementedError

    def project_(self, layer: Layer) -> None:
        """Write the projection into the weight; override it to avoid a temporary tensor."""
        layer.weight.copy_(self.project(layer))

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "project" in vars(cls) and "project_" not in vars(cls):
            cls.project_ = Latent.project_  # not that of a parent with another projection

    def mask(self, layer: Layer) -> Tensor:
        """Return where the projection is not zero."""
        return self.project(layer) != 0

    def lend_(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Write the latents into the weights; spare absent ones from weight decay."""
        for layer in layers:
            layer.weight.copy_(layer.state["latent"])
        self.before_step(pruner, layers)
        for layer in layers:
            if layer.options.get("weight_decay"):
                cancel_weight_decay_(layer, ~self.mask(layer))

    def take_back_(self, layers: Sequence[Layer]) -> None:
        """Read the latents back from the weights."""
        for layer in layers:
            layer.state["latent"].copy_(layer.weight)

    def show_(self, layers: Sequence[Layer]) -> None:
        """Write the projections into the weights."""
        for layer in layers:
            self.project_(layer)

    def unproject(self, layer: Layer) -> Tensor:
        """Return the latents whose projection is the weight, where present: its inverse."""
        return layer.weight

    def accept_edit_(self, layer: Layer, before: Tensor) -> None:
        """Set the latents of present synapses whose weight was written."""
        written = self.mask(layer) & (layer.weight != before)
        layer.state["latent"].copy_(
            torch.where(written, self.unproject(layer), layer.state["latent"])
        )


class Masked(Method):
    """A mask on gradient and weight: an absent synapse is 0 and does not move.

    ``layer.state["mask"]`` is the mask.
    """

    def mask(self, layer: Layer) -> Tensor:
        """Return the mask, which is the state itself."""
        return layer.state["mask"]

    def lend_(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Let the method see the dense gradient, then mask it."""
        self.before_step(pruner, layers)
        for layer in layers:
            assert layer.weight.grad is not None
            layer.weight.grad.masked_fill_(~self.mask(layer), 0.0)

    def show_(self, layers: Sequence[Layer]) -> None:
        """Set absent weights to exactly 0."""
        for layer in layers:
            layer.weight.masked_fill_(~self.mask(layer), 0.0)

    def regrow_(self, layer: Layer, regrown: Tensor) -> None:
        """Add synapses at weight 0, with their optimizer state reset.

        Args:
            layer: the layer; its mask gains the synapses.
            regrown: mask of the synapses to add.
        """
        mask = layer.state["mask"]
        reset_moments_(layer.optimizer, layer.weight, regrown, mask)
        layer.weight.masked_fill_(regrown, 0.0)
        mask |= regrown


def all_present(layer: Layer) -> Tensor:
    """Return a mask in which every synapse of the layer exists."""
    return torch.ones_like(layer.weight, dtype=torch.bool)
