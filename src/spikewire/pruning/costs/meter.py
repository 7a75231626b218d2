"""`Meter`: measures what every weight of a network costs, in one unit."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from spikewire.pruning.hooks import ForwardHooks, remove_copies
from spikewire.pruning.layers import Layer
from spikewire.pruning.owners import owning_modules, sharing_modules

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner


COMPILED = (
    "call attach() before the first call of a compiled model, and torch.compiler.reset() before "
    "attach() where another model of its class ran compiled"
)


class Meter:
    """Measures what weights cost, in ``layer.state["cost"]``; a pruner's `uses`.

    Args:
        pruner: the pruner.

    Attributes:
        owners: every layer with each of the modules that have its weight: tied ones have several.
        rounds: how often masks are selected, where costs depend on the selection.
        capturable: whether `see` only adds to tensors in place, which a CUDA graph repeats.
        counting: whether the forward passes of the next step are counted.
        pending: sums of the step that is not taken up yet, where forward passes are counted.
    """

    rounds = 1
    shared = True  # whether all modules that share a weight are looked at
    capturable = False
    counting = False
    pending: Any = None

    def __init__(self, pruner: "Pruner") -> None:
        assert pruner.model is not None
        self.pruner, self.layers = pruner, pruner.layers
        owners = owning_modules(pruner.model)
        self.modules = {layer.name: owners[id(layer.weight)] for layer in pruner.layers}
        self.owners = [  # all modules of a layer, one after the other
            (layer, module)
            for layer in pruner.layers
            for module in sharing_modules(pruner.model, layer.weight)
        ]
        self.hooks = ForwardHooks(self.modules, self.layers, self.see, self.capturable)
        for layer, module in self.owners if self.shared else ():
            if module is not self.modules[layer.name]:
                more = ForwardHooks({layer.name: module}, [layer], self.see, self.capturable)
                self.hooks.handles += more.handles

    def see(self, layer: Layer, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Look at one forward pass of a layer."""

    def end_step(self) -> None:
        """Take up what was seen in a step, before the method acts on it."""

    def resume(self) -> None:
        """Continue at the pruner's step."""

    def update_costs_(self, layers: Sequence[Layer]) -> None:
        """Write ``layer.state["cost"]``."""

    def take_masks(self, layers: Sequence[Layer], masks: Sequence[Tensor]) -> None:
        """Take up what was selected, where costs depend on it."""

    def groups(self, layers: Sequence[Layer]) -> list[dict[int, Tensor]]:
        """Return for each layer its weights by cost, where costs are whole numbers; else nothing.

        The indices are those of kernel positions; none stand for the whole layer.
        """
        return []

    def fraction(self, target: float, dense: Tensor) -> Any:
        """Return the target as a fraction of the dense network's cost."""
        raise NotImplementedError

    def actual(self, masks: Mapping[str, Tensor]) -> float | None:
        """Return what masks cost, in the unit of the target; None where it is not known."""
        return None

    def why_missed(self) -> str:
        """Return why no masks can meet the target, as the beginning of a line; else nothing."""
        return ""

    def remove(self) -> None:
        """Remove the forward hooks, also their copies on copied modules."""
        self.hooks.remove()
        for module in self.pruner.model.modules() if self.pruner.model is not None else ():
            remove_copies(module)
