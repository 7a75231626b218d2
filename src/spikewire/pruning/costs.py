"""What one weight costs: how often the network uses it per image and time step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from spikewire.pruning.layers import Layer

LEAST_ACTIVITY = 1e-3  # fraction of inputs that count as firing at least, so that nothing is free


class UseCounter:
    """Forward hooks that write each layer's cost, scaled to a mean of 1 per weight.

    A linear weight is used once, a convolution's once per position of its output: one forward pass
    is enough.

    Args:
        model: the model.
        layers: the pruned layers; the cost is written to ``layer.state["cost"]``.
        counting: if given, only inputs that are not 0 count as uses, and every forward pass in
            training mode for which it returns true is counted.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[Layer],
        counting: Callable[[], bool] | None = None,
    ) -> None:
        self.calls: dict[str, list[Tensor | float]] = {}  # uses per call; a loop makes many calls
        self.mean: dict[str, Tensor | float] = {}  # uses per call when last counted
        self.counting = counting
        owners = {id(p): m for m in model.modules() for p in m.parameters(recurse=False)}
        self.hooks = []
        for layer in layers:
            hook = _UseHook(self, layer.name, layer.weight.dim() - 2)
            owner = owners[id(layer.weight)]
            self.hooks.append(owner.register_forward_hook(hook, with_kwargs=True))

    def update_costs_(self, layers: Sequence[Layer]) -> None:
        """Write ``layer.state["cost"]`` from the passes counted since the last call."""
        if not self.hooks or not self.calls:
            return
        self.mean |= {name: sum(calls) / len(calls) for name, calls in self.calls.items()}
        self.calls = {}
        uses = [self.mean.get(layer.name, 1) for layer in layers]
        sizes = [layer.weight.numel() for layer in layers]
        mean = sum(u * n for u, n in zip(uses, sizes, strict=True)) / sum(sizes)
        for layer, count in zip(layers, uses, strict=True):
            layer.state["cost"].copy_(torch.as_tensor(count / mean))
        if self.counting is None:  # the numbers of positions do not change
            self.remove()

    def remove(self) -> None:
        """Remove the forward hooks."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []


class _UseHook:
    """The hook on one layer. A copy of the layer, deep or pickled, has one that counts nothing."""

    def __init__(self, counter: UseCounter, name: str, kernel: int) -> None:
        self.counter, self.name, self.kernel = counter, name, kernel

    def __getstate__(self) -> dict[str, Any]:
        return {"counter": None}

    @torch.no_grad()
    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inputs = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        if self.counter is None or inputs is None or not isinstance(output, Tensor):
            return
        image = inputs if isinstance(module, _ConvTransposeNd) else output
        uses = math.prod(image.shape[-self.kernel :]) if self.kernel > 0 else 1
        if self.counter.counting is not None:
            if not (module.training and self.counter.counting()):
                return
            active = torch.count_nonzero(inputs) / inputs.numel()
            uses = uses * active.clamp(min=LEAST_ACTIVITY)
        self.counter.calls.setdefault(self.name, []).append(uses)
