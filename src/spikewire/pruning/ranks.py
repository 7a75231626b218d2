"""Sums over the processes that train together, in any training loop."""

from torch import Tensor, distributed


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Return the sum over the processes that train together; it may be the tensor itself."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(tensor)
    return tensor
