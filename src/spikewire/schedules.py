"""Schedules: pure functions of progress in [0, 1], so that a resume needs no scheduler state."""

import math
from collections.abc import Callable


def warm_up(progress: float, warmup: float) -> float:
    """Return ``min(1, progress / warmup)``."""
    return min(1.0, progress / warmup) if warmup > 0 else 1.0


def constant(progress: float, warmup: float = 0.0) -> float:
    """Return 1 after a linear warm-up over the fraction `warmup` of the run."""
    return warm_up(progress, warmup)


def cosine(progress: float, warmup: float = 0.0) -> float:
    """Return ``(1 + cos(π x)) / 2``, x from 0 to 1 over what the linear warm-up leaves."""
    if progress < warmup:
        return warm_up(progress, warmup)
    x = (progress - warmup) / (1 - warmup) if warmup < 1 else 0.0
    return (1 + math.cos(math.pi * x)) / 2


def stairs(progress: float, warmup: float = 0.0) -> float:
    """Return ``0.8^floor(14.4 progress)``: × 0.8 every 2,500 of 36,000 steps, after a warm-up.

    That is the schedule of the LSNN of Bellec et al. (NeurIPS 2018).
    """
    return warm_up(progress, warmup) * 0.8 ** math.floor(14.4 * progress)


def cubic(progress: float, start: float, end: float) -> float:
    """Return ``end + (start - end)(1 - progress)³``: fast at first, slow at the end.

    Args:
        progress: clipped to [0, 1].
        start: value at progress 0.
        end: value at progress 1.
    """
    return end + (start - end) * (1 - min(max(progress, 0.0), 1.0)) ** 3


RATES: dict[str, Callable[[float, float], float]] = {
    "constant": constant,
    "cosine": cosine,
    "stairs": stairs,
}
