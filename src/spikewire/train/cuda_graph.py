"""Forward and backward of a step as one CUDA graph: captured once, then replayed.

https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from spikewire.distributed import Ranks
from spikewire.nn.layers import Spiking

WARMUP_RUNS = 3  # in which kernels are compiled and cuDNN tries its algorithms

Learn = Callable[[Tensor, Tensor], Tensor]


def why_not(model: nn.Module, method: str, ranks: Ranks) -> str:
    """Return why a graph cannot be used, "" if it can.

    A replay calls no hooks, but repeats what those did that only add tensors in place, and are
    marked `capturable`. The exchange of gradients between ranks is not captured.
    """
    if not isinstance(model, Spiking):
        return "the network is not one of spikewire"
    hooks = [
        hook
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]
    if not all(getattr(hook, "capturable", False) for hook in hooks):
        return f"{method} has hooks on the forward pass"
    return "" if ranks.alone else "there are several ranks"


class Graph:
    """Replays `learn(images, labels)`: leaves gradients in the model, returns the loss.

    It is captured at the first call, and again where `model.time_steps` has changed. Parameters and
    buffers keep their addresses, and gradients are the same tensors at every call. Random numbers
    and BatchNorm's statistics advance as if `learn` had been called.
    """

    def __init__(self, learn: Learn, model: nn.Module) -> None:
        assert isinstance(model, Spiking)
        self.learn, self.model = learn, model
        self.time_steps = 0

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Replay for these images and labels, of the same shapes as at the first call."""
        if self.time_steps != self.model.time_steps:
            self._capture(images, labels)
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.loss.clone()

    def _capture(self, images: Tensor, labels: Tensor) -> None:
        torch.cuda.synchronize()  # the last graph must have ended before it is freed
        self.graph = torch.cuda.CUDAGraph()
        self.gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        self.images, self.labels = images.clone(), labels.clone()
        self._warm_up()
        with torch.cuda.graph(self.graph):
            self.loss = self.learn(self.images, self.labels)
        self.gradients = [(parameter, parameter.grad) for parameter in self.model.parameters()]
        self.time_steps = self.model.time_steps

    def _warm_up(self) -> None:
        """Run on a side stream, as a capture requires, and restore all state."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.random.fork_rng([self.images.device]):
            for _ in range(WARMUP_RUNS):
                self.learn(self.images, self.labels)
        torch.cuda.current_stream().wait_stream(stream)
        for buffer, before in buffers:
            buffer.copy_(before)
