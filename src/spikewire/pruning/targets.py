"""Target connectivities: of layers with one of their own, and of the rest of the budget.

The method's connectivity c is of all pruned weights together. Layers with their own connectivity
c_i take ``sum c_i n_i`` of the budget ``c n``; the others, m weights together, have the target
``(c n - sum c_i n_i) / m``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spikewire.errors import SpikewireError
from spikewire.pruning.layers import Layer
from spikewire.pruning.selection import target_count

if TYPE_CHECKING:
    from spikewire.pruning.method import Method


def shared_target(method: "Method", layers: Sequence[Layer]) -> float | None:
    """Return the target connectivity of the layers that have none of their own.

    Args:
        method: the method; its target is the connectivity of all layers together, None where it has
            none or gives it in another unit.
        layers: the pruned layers.

    Raises:
        SpikewireError: if the method takes no connectivity, or the rest of the budget does not
            fit in the other layers.
    """
    own = [layer for layer in layers if layer.connectivity is not None]
    target = method.target
    if own and not method.unit:
        raise SpikewireError(
            f"targets: {own[0].name} has a connectivity, but {method.name} takes none here"
        )
    if len(own) == len(layers) and method.unit != "connectivity":
        raise SpikewireError(
            "targets: all layers have a connectivity of their own, which leaves none to the target "
            f"in {method.unit}; give {method.name} a connectivity, or name fewer layers in targets"
        )
    if not own or target is None:
        return target
    free = [layer.weight.numel() for layer in layers if layer.connectivity is None]
    total = sum(layer.weight.numel() for layer in layers)
    taken = _count(own)
    rest = target_count(target, total) - taken
    if free and not len(free) <= rest <= sum(free):
        raise SpikewireError(
            f"targets: connectivity {target:g} is {target_count(target, total):,} of {total:,} "
            f"weights; the layers named here keep {taken:,}, and the other {len(free)} cannot keep "
            f"{rest:,} of {sum(free):,}; change connectivity or targets"
        )
    return rest / sum(free) if free else target


def total_target(target: float | None, layers: Sequence[Layer]) -> float | None:
    """Return the target of all layers together: the method's, unless every layer has its own."""
    if target is None or any(layer.connectivity is None for layer in layers):
        return target
    return _count(layers) / sum(layer.weight.numel() for layer in layers)


def _count(layers: Sequence[Layer]) -> int:
    return sum(target_count(x.connectivity or 0.0, x.weight.numel()) for x in layers)
