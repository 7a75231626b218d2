"""Spike-train similarity: neurons whose spikes resemble another's are removed.

The idea is that of https://ieeexplore.ieee.org/document/9023707, as https://arxiv.org/abs/2105.04916
cites it; it is known to us from there only, and the equations are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spikewire.pruning import (
    Correlation,
    Layer,
    Masked,
    Neurons,
    Pruner,
    SpikeTrains,
    all_present,
    correlation,
    cubic,
    setting,
    target_count,
    warn_caller,
)


@dataclass(frozen=True, kw_only=True)
class Similarity(Masked):
    """Of two hidden neurons with similar spike trains, the one that spikes less is removed.

    Similar is the correlation r of their spikes over time steps and images since the last pruning
    (for channels also over positions). Neurons that never spike go first; then of the pair of
    highest r the neuron i of fewer spikes loses all incoming and outgoing synapses. With `merge`
    what i sent is sent by the other, j: ``w_j <- w_j + (cov_ij / var_j) w_i``, the regression of
    one train on the other, which leaves the network as it was where the two are the same.

    The fraction of neurons that is left in each group of hidden neurons follows
    ``c + (1 - c)(1 - x)^3``, c being `neurons` and x from 0 at `begin` to 1 at `ramp`; with
    `similar` instead, all pairs of higher r lose one. Without either, `neurons` is 0.5. The
    connectivity is an outcome.

    Hidden neurons are those between two pruned layers; see `spikewire.pruning.neurons`. Where a
    network has none that a gradient passes, as those with a local rule, pruning warns once.
    """

    name = "similarity"
    counts = "it removes whole neurons"
    exclusive = ("neurons", "similar")

    neurons: float | None = setting(
        None, "fraction of hidden neurons to keep, in each group of layers", within="(0, 1]"
    )
    similar: float | None = setting(
        None, "correlation above which one of two neurons is removed", within="(0, 1)"
    )
    merge: bool = setting(True, "the similar neuron takes over the outgoing weights")
    begin: float = setting(0.1, "fraction of the run before pruning begins", within="[0, 1)")
    ramp: float = setting(0.6, "fraction of the run at which pruning ends", within="(begin, 1]")
    every: int = setting(16, "steps between prunings", within="[1, inf)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neurons is None and self.similar is None:
            object.__setattr__(self, "neurons", 0.5)

    def init(self, pruner: Pruner) -> None:
        """Mark every synapse as present, and watch the spikes."""
        pruner.uses = SpikeTrains(pruner, until=self.ramp)
        for layer in pruner.layers:
            layer.state["mask"] = all_present(layer)

    def after_step(self, pruner: Pruner, layers: Sequence[Layer]) -> None:
        """Prune when it is due."""
        inside = self.begin <= pruner.progress < self.ramp and pruner.step % self.every == 0
        if not (inside or pruner.passes(self.ramp)):
            return
        trains = pruner.uses
        assert isinstance(trains, SpikeTrains)
        pruner.all_layers()
        if not (trains.groups or trains.warned):
            trains.warned = True
            warn_caller("similarity: no hidden neurons between two pruned layers: none is removed")
        done = (pruner.progress - self.begin) / (self.ramp - self.begin)
        for group in trains.groups:
            sums = trains.sums(group)
            self.prune_(group, correlation(sums), done)
            sums.zero_()

    def prune_(self, group: Neurons, found: Correlation, done: float) -> None:
        """Remove neurons of a group until as many are left as the schedule gives."""
        present = group.present()
        least = 1
        if self.neurons is not None:
            least = target_count(cubic(done, 1.0, self.neurons), group.size)
        excess = int(present.sum()) - least
        for neuron, other in removals(found, present, excess, self.similar):
            if self.merge and other >= 0:
                group.merge_(neuron, other, found.regression(neuron, other))
            group.drop_(neuron)


def removals(
    found: Correlation, present: Tensor, most: int, threshold: float | None = None
) -> list[tuple[int, int]]:
    """Return the neurons to remove, in order, each with the one it resembles, -1 for a silent one.

    Args:
        found: means and correlations of the spike trains.
        present: the neurons that are still present.
        most: how many are removed, at most.
        threshold: correlation above which one of two is removed; None: any.
    """
    alive, mean = present.tolist(), found.mean.tolist()
    silent = [i for i, here in enumerate(alive) if here and mean[i] == 0]
    removed = [(i, -1) for i in silent[: max(0, most)]]
    for i, _ in removed:
        alive[i] = False
    for one, other in pairs(found.matrix, present, -1.0 if threshold is None else threshold):
        if len(removed) >= most:
            break
        if alive[one] and alive[other]:
            less, more = (one, other) if mean[one] < mean[other] else (other, one)
            alive[less] = False
            removed.append((less, more))
    return removed


def pairs(matrix: Tensor, present: Tensor, least: float) -> list[list[int]]:
    """Return the pairs of present neurons correlated above `least`, the most similar first."""
    both = torch.triu(present.outer(present) & (matrix >= least), 1)
    found = both.nonzero()
    order = matrix[both].argsort(descending=True, stable=True)
    return found[order].tolist()
