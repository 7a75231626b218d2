"""Counts of present, pruned and regrown synapses, cheap enough for every step.

A mask whose tensor was not written since the last count is not counted again, and all counts of a
call are read from the device at once.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spikewire.pruning.masks import change_row


class MaskCounter:
    """The masks at the last call, and how many synapses each of them had.

    Args:
        masks: name -> bool tensor; copied.
    """

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        self.previous = {name: mask.clone() for name, mask in masks.items()}
        self.present = _present(self.previous)
        self.counted: dict[str, tuple[Tensor, int]] = {}  # mask and its version when counted

    def changes(self, masks: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        """Return the rows of `spikewire.pruning.masks.changes` since the last call.

        Args:
            masks: the masks now, not copied: a tensor with an unchanged version is not read.
        """
        moved = {name: mask for name, mask in masks.items() if not self._is_counted(name, mask)}
        kept = _present({name: self.previous[name] & mask for name, mask in moved.items()})
        now = {**self.present, **_present(moved)}
        rows = {
            name: change_row(mask.numel(), self.present[name], now[name], kept.get(name, now[name]))
            for name, mask in masks.items()
        }
        for name, mask in moved.items():
            self.previous[name].copy_(mask)
            self.counted[name] = (mask, mask._version)
        self.present = now
        return rows

    def _is_counted(self, name: str, mask: Tensor) -> bool:
        before, version = self.counted.get(name, (None, -1))
        return before is mask and version == mask._version


def _present(masks: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of synapses per mask; one transfer for all of them."""
    if not masks:
        return {}
    counts = torch.stack([mask.count_nonzero() for mask in masks.values()]).tolist()
    return dict(zip(masks, counts, strict=True))
