"""Evenly spaced rows of a tensor that do not follow one of its dimensions."""

import math

from torch import Tensor


def evenly_spaced(rows: Tensor, most: int) -> Tensor:
    """Return fewer than twice `most` rows, evenly spaced; all where there are no more.

    The spacing has no factor in common with the number of rows. Where rows are several dimensions
    in one, such as batch and time, it is then no multiple of any of them, which would select the
    same time steps of all images.

    Args:
        rows: any tensor; rows are its first dimension.
        most: how many rows to return, about.
    """
    if len(rows) <= most:
        return rows
    spacing = len(rows) // most | 1
    while math.gcd(spacing, len(rows)) > 1:
        spacing += 2
    return rows[::spacing]
