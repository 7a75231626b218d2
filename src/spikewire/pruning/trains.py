"""Spike trains of hidden neurons: their correlations, over the images of many steps."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.nn.synapses import SYNAPTIC
from spikewire.pruning.costs.meter import Meter
from spikewire.pruning.costs.spacing import evenly_spaced
from spikewire.pruning.hooks import ForwardHooks, Named
from spikewire.pruning.layers import Layer
from spikewire.pruning.neurons import Flow, Neurons
from spikewire.pruning.ranks import sum_over_ranks

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner

ROWS = 512  # frames of a layer's input that are taken per forward pass, evenly spaced
TINY = 1e-9  # variance below which a train is constant
LOOKS = 2  # calls of a layer that are followed back: a recurrent one feeds itself in the second


class SpikeTrains(Meter):
    """Sums of products of spike trains, of every two hidden neurons of a group, over training.

    With x the spikes of the neurons at one time step of one image (of channels also at one
    position) and a 1 appended, ``sums += x xᵀ``: numbers of spikes, of coincidences and of frames.
    Up to 512 frames are taken from every forward pass.

    Args:
        pruner: the pruner; the sums are in its `memory`, by the name of a group's first source.
        until: fraction of the run after which nothing is counted.

    Attributes:
        groups: the groups of hidden neurons; none before the first forward pass.
        warned: whether it was said that there are none.
    """

    shared = False  # the modules of other layers are looked at here

    def __init__(self, pruner: "Pruner", until: float) -> None:
        see: Any = torch.compiler.disable(self.see)  # it reads autograd's graph
        self.see = see
        super().__init__(pruner)
        assert pruner.model is not None
        self.until, self.warned = until, False
        self.groups: tuple[Neurons, ...] = ()
        self.flow: Flow | None = Flow({self.modules[x.name]: x for x in pruner.layers})
        self.looks: dict[nn.Module, int] = {}
        self.pending: dict[str, list[Tensor]] = {}
        for layer in pruner.layers:
            size = len(layer.weight) + 1
            pruner.memory[layer.name] = layer.weight.new_zeros(size, size, dtype=torch.float64)
        others = {
            name: module
            for name, module in pruner.model.named_modules()
            if isinstance(module, SYNAPTIC) and module not in self.flow.layers
        }
        self.hooks.handles += ForwardHooks(others, [*map(Named, others)], self.see).handles

    def see(self, layer: Any, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Keep frames of a forward pass in training; in the first, follow where they come from."""
        if not (module.training and output.requires_grad):
            return
        if self.flow is not None:
            self.looks[module] = self.looks.get(module, 0) + 1
            if self.looks[module] <= LOOKS:
                self.flow.enter(module, inputs)
            self.flow.leave(module, output)
        if isinstance(layer, Layer):
            self.pending.setdefault(layer.name, []).append(frames(inputs, layer.weight.dim() - 2))

    def end_step(self) -> None:
        """Add what was seen in a step, on all ranks, to the sums."""
        if not self.pending:
            return
        if self.flow is not None:
            self.groups, self.flow = tuple(self.flow.groups()), None
        for group in self.groups:
            new = torch.zeros_like(self.sums(group))
            for layer in group.targets:
                new += self.products(group, layer.name)
            self.sums(group).add_(sum_over_ranks(new))
        self.pending.clear()
        self.resume()

    def products(self, group: Neurons, name: str) -> Tensor | float:
        """Return the sum of ``x xᵀ`` over the frames that a layer has seen in this step."""
        if name not in self.pending:
            return 0.0
        rows = torch.cat(self.pending[name])
        rows = rows.unflatten(1, (group.size, -1)).transpose(1, 2).flatten(0, 1)
        rows = evenly_spaced(rows, ROWS).float()
        rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        return (rows.T @ rows).double()

    def sums(self, group: Neurons) -> Tensor:
        """Return the sums of a group since they were cleared, ``[neurons + 1, neurons + 1]``."""
        memory, source = self.pruner.memory, group.sources[0]
        memory[source.name] = memory[source.name].to(source.weight.device)  # it may have moved
        return memory[source.name]

    def resume(self) -> None:
        """Remove the hooks where nothing is to be counted any more.

        Raises:
            SpikewireError: if the pruner has gone back to a step where something is.
        """
        if self.pruner.progress >= self.until:
            self.remove()
        elif not self.hooks.handles:
            raise SpikewireError(
                f"{self.pruner.method.name}: the state is of a step before the neurons were "
                "selected; detach() and attach() again, then load it"
            )


def frames(inputs: Tensor, kernel: int) -> Tensor:
    """Return rows of a layer's input: of channels one per position, else of all inputs."""
    channels = inputs.detach().movedim(-1 - kernel, -1) if kernel > 0 else inputs.detach()
    return evenly_spaced(channels.reshape(-1, channels.shape[-1]), ROWS)


class Correlation(NamedTuple):
    """Mean, variance and correlation of spike trains.

    Args:
        mean: spikes per frame, ``[neurons]``.
        variance: of the trains; 0 for one that never changes.
        matrix: covariances divided by both deviations, ``[neurons, neurons]``; 0 where one is 0.
    """

    mean: Tensor
    variance: Tensor
    matrix: Tensor

    def regression(self, i: int, j: int) -> float:
        """Return ``cov[i, j] / var[j]``: how much of train i a spike of j stands for."""
        ratio = self.variance[i] / self.variance[j].clamp(min=TINY)
        return float(self.matrix[i, j] * ratio.sqrt())


def correlation(sums: Tensor) -> Correlation:
    """Return what the sums of a group say: ``cov[i, j] = E[x_i x_j] - E[x_i] E[x_j]``."""
    moments = sums / sums[-1, -1].clamp(min=1.0)
    mean = moments[-1, :-1]
    covariance = moments[:-1, :-1] - mean.outer(mean)
    variance = covariance.diagonal().clamp(min=0.0)
    variance = torch.where(variance > TINY, variance, 0.0)
    scale = variance.sqrt()
    matrix = (covariance / scale.outer(scale)).nan_to_num(0.0, 0.0, 0.0)
    return Correlation(mean, variance, matrix)
