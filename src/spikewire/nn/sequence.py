"""Layers in sequence over time, fused where possible, and blocks with a shortcut.

Neurons and other layers of `OVER_TIME` see ``[time, batch, ...]``, all others
``[time * batch, ...]``. Time is 1 before the first neuron of a network for still images.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from spikewire.errors import check
from spikewire.kernels import fusible
from spikewire.nn.adaptive import AdaptiveRecurrent
from spikewire.nn.batchnorm import BatchNormPerStep
from spikewire.nn.crossings import Encoder
from spikewire.nn.encoding import Bernoulli
from spikewire.nn.fusion import find_groups, run_group
from spikewire.nn.neurons import Neuron
from spikewire.nn.penalty import RatePenalty
from spikewire.nn.recurrent import (
    MAX_LOOP,
    LastSteps,
    LeakyIntegrator,
    Recurrent,
    is_hooked,
    read_last,
)


class Dropout(nn.Module):
    """Dropout over ``[time, batch, ...]`` with one mask per call, kept over time.

    Args:
        p: probability of an element to be dropped, in [0, 1).

    Raises:
        SpikewireError: `p` is out of its range.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        check(0 <= p < 1, "dropout", p, "in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x[t] * mask / (1 - p)`` in training, `x` in evaluation."""
        if not self.training or self.p == 0:
            return x
        keep = 1 - self.p
        # rand_like in half precision would round; bernoulli_ takes twice as long on a CPU
        mask = torch.rand_like(x[0], dtype=torch.float32).lt_(keep).div_(keep)
        return x * mask.to(x.dtype)

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"p={self.p}"


class Residual(nn.Module):
    """A block with a shortcut, over ``[time, batch, ...]``.

    Without `neuron` it adds spikes, as SEW-ResNet with ADD does (Fang et al., NeurIPS 2021)::

        y = branch(x) + shortcut(x)             both end with neurons, or the shortcut is x itself

    With `neuron` it adds currents, as ResNet-19 does (Zheng et al., AAAI 2021)::

        y = neuron(branch(x) + shortcut(x))     both end with BatchNorm, or the shortcut is x

    The addition is part of the fused kernel of the last BatchNorm and neurons.

    Args:
        branch: layers by name.
        shortcut: layers by name; none: the identity.
        neuron: neurons after the addition.

    Example:
        >>> branch = {"conv": nn.Conv2d(8, 8, 3, padding=1), "bn": nn.BatchNorm2d(8), "lif": LIF()}
        >>> Residual(branch)(torch.rand(4, 2, 8, 6, 6)).shape
        torch.Size([4, 2, 8, 6, 6])
    """

    def __init__(
        self,
        branch: Mapping[str, nn.Module],
        shortcut: Mapping[str, nn.Module] | None = None,
        neuron: Neuron | None = None,
    ) -> None:
        super().__init__()
        self.branch, self.shortcut = nn.Sequential(), nn.Sequential()
        for name, layer in branch.items():
            self.branch.add_module(name, layer)
        for name, layer in (shortcut or {}).items():
            self.shortcut.add_module(name, layer)
        self.neuron = neuron

    def forward(self, x: Tensor) -> Tensor:
        """Return spikes, or sums of spikes, ``[time, batch, ...]``."""
        steps, fuse = len(x), fusible(x, len(x))
        other = run_layers(self.shortcut, x, steps)
        layers = [*self.branch] if self.neuron is None else [*self.branch, self.neuron]
        *groups, last = find_groups(layers, fuse)
        for group in groups:
            x = run(group, x, steps)
        if len(last) == 2:
            added = {"residual": other} if self.neuron is None else {"add": other}
            return run_group(last, x, steps, **added)
        return run(last, x, steps) + other if self.neuron is None else self.neuron(x + other)


OVER_TIME = (
    Neuron,
    BatchNormPerStep,
    Recurrent,
    AdaptiveRecurrent,
    LeakyIntegrator,
    LastSteps,
    RatePenalty,
    Encoder,
    Residual,
    Bernoulli,
)


def run_layers(layers: Iterable[nn.Module], x: Tensor, steps: int) -> Tensor:
    """Run layers one after another, fused where possible.

    Args:
        layers: the layers in order.
        x: input of the first ``[time, batch, ...]``; time 1: the same at every time step.
        steps: how many time steps to run.

    Returns:
        Output of the last ``[time, batch, ...]``, where time may still be 1.
    """
    groups = find_groups(layers, fusible(x, steps))
    tail = groups[-3:] if steps > MAX_LOOP and _reads_last(groups[-3:]) else []
    for group in groups[: len(groups) - len(tail)]:
        x = run(group, x, steps)
    return read_last(*(layer for (layer,) in tail), x) if tail else x  # pyright: ignore


def _reads_last(tail: Sequence[Sequence[nn.Module]]) -> bool:
    """Return whether these are synapses, a leaky filter and the steps that are read of it."""
    kinds = nn.Linear, LeakyIntegrator, LastSteps
    layers = [layer for group in tail for layer in group]
    same = len(layers) == 3 and all(map(isinstance, layers, kinds))
    return same and not is_hooked(*layers)


def run(group: Sequence[nn.Module], x: Tensor, steps: int) -> Tensor:
    """Run a group of `find_groups` on ``[time, batch, ...]``."""
    if len(group) > 1:
        return run_group(group, x, steps)
    layer = group[0]
    if isinstance(layer, OVER_TIME):
        return layer(x.expand(steps, *x.shape[1:]))
    if isinstance(layer, Dropout):
        return layer(x)
    return layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])
