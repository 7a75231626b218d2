"""Sorted positions as bytes: gaps of 8 bits with an escape, or one bit a position.

A byte below 255 says how many positions to leave out before the next one that is there; 255 leaves
out 255 and marks none. At 5 % about 1.0 byte a position; the bit mask wins above one in eight.
"""

import numpy as np
from numpy.typing import NDArray

from spikewire.errors import check

ESCAPE = 255


def to_gaps(index: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the gaps between sorted positions."""
    skipped = np.diff(index, prepend=-1) - 1
    escapes = skipped // ESCAPE
    gaps = np.full(len(index) + int(escapes.sum()), ESCAPE, np.uint8)
    gaps[np.cumsum(escapes + 1) - 1] = skipped % ESCAPE
    return gaps


def from_gaps(gaps: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the positions; the caller checks that they lie inside."""
    there = gaps != ESCAPE
    return (np.cumsum(gaps + there.astype(np.int64)) - 1)[there]


def to_bits(index: NDArray[np.int64], total: int) -> NDArray[np.uint8]:
    """Return one bit a position."""
    there = np.zeros(total, bool)
    there[index] = True
    return np.packbits(there)


def from_bits(bits: NDArray[np.uint8], total: int) -> NDArray[np.int64]:
    """Return the positions of the bits that are set."""
    check(len(bits) == (total + 7) // 8, "bit mask", f"{len(bits)} bytes", f"{(total + 7) // 8}")
    return np.flatnonzero(np.unpackbits(bits)).astype(np.int64)
