"""Bytes of the parameters of a network, dense and with masked weights packed."""

import math
from collections.abc import Mapping

from torch import Tensor, nn


def packed_bytes(mask: Tensor, value_bytes: int = 2) -> int:
    """Return the size of a packed layer: present values and their positions.

    The smallest of three layouts: 8-bit gaps between positions (255 = no value here, the gap
    continues), a bit mask, or every weight.

    Args:
        mask: Which weights exist, of any shape.
        value_bytes: Bytes per value.

    Returns:
        The size in bytes.

    Example:
        >>> packed_bytes(torch.tensor([True, False, False, True]))
        5
    """
    positions = mask.flatten().nonzero().flatten()
    gaps = positions.diff(prepend=positions.new_full((1,), -1)) - 1
    values = len(positions) * value_bytes
    by_gaps = len(positions) + int((gaps // 255).sum()) + values
    return min(by_gaps, math.ceil(mask.numel() / 8) + values, mask.numel() * value_bytes)


def parameter_bytes(model: nn.Module, masks: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the size of all parameters as they are, and with masked weights packed at 16 bits."""
    sizes = {name: p.numel() * p.element_size() for name, p in model.named_parameters()}
    packed = sum(packed_bytes(masks[n]) if n in masks else size for n, size in sizes.items())
    return sum(sizes.values()), packed
