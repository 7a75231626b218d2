"""Recordings of events, and a torch `Dataset` that reads them as frames."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from spikewire.data.events.frames import to_frames
from spikewire.errors import SpikewireError, check


class Events(NamedTuple):
    """The events of one recording, in the order of the file.

    Args:
        t: Times in microseconds, int64.
        x: Columns, from 0.
        y: Rows, from 0.
        p: Polarities: 1 where the brightness rose, 0 where it fell.
    """

    t: np.ndarray
    x: np.ndarray
    y: np.ndarray
    p: np.ndarray

    def within(self, begin: int, end: int) -> "Events":
        """Return the events from `begin` up to, but without, `end`."""
        inside = (self.t >= begin) & (self.t < end)
        return Events(*(values[inside] for values in self))


class Recordings(TorchDataset):
    """Recordings with labels; an item is frames ``[time, *shape]`` and the label.

    Args:
        items: What `read` needs to read a recording, such as its path; one per recording.
        targets: Their labels.
        read: Returns the events of an item: `Events` of a camera, or (times, units) of a sensor
            whose positions have one dimension.
        shape: Shape of a frame: (2, height, width) for a camera, (units,) for other sensors.
        time_steps: Frames per recording.
        frames: How they are divided: "time" or "count".
    """

    def __init__(
        self,
        items: Sequence[Any],
        targets: Sequence[int],
        *,
        read: Callable[[Any], Any],
        shape: tuple[int, ...],
        time_steps: int = 10,
        frames: str = "time",
    ) -> None:
        self.items, self.targets = list(items), list(targets)
        self.read, self.shape = read, shape
        self.time_steps, self.frames = time_steps, frames

    def at(self, time_steps: int, frames: str = "time") -> "Recordings":
        """Return the recordings with another number or division of frames."""
        other = copy(self)
        other.time_steps, other.frames = time_steps, frames
        return other

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return the frames of one recording and its label."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        found = self.read(self.items[index])
        times, positions = _flatten(found, self.shape) if isinstance(found, Events) else found
        frames = to_frames(times, positions, self.shape, self.time_steps, self.frames)
        return frames, self.targets[index]


def _flatten(events: Events, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return times and positions of the events in frames ``[polarity, height, width]``."""
    _, height, width = shape
    if len(events.t):
        inside = events.x.min() >= 0 and events.x.max() < width
        inside = inside and events.y.min() >= 0 and events.y.max() < height
        found = f"x to {events.x.max()}, y to {events.y.max()}"
        check(bool(inside), "position of an event", found, f"within {width} x {height} pixels")
    x, y, p = (values.astype(np.int64) for values in (events.x, events.y, events.p))
    return events.t, (p * height + y) * width + x


@contextmanager
def format_errors(path: Path, format: str) -> Iterator[None]:
    """Turn what a damaged or unreadable file raises into one line."""
    try:
        yield
    except SpikewireError as error:
        raise SpikewireError(f"{path}: {error}") from None
    except OSError as error:
        raise SpikewireError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged file fails anywhere inside numpy or struct
        reason = " ".join(str(error).split())[:120]
        raise SpikewireError(f"{path}: is not {format}, or is damaged ({reason})") from None
