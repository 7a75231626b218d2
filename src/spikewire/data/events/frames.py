"""Events divided into frames: each frame counts the events per channel and pixel.

A recording of n events at times t[0] <= ... <= t[n-1] becomes `count` frames. Event i is in frame

    by time:    floor(count (t[i] - t[0]) / (t[n-1] - t[0] + 1))
    by count:   floor(count i / n)
"""

from math import prod

import numpy as np
import torch
from torch import Tensor

from spikewire.errors import check_word

FRAMES = ("time", "count")


def to_frames(
    times: np.ndarray, positions: np.ndarray, shape: tuple[int, ...], count: int, by: str = "time"
) -> Tensor:
    """Return frames of a recording.

    Args:
        times: Time of each event, in whole microseconds.
        positions: Index of each event in a frame, flattened in the order of `shape`.
        shape: Shape of a frame, such as (channels, height, width).
        count: How many frames to make.
        by: "time", so that frames have the same duration, or "count", so that they have the same
            number of events.

    Returns:
        Counts of events, int16 ``[count, *shape]``.

    Raises:
        SpikewireError: If `by` is unknown.

    Example:
        >>> to_frames(np.array([0, 5, 9]), np.array([1, 0, 1]), (2,), 2)
        tensor([[0, 1],
                [1, 1]], dtype=torch.int16)
    """
    check_word("frames", by, FRAMES)
    size, events = prod(shape), len(times)
    if by == "count" or not events:
        frame = np.arange(events) * count // max(events, 1)
    else:
        order = np.argsort(times, kind="stable")
        times, positions = times[order].astype(np.int64), positions[order]
        frame = (times - times[0]) * count // (times[-1] - times[0] + 1)
    cells = np.bincount(frame * size + positions, minlength=count * size)
    limit = np.iinfo(np.int16).max
    return torch.from_numpy(np.minimum(cells, limit).astype(np.int16)).view(count, *shape)
