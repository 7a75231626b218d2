"""N-MNIST: handwritten digits seen by a moving event camera, 34 x 34.

Orchard et al., 2015, https://www.garrickorchard.com/datasets/n-mnist. The folders are
``nmnist/Train/0`` to ``9`` and ``nmnist/Test/0`` to ``9``. An event has 40 bits: x (8), y (8),
polarity (1) and time in microseconds (23).
"""

from pathlib import Path

import numpy as np

from spikewire.data.events import Events, format_errors
from spikewire.data.events.listing import class_folders
from spikewire.data.source import Source
from spikewire.errors import check

SHAPE = (2, 34, 34)


def read(path: Path) -> Events:
    """Return the events of a ``.bin`` file.

    Raises:
        SpikewireError: If it cannot be read or has an incomplete event.
    """
    with format_errors(path, "a recording of N-MNIST"):
        content = np.fromfile(path, np.uint8)
        check(len(content) % 5 == 0, "size", len(content), "a multiple of 5 bytes")
        x, y, high, middle, low = content.reshape(-1, 5).astype(np.int64).T
        return Events((high & 0x7F) << 16 | middle << 8 | low, x, y, high >> 7)


NMNIST = Source(
    "N-MNIST",
    "N-MNIST: 70,000 digits as events, 34 x 34",
    class_folders("nmnist", ("Train", "Test"), ".bin", read, SHAPE),
    folder="nmnist",
    address="https://www.garrickorchard.com/datasets/n-mnist",
)
