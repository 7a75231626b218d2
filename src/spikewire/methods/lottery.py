"""Lottery tickets: Frankle & Carbin, ICLR 2019, https://arxiv.org/abs/1803.03635.

Rewinding to an early step, not to the start: Frankle et al. 2019, https://arxiv.org/abs/1903.01611.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spikewire.errors import SpikewireError, check, check_word
from spikewire.pruning.asked import asked
from spikewire.pruning.layers import Layer
from spikewire.pruning.method import Masked
from spikewire.pruning.selection import SCOPES, require_finite, wire


@dataclass(kw_only=True)
class Lottery(Masked):
    """Train, prune the weakest, rewind all weights to an early step, train again.

    The run is split evenly into `rounds`; after round i of n the share ``c^(i / (n - 1))`` is left,
    and every parameter and buffer goes back to what it was at step `rewind` of the first round.
    """

    name = "lottery"

    connectivity: float = asked(0.05)
    rounds: int = field(
        default=3, metadata={"help": "trainings; each but the last ends in a pruning"}
    )  # pyright: ignore
    rewind: float = field(
        default=0.2, metadata={"help": "where to rewind to, as a share of a round"}
    )
    scope: str = field(default="global", metadata={"help": "who competes: global or layer"})

    def __post_init__(self) -> None:
        check(self.rounds >= 2, "rounds", self.rounds, "2 or more")
        check(0 <= self.rewind < 1, "rewind", self.rewind, "in [0, 1)")
        check_word("scope", self.scope, SCOPES)

    def init(self, layers: Sequence[Layer]) -> None:
        """Begin dense; with `rewind` 0 the first weights are the ones to come back to."""
        if self._total_steps < self.rounds:
            raise SpikewireError(f"rounds: {self.rounds} do not fit in {self._total_steps} steps")
        for layer in layers:
            layer.state["mask"] = torch.ones_like(layer.weight, dtype=torch.bool)
        if self.rewind_step == 0:
            self.remember()

    @property
    def rewind_step(self) -> int:
        """The step of the first round that later rounds restart from."""
        return int(self.rewind * self._total_steps / self.rounds)

    def after_step(self, layers: Sequence[Layer]) -> None:
        """Remember the early weights once; prune and rewind after each round but the last."""
        if self.step == self.rewind_step:
            self.remember()
        ended = next((i for i in range(1, self.rounds) if self.crosses(i / self.rounds)), None)
        if ended is None:
            return
        layers = self._layers  # one without a gradient now is pruned and rewound all the same
        scores = [torch.where(x.state["mask"], x.weight.abs(), -1.0) for x in layers]
        part = ended / (self.rounds - 1)
        masks = wire(layers, require_finite(scores), lambda x: self.share(x) ** part, self.scope)
        for layer, mask in zip(layers, masks, strict=True):
            layer.state["mask"].copy_(mask)
        self.go_back()

    def tensors(self) -> dict[str, Tensor]:
        """Return every parameter and saved buffer of the model."""
        assert self._model is not None
        values = self._model.state_dict()
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def remember(self) -> None:
        """Copy them."""
        self.memory = {name: value.detach().clone() for name, value in self.tensors().items()}

    def go_back(self) -> None:
        """Restore the copy, and let the optimizers start afresh."""
        for name, value in self.tensors().items():
            value.copy_(self.memory[name])
        for optimizer in self._optimizers:
            optimizer.state.clear()  # zeros would not do: NAdam's product starts at 1
        self.everyone()

    def end(self, layers: Sequence[Layer]) -> None:
        """Refuse to stop before the last round, where the asked connectivity is not reached yet."""
        here = math.floor(self.step / self._total_steps * self.rounds + 1e-9) + 1
        if here < self.rounds:
            raise SpikewireError(
                f"lottery: finish() in round {here} of {self.rounds} (step {self.step} of "
                f"{self._total_steps}); train all rounds first, or detach()"
            )
