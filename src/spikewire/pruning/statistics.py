"""Counts of present, pruned and regrown synapses, cheap enough for every step.

A mask whose tensor was not written since the last count is not counted again, and all counts of a
call are read from the device at once.
"""

from collections.abc import Mapping
from typing import Any
from weakref import ReferenceType, ref

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
        # mask and its version when counted; weak, since a method may compute new masks
        self.counted: dict[str, tuple[ReferenceType[Tensor], int]] = {}

    def changes(self, masks: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        """Return one `change_row` per layer, since the last call.

        Args:
            masks: the masks now, not copied: a tensor with an unchanged version is not read.
        """
        for name, mask in masks.items():  # the model may have moved to another device
            self.previous[name] = self.previous[name].to(mask.device)
        written = {name: mask for name, mask in masks.items() if not self._is_counted(name, mask)}
        kept = _present({name: self.previous[name] & mask for name, mask in written.items()})
        now = {**self.present, **_present(written)}
        rows = {
            name: change_row(mask.numel(), self.present[name], now[name], kept.get(name, now[name]))
            for name, mask in masks.items()
        }
        for name, mask in written.items():
            self.previous[name].copy_(mask)
            self.counted[name] = (ref(mask), mask._version)
        self.present = now
        return rows

    def _is_counted(self, name: str, mask: Tensor) -> bool:
        before, version = self.counted.get(name, (None, -1))
        return before is not None and before() is mask and version == mask._version


def _present(masks: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of synapses per mask; one transfer for all of them."""
    if not masks:
        return {}
    counts = [mask.count_nonzero() for mask in masks.values()]
    device = counts[0].device  # of the first, where layers are on several
    found = torch.stack([count.to(device) for count in counts]).tolist()
    return dict(zip(masks, found, strict=True))
