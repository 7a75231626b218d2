"""What a step computes on the GPU as one CUDA graph: told once, then only asked for again.

https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from spikewire.distributed import Ranks
from spikewire.nn.models import Spiking
from spikewire.pruning.method import Method

REHEARSALS = 3  # in which kernels are compiled and cuDNN tries its algorithms

Learn = Callable[[Tensor, Tensor], Tensor]


def why_not(model: nn.Module, method: Method, ranks: Ranks) -> str:
    """Return why there can be no graph, "" if there can.

    A replay calls no hooks, and how gradients travel between ranks is not captured.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return f"{method.name} watches the forward pass"
    return "" if ranks.alone else "there are several ranks"


class Graph:
    """Does what `learn(images, labels)` does: leaves gradients in the model, returns the loss.

    It is captured at the first call, and anew where `model.time_steps` has changed. Parameters and
    buffers keep their places in memory, and gradients are the same tensors at every call. Random
    numbers and BatchNorm's statistics go on as if `learn` had been called.
    """

    def __init__(self, learn: Learn, model: Spiking) -> None:
        self.learn, self.model = learn, model
        self.time_steps = 0

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Replay for these images and labels, as many as at the first call."""
        if self.time_steps != self.model.time_steps:
            self._capture(images, labels)
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        return self.loss.clone()

    def _capture(self, images: Tensor, labels: Tensor) -> None:
        torch.cuda.synchronize()  # the last graph must have ended before it goes
        self.graph = torch.cuda.CUDAGraph()
        self.gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        self.images, self.labels = images.clone(), labels.clone()
        self._rehearse()
        with torch.cuda.graph(self.graph):
            self.loss = self.learn(self.images, self.labels)
        self.gradients = [(parameter, parameter.grad) for parameter in self.model.parameters()]
        self.time_steps = self.model.time_steps

    def _rehearse(self) -> None:
        """Run for real, on a stream of its own as a capture needs it, and leave no trace."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.random.fork_rng([self.images.device]):
            for _ in range(REHEARSALS):
                self.learn(self.images, self.labels)
        torch.cuda.current_stream().wait_stream(stream)
        for buffer, before in buffers:
            buffer.copy_(before)
