"""A seal on a weight: tells whether anyone but the optimizer wrote to it since it was set."""

from dataclasses import dataclass

import torch
from torch import Tensor

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class WriteGuard:
    """What is remembered of a weight; the checksum, the only part that costs time, now and then."""

    version: int
    pointer: int
    dtype: torch.dtype
    device: torch.device
    checksum: Tensor | None

    @classmethod
    def of(cls, weight: Tensor, deep: bool = False) -> "WriteGuard":
        """Guard `weight` as it is; `deep` also sums its bits, which detects `.data` writes."""
        total = _checksum(weight) if deep else None
        return cls(weight._version, weight.data_ptr(), weight.dtype, weight.device, total)

    def broken(self, weight: Tensor) -> str | None:
        """Return what happened to the weight, or None."""
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
    return weight.detach().view(_INTEGER[weight.element_size()]).sum(dtype=torch.int64)
