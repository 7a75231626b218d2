"""Lottery tickets: Frankle & Carbin, ICLR 2019, https://arxiv.org/abs/1803.03635.

Rewinding to an early step, not to the start: Frankle et al. 2019, https://arxiv.org/abs/1903.01611.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spikewire.pruning import (
    SCOPES,
    Layer,
    Masked,
    Pruner,
    SpikewireError,
    all_present,
    named_state,
    require_finite,
    select_masks,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class Lottery(Masked):
    """Train, prune the smallest weights, rewind all weights to an early step, train again.

    The run is split evenly into `rounds`; after round i of n the fraction ``c^(i / (n - 1))`` is
    left, and every parameter and buffer is set back to what it was at step `rewind` of the first
    round.
    """

    name = "lottery"

    connectivity: float = setting(0.05, "target fraction of weights", within="(0, 1]")
    rounds: int = setting(
        3, "training rounds; each but the last ends in a pruning", within="[2, inf)"
    )
    rewind: float = setting(0.2, "where to rewind to, as a fraction of a round", within="[0, 1)")
    scope: str = setting("global", "what competes: all layers or each alone", choices=SCOPES)

    @property
    def cycles(self) -> int:
        """The learning rate starts again in every round."""
        return self.rounds

    def init(self, pruner: Pruner) -> None:
        """Start dense; with `rewind` 0 the first weights are the ones to return to."""
        if pruner.total_steps < self.rounds:
            raise SpikewireError(f"rounds: {self.rounds} do not fit in {pruner.total_steps} steps")
        for layer in pruner.layers:
            layer.state["mask"] = all_present(layer)
        if self.rewind_step(pruner) == 0:
            self.remember(pruner)

    def rewind_step(self, pruner: Pruner) -> int:
        """Return the step of the first round that later rounds restart from."""
        return int(self.rewind * pruner.total_steps / self.rounds)

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Remember the early weights once; prune and rewind after each round but the last."""
        if pruner.step == self.rewind_step(pruner):
            self.remember(pruner)
        ended = next((i for i in range(1, self.rounds) if pruner.passes(i / self.rounds)), None)
        if ended is None:
            return
        layers = pruner.all_layers()  # also those without a gradient in this step
        scores = [torch.where(x.state["mask"], x.weight.abs(), -1.0) for x in layers]
        part = ended / (self.rounds - 1)
        masks = select_masks(
            layers, require_finite(scores), lambda x: pruner.target_of(x) ** part, self.scope
        )
        for layer, mask in zip(layers, masks, strict=True):
            layer.state["mask"].copy_(mask)
        self.restart_(pruner)

    def remember(self, pruner: Pruner) -> None:
        """Copy every parameter and saved buffer of the model."""
        tensors = named_state(pruner.attached_model)
        pruner.memory = {name: value.detach().clone() for name, value in tensors.items()}

    def restart_(self, pruner: Pruner) -> None:
        """Restore the copy, and clear the optimizers' state."""
        if not pruner.memory:
            raise SpikewireError("rewind: the saved state has no copy of the weights to rewind to")
        for name, value in named_state(pruner.attached_model).items():
            value.copy_(pruner.memory[name])
        for optimizer in pruner.all_optimizers:
            optimizer.state.clear()  # zeros would not do: NAdam's product starts at 1

    def end(self, pruner: Pruner) -> None:
        """Refuse to finish before the last round, where the target is not met yet."""
        here = math.floor(pruner.step / pruner.total_steps * self.rounds + 1e-9) + 1
        if here < self.rounds:
            raise SpikewireError(
                f"lottery: finish() in round {here} of {self.rounds} (step {pruner.step} of "
                f"{pruner.total_steps}); train all rounds first, or detach()"
            )
