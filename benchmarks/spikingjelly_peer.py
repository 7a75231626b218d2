"""One of our networks built of SpikingJelly's layers, for the benchmarks of a training step."""

import copy

import torch
from spikingjelly.activation_based import layer, neuron, surrogate
from torch import Tensor, nn

from spikewire.nn.layers import Dropout, Spiking
from spikewire.nn.neurons import PLIF, Neuron
from spikewire.nn.sequence import Residual


class PeerResidual(nn.Module):
    """A block with a shortcut, of SpikingJelly's layers."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, neuron: nn.Module | None) -> None:
        super().__init__()
        self.branch, self.shortcut, self.neuron = branch, shortcut, neuron

    def forward(self, x: Tensor) -> Tensor:
        """Return spikes, or sums of spikes."""
        y = self.branch(x) + self.shortcut(x)
        return y if self.neuron is None else self.neuron(y)


class Peer(nn.Module):
    """The same network; the layers before the first neuron run once, as in ours.

    Call `spikingjelly.activation_based.functional.reset_net` before every forward pass.

    Args:
        model: our network, copied with its weights.
        step_mode: "m" for all time steps in one call of a layer, "s" for one at a time.
    """

    def __init__(self, model: Spiking, step_mode: str) -> None:
        super().__init__()
        self.time_steps, self.step_mode = model.time_steps, step_mode
        static, timed = [], []
        for x in copy.deepcopy(model):
            before_neurons = not timed and not isinstance(x, Neuron)
            (static if before_neurons else timed).append(x)
        self.static = nn.Sequential(*static)
        self.timed = nn.Sequential(*(self.translate(x) for x in timed))

    def translate(self, x: nn.Module) -> nn.Module:
        """Return SpikingJelly's layer for one of ours that runs over time."""
        if isinstance(x, Neuron) and x.tau is not None:
            atan = surrogate.ATan(alpha=2.0)  # 1 / (1 + (pi x)^2), as ours
            options = {"surrogate_function": atan, "detach_reset": True}
            options |= {"v_threshold": x.threshold, "step_mode": self.step_mode}
            if isinstance(x, PLIF):
                return neuron.ParametricLIFNode(init_tau=x.tau, **options)
            return neuron.LIFNode(tau=x.tau, **options)
        if isinstance(x, Residual):
            branch, shortcut = (
                nn.Sequential(*map(self.translate, part)) for part in (x.branch, x.shortcut)
            )
            return PeerResidual(branch, shortcut, x.neuron and self.translate(x.neuron))
        if isinstance(x, Dropout):
            return layer.Dropout(x.p, step_mode=self.step_mode)
        return layer.SeqToANNContainer(x) if self.step_mode == "m" else x

    def forward(self, images: Tensor) -> Tensor:
        """Return spikes ``[time, batch, classes]``."""
        current = self.static(images)
        if self.step_mode == "m":
            return self.timed(current.expand(self.time_steps, *current.shape))
        return torch.stack([self.timed(current) for _ in range(self.time_steps)])
