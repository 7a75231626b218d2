"""Pure functions of progress in [0, 1]; nothing to save, so a resume needs no scheduler state."""

import math
from collections.abc import Callable


def warm(progress: float, warmup: float) -> float:
    """Return ``min(1, progress / warmup)``."""
    return min(1.0, progress / warmup) if warmup > 0 else 1.0


def constant(progress: float, warmup: float = 0.0) -> float:
    """Return 1 after a linear warm-up over the share `warmup` of the run."""
    return warm(progress, warmup)


def cosine(progress: float, warmup: float = 0.0) -> float:
    """Return ``(1 + cos(π x)) / 2``, x from 0 to 1 over what the linear warm-up leaves."""
    if progress < warmup:
        return warm(progress, warmup)
    share = (progress - warmup) / (1 - warmup) if warmup < 1 else 0.0
    return (1 + math.cos(math.pi * share)) / 2


def cubic(progress: float, start: float, end: float) -> float:
    """Return ``end + (start - end)(1 - progress)³``: fast at first, gentle at the end."""
    return end + (start - end) * (1 - min(max(progress, 0.0), 1.0)) ** 3


RATES: dict[str, Callable[[float, float], float]] = {"constant": constant, "cosine": cosine}
