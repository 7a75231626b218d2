"""Detection of writes to a pruned weight from outside spikewire, and of its replacement."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.nn.names import find_parameter
from spikewire.pruning.layers import Layer

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_view(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as integers of the same size, sharing its memory."""
    return tensor.view(_INTEGER_OF_SIZE[tensor.element_size()])


@dataclass
class WriteGuard:
    """What is remembered of a weight to detect a write: version, storage, dtype, device, checksum.

    The checksum is the only part that costs time, so it is not taken at every step.
    """

    version: int
    pointer: int
    dtype: torch.dtype
    device: torch.device
    checksum: Tensor | None

    @classmethod
    def of(cls, weight: Tensor, deep: bool = False) -> "WriteGuard":
        """Return the guard of `weight`; `deep` adds a checksum, which detects `.data` writes."""
        checksum = _checksum(weight) if deep else None
        return cls(weight._version, weight.data_ptr(), weight.dtype, weight.device, checksum)

    def only_moved(self, weight: Tensor) -> bool:
        """Return whether the weight is on another device, with the same values.

        Without a checksum it cannot be known, and is not assumed.
        """
        if weight.device == self.device or weight.dtype != self.dtype or self.checksum is None:
            return False
        return bool(_checksum(weight).to(self.device) == self.checksum)

    def violation(self, weight: Tensor) -> str | None:
        """Return what happened to the weight since, or None."""
        if weight.dtype != self.dtype:
            return f"dtype went from {self.dtype} to {weight.dtype}"
        if weight.device != self.device:
            return f"device went from {self.device} to {weight.device}"
        if weight.data_ptr() != self.pointer:
            return "its storage was replaced"
        if weight._version != self.version:
            return "its values were written"
        if self.checksum is not None and bool(_checksum(weight) != self.checksum):
            return "its values were written through .data"
        return None


def _checksum(weight: Tensor) -> Tensor:
    return bit_view(weight.detach()).sum(dtype=torch.int64)


class Guards:
    """The guards of all pruned layers of one pruner."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.of_layer: dict[str, WriteGuard] = {}

    def renew(self, layers: Sequence[Layer], deep: bool) -> None:
        """Remember the weights as they are now; `deep` also takes their checksums."""
        self.of_layer.update({x.name: WriteGuard.of(x.weight, deep) for x in layers})

    def follow(self, layers: Sequence[Layer]) -> None:
        """Move the state of layers whose weight was moved to another device, and nothing else."""
        for layer in layers:
            if self.of_layer[layer.name].only_moved(layer.weight):
                layer.to_device_of_weight()
                self.renew([layer], deep=True)

    def check(self, layers: Sequence[Layer]) -> None:
        """Raise if one of the weights was written since.

        Raises:
            SpikewireError: naming the layer and what happened to it.
        """
        for layer in layers:
            if reason := self.of_layer[layer.name].violation(layer.weight):
                raise SpikewireError(
                    f"{layer.name}: was modified outside spikewire ({reason}) while {self.method} "
                    "prunes it; attach() to the optimizer that steps the model, load and convert "
                    "weights before that, call pruner.load_state_dict() last, or write inside "
                    "`with pruner.editing():`"
                )


def require_same_parameters(model: nn.Module, layers: Sequence[Layer]) -> None:
    """Check that the model still uses the pruned weights: no module or parameter was replaced.

    Raises:
        SpikewireError: naming the first layer that was.
    """
    for layer in layers:
        found = find_parameter(model, layer.name)
        if found is not layer.weight:
            what = "is no longer a parameter of the model" if found is None else "was replaced"
            raise SpikewireError(
                f"{layer.name}: {what} after attach(), so the weight that is pruned is not the one "
                "the network uses; replace it before attach(), or detach() and attach() again"
            )
