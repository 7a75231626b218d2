"""The meter of bytes: what a packed file of 16-bit values takes.

::

    size = header + sum over layers of (2 k + min(k + skips, n / 8)) + 4 biases

for a layer of n weights of which k exist, in every module that has it: a byte per gap and one more
for every 255 positions skipped, or a bit per position.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AvgPoolNd, _MaxPoolNd

from spikewire.errors import check
from spikewire.nn.names import named_modules, named_parameters, unwrap
from spikewire.nn.sequence import Residual
from spikewire.nn.synapses import NORMS, SYNAPTIC, is_spiking
from spikewire.pruning.costs.meter import Meter
from spikewire.pruning.layers import Layer
from spikewire.pruning.owners import sharing_modules
from spikewire.pruning.selection import target_count

if TYPE_CHECKING:
    from spikewire.pruning.pruner import Pruner

GAP = 255  # positions that one byte of a packed file can skip
FILE, CLASS = 420, 8  # bytes of a header with what `spikewire export` notes; per class
STAGE, PAIR, NEURONS, POOL = 29, 18, 65, 39  # of the description: per layer, neurons, pooling
SHORTCUT = 60  # per block with a shortcut: what the layers after it read
ARRAY = 56  # per array, without the three numbers that are its size and place
POOLS = (_MaxPoolNd, _AvgPoolNd, _AdaptiveAvgPoolNd)


class Bytes(Meter):
    """The bytes of each weight in a packed file of 16-bit values, positions included.

    One weight more or less is 3 bytes or 2; all else is subtracted from the target first, with the
    header, the biases and the layers that are not pruned.

    Args:
        pruner: the pruner; ``layer.state`` gains `cost` and, for all else of a layer, `fixed`.

    Raises:
        SpikewireError: if the target is below what all else, or a layer's own connectivity, takes.
    """

    rounds = 3  # of selection: what positions take depends on the selection itself

    def __init__(self, pruner: "Pruner") -> None:
        super().__init__(pruner)
        self.remove()
        assert pruner.model is not None
        target: Any = getattr(pruner.method, "bytes", None)
        pruned = [layer.weight for layer in pruner.layers]
        self.overhead = fixed_bytes(pruner.model, pruned, len(f"{target:.0f}") if target else 6)
        self.copies = Counter(layer.name for layer, _ in self.owners)  # one per module in the file
        taken = self.overhead + self._own_bytes()
        others = "not pruned take" if taken == self.overhead else "not pruned or named here take"
        check(
            target is None or target > taken,
            "bytes",
            target,
            f"above {taken:,}, which header, biases and layers that are {others}",
        )
        for layer in pruner.layers:
            shape, each = [1] * layer.weight.dim(), 2.0 * self.copies[layer.name]
            layer.state["cost"] = layer.weight.new_full(shape, each, dtype=torch.float64)
            layer.state["fixed"] = layer.weight.new_zeros((), dtype=torch.float64)

    def _own_bytes(self) -> int:
        """Return what layers with their own connectivity take at least."""
        size = 0
        for layer in (x for x in self.layers if x.connectivity is not None):
            count = target_count(layer.connectivity or 0.0, layer.weight.numel())
            size += self.copies[layer.name] * (2 * count + min(count, bit_bytes(layer.weight)))
        return size

    def take_masks(self, layers: Sequence[Layer], masks: Sequence[Tensor]) -> None:
        """Write the cost of one weight more, and of all else, under these masks."""
        for layer, mask in zip(layers, masks, strict=True):
            values, positions = 2 * mask.sum(), position_bytes(mask)
            cost = torch.where(positions < bit_bytes(mask), 3.0, 2.0)
            copies = self.copies[layer.name]
            layer.state["cost"].copy_((copies * cost).view_as(layer.state["cost"]))
            layer.state["fixed"].copy_(copies * (values + positions - cost * mask.sum()))

    def fraction(self, target: float, dense: Tensor) -> Tensor:
        """Return what is left of the target for weights, as a fraction of all weights' cost."""
        fixed = torch.stack([layer.state["fixed"] for layer in self.layers]).sum()
        return ((target - self.overhead - fixed) / dense).clamp(0.0, 1.0)

    def actual(self, masks: Mapping[str, Tensor]) -> float:
        """Return the size of the file, about."""
        assert self.pruner.model is not None
        return file_bytes(self.pruner.model, masks)


def file_bytes(model: nn.Module, masks: Mapping[str, Tensor]) -> int:
    """Return the size of a packed file of 16-bit values, header included, about.

    Args:
        model: the network.
        masks: which weights exist, by the names of the weights; all others are dense.
    """
    weights = named_parameters(model, remove_duplicate=False)
    size = sum(
        len(sharing_modules(model, weights[name])) * int(2 * mask.sum() + position_bytes(mask))
        for name, mask in masks.items()
    )
    return size + fixed_bytes(model, [weights[name] for name in masks], len(str(size)))


def bit_bytes(mask: Tensor) -> int:
    """Return the size of a bit per position."""
    return (mask.numel() + 7) // 8


def position_bytes(mask: Tensor) -> Tensor:
    """Return the size of a layer's positions in a packed file, as a 0-d tensor."""
    present = mask.flatten()
    place = torch.arange(present.numel(), dtype=torch.int32, device=mask.device)
    last = torch.where(present, place, -1).cummax(0).values
    before = torch.cat([last.new_full((1,), -1), last[:-1]])
    skips = torch.where(present, (place - before - 1) // GAP, 0).sum()
    return (present.sum() + skips).clamp(max=bit_bytes(mask))


def fixed_bytes(model: nn.Module, pruned: Sequence[Tensor], digits: int) -> int:
    """Return the size of all in a packed file but the pruned weights, about.

    Args:
        model: the network.
        pruned: the weights that are pruned; all others are dense.
        digits: those of the size of the file: the header names the place of every array.
    """
    array = ARRAY + 3 * digits - 2  # sizes are smaller than places
    size = FILE + CLASS * (getattr(unwrap(model), "classes", None) or 10)
    unbiased = 0  # outputs of the layer before, where it has no bias yet
    module: Any
    for name, module in named_modules(model):
        biases = 0
        if isinstance(module, SYNAPTIC):
            weight: Any = module.weight
            size += STAGE + PAIR * unusual_pairs(module) + 2 * array
            size += len(name) + len(",".join(map(str, weight.shape)))
            dense = all(weight is not other for other in pruned)
            size += (2 * weight.numel() + bit_bytes(weight)) * dense
            biases = 0 if module.bias is None else module.bias.numel()
            unbiased = 0 if biases else _outputs(module)
        elif isinstance(module, NORMS):  # BatchNorm is folded into the layer before
            biases, unbiased = unbiased, 0
        size += (array + 4 * biases) * bool(biases)
        size += NEURONS * is_spiking(module) + POOL * isinstance(module, POOLS)
        size += SHORTCUT * isinstance(module, Residual)
    return size


def unusual_pairs(module: Any) -> int:
    """Return how many of padding, stride and dilation the description of a layer names."""
    usual = {"padding": 0, "stride": 1, "dilation": 1}
    return sum(any(x != usual[key] for x in getattr(module, key, ())) for key in usual)


def _outputs(module: Any) -> int:
    return module.out_features if isinstance(module, nn.Linear) else module.out_channels
