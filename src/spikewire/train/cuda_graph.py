"""Forward and backward of a step as one CUDA graph: captured once, then replayed.

https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spikewire.distributed import Ranks
from spikewire.nn.layers import Spiking
from spikewire.pruning.costs.meter import Meter

WARMUP_RUNS = 3  # in which kernels are compiled and cuDNN tries its algorithms

Learn = Callable[..., Tensor]


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
    """Replays `learn(images, labels, ...)`: leaves gradients in the model, returns the loss.

    It is captured at the first call, and again where `time_steps` of the model, if it has any, has
    changed. Where a meter counts the spikes of some steps only, those are one graph and the others
    another; they share their memory, since only one of them is in use at a time. Parameters and
    buffers keep their addresses, and gradients are the same tensors at every replay of a graph.
    Random numbers and BatchNorm's statistics advance as if `learn` had been called.

    Args:
        learn: what is captured; it may also leave no gradients and return any tensor.
        model: the network.
        meter: what looks at its forward passes, if anything does.
    """

    def __init__(self, learn: Learn, model: nn.Module, meter: Meter | None = None) -> None:
        self.learn, self.model, self.meter = learn, model, meter
        self.time_steps = self._model_steps  # of the model at the last capture
        self.captures: dict[bool, _Capture] = {}  # by whether spikes are counted

    def __call__(self, *batch: Tensor) -> Tensor:
        """Replay for images, labels, ...; a batch of another shape than the first is run."""
        if self.captures and batch[0].shape != self.batch[0].shape:
            return self.learn(*batch)
        if self.time_steps != self._model_steps or self._counting not in self.captures:
            self._capture(*batch)
        capture = self.captures[self._counting]
        for kept, given in zip(self.batch, batch, strict=True):
            kept.copy_(given)
        capture.graph.replay()
        for parameter, gradient in capture.gradients:
            parameter.grad = gradient
        return capture.loss.clone()

    @property
    def _model_steps(self) -> int | None:
        return getattr(self.model, "time_steps", None)

    @property
    def _counting(self) -> bool:
        return self.meter is not None and self.meter.counting

    def _capture(self, *batch: Tensor) -> None:
        if self.time_steps != self._model_steps:
            torch.cuda.synchronize()  # the last graphs must have ended before they are freed
            self.captures = {}
        if not self.captures:
            self.batch = tuple(tensor.clone() for tensor in batch)
        self._warm_up()
        graph = torch.cuda.CUDAGraph()
        pool = next((other.graph.pool() for other in self.captures.values()), None)
        with torch.cuda.graph(graph, pool=pool):
            loss = self.learn(*self.batch)
        gradients = [(parameter, parameter.grad) for parameter in self.model.parameters()]
        self.captures[self._counting] = _Capture(graph, loss, gradients)
        self.time_steps = self._model_steps

    def _warm_up(self) -> None:
        """Run on a side stream, as a capture requires, and restore all state."""
        kept = [*self.model.buffers()]
        if self.meter is not None and self.meter.pending is not None:
            kept.append(self.meter.pending)
        before = [tensor.clone() for tensor in kept]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.random.fork_rng([self.batch[0].device]):
            for _ in range(WARMUP_RUNS):
                self.learn(*self.batch)
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, value in zip(kept, before, strict=True):
            tensor.copy_(value)


@dataclass(frozen=True)
class _Capture:
    """A captured graph and the tensors it writes."""

    graph: torch.cuda.CUDAGraph
    loss: Tensor
    gradients: list[tuple[nn.Parameter, Tensor | None]]
