"""Meters of one forward pass: how often a network uses its weights, by every use of its layers."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from spikewire.nn.calls import Calls
from spikewire.nn.synapses import is_spiking
from spikewire.pruning.costs.meter import Meter
from spikewire.pruning.costs.passes import in_backward
from spikewire.pruning.hooks import ForwardHooks, ModelHook, Named
from spikewire.pruning.layers import Layer

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner


def run_empty_image(model: Any, shape: Sequence[int], like: Tensor) -> None:
    """Run the model in evaluation mode on one image of zeros; nothing in it changes."""
    leading = (1, 1) if getattr(model, "temporal", False) else (1,)  # time and batch
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        model(torch.zeros(*leading, *shape, dtype=like.dtype, device=like.device))
    finally:
        for module, mode in modes.items():
            module.training = mode


class OnePass(Meter):
    """A meter of one forward pass: every use of every layer counts, see `Calls`.

    A model with an `input_shape` is run once on an empty image, so that no hook is left when a CUDA
    graph is captured; of any other the last forward pass before the first step is watched.

    Args:
        pruner: the pruner.
    """

    def __init__(self, pruner: "Pruner") -> None:
        super().__init__(pruner)
        model, self.calls = self.pruner.model, Calls()
        self.found_before: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
        assert model is not None
        neurons = {name: module for name, module in model.named_modules() if is_spiking(module)}
        fired = ForwardHooks(neurons, [*map(Named, neurons)], self._fire)
        begin = model.register_forward_pre_hook(ModelHook(lambda args: self.calls.clear()))
        self.hooks.handles += [*fired.handles, begin]

    @property
    def known(self) -> bool:
        """Whether the costs are known: from the start, or from the first step on."""
        return not self.hooks.handles

    def resume(self) -> None:
        """Take the costs from the saved state: the first step of the run has found them.

        A state of before that step does not have them; those found since are kept.
        """
        if self.pruner.step:
            self.remove()
        elif self.found_before is not None:
            costs, memory = self.found_before
            for layer in self.layers:
                layer.state["cost"].copy_(costs[layer.name])
            self.pruner.memory |= {key: value.clone() for key, value in memory.items()}

    def remove(self) -> None:
        """Remove the hooks and remember what was found."""
        super().remove()
        if all("cost" in layer.state for layer in self.layers):
            costs = {layer.name: layer.state["cost"].clone() for layer in self.layers}
            memory = {key: value.clone() for key, value in self.pruner.memory.items()}
            self.found_before = costs, memory

    def _fire(self, layer: Named, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        if not in_backward():
            self.calls.fire(module)

    def see(self, layer: Layer, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Note what a weight is used for in this call."""
        if in_backward():
            return
        self.calls.add(module, self.cost_of_call(layer, module, inputs, output))

    def cost_of_call(
        self, layer: Layer, module: nn.Module, inputs: Tensor, output: Tensor
    ) -> Tensor:
        """Return how often one call of a layer uses a weight."""
        raise NotImplementedError

    def run(self) -> None:
        """Run the model on an empty image, where the size of its images is known."""
        if shape := getattr(self.pruner.model, "input_shape", None):
            run_empty_image(self.pruner.model, shape, self.layers[0].weight)

    def found(self) -> dict[str, Tensor]:
        """Return for each layer that was called the sum over its modules and their uses."""
        costs: dict[str, Tensor] = {}
        for layer, module in self.owners:
            for use in self.calls.uses(module):
                costs[layer.name] = costs[layer.name] + use[0] if layer.name in costs else use[0]
        return costs


class UseCounter(OnePass):
    """Writes how often each weight is used, after one forward pass.

    A linear weight is used once per call, a convolution's once per position of its output.

    Args:
        pruner: the pruner; the costs are in ``layer.state["cost"]``.
        relative: whether the costs are scaled to a mean of 1 per weight.
    """

    def __init__(self, pruner: "Pruner", relative: bool = True) -> None:
        super().__init__(pruner)
        self.relative = relative
        for layer in pruner.layers:
            layer.state["cost"] = layer.weight.new_ones(())
        self.run()
        self.update_costs_(pruner.layers)

    def cost_of_call(
        self, layer: Layer, module: nn.Module, inputs: Tensor, output: Tensor
    ) -> Tensor:
        """Return the number of positions."""
        image = inputs if isinstance(module, _ConvTransposeNd) else output
        kernel = layer.weight.dim() - 2
        return torch.tensor(math.prod(image.shape[-kernel:]) if kernel > 0 else 1)

    def update_costs_(self, layers: Sequence[Layer]) -> None:
        """Write the costs once a forward pass was seen."""
        if self.known or not self.calls:
            return
        found = self.found()
        uses = [int(found.get(layer.name, 1)) for layer in layers]
        sizes = [layer.weight.numel() for layer in layers]
        mean = sum(u * n for u, n in zip(uses, sizes, strict=True)) / sum(sizes)
        mean = mean if self.relative else 1
        for layer, count in zip(layers, uses, strict=True):
            layer.state["cost"].copy_(torch.as_tensor(count / mean))
        self.remove()  # the numbers of positions do not change
