"""ST-MNIST: handwritten digits on a tactile sensor of 10 x 10 taxels.

See et al., 2020, https://arxiv.org/abs/2005.04319. The folders are ``st-mnist/0`` to ``9`` with
files of MATLAB 5: ``spiketrain`` has one row per taxel, with 1 or -1 where an event is, and a last
row of times in seconds. There is no official split; the last fifth of each class is for testing.
"""

from pathlib import Path

import numpy as np

from spikewire.data.events import Events, Recordings, format_errors
from spikewire.data.events.listing import split_classes
from spikewire.data.source import Source
from spikewire.data.streamed import Streamed
from spikewire.errors import SpikewireError, check


def read(path: Path) -> Events:
    """Return the events of a ``.mat`` file.

    Raises:
        SpikewireError: If it cannot be read.
    """
    try:
        from scipy.io import loadmat
    except ImportError:
        raise SpikewireError(
            "scipy: not installed; run `pip install 'spikewire[events]'`"
        ) from None
    with format_errors(path, "a recording of ST-MNIST"):
        table = np.asarray(loadmat(path, variable_names=["spiketrain"])["spiketrain"])
        check(table.ndim == 2 and len(table) == 101, "spiketrain", table.shape, "101 rows")
        column, taxel = np.nonzero(table[:100].T)  # in the order of time
        times = np.rint(table[100, column] * 1e6).astype(np.int64)
        return Events(times, taxel % 10, taxel // 10, (table[taxel, column] > 0).astype(np.int64))


def _load(root: Path) -> Streamed:
    folders = [root / "st-mnist" / str(label) for label in range(10)]
    parts = split_classes(folders, ".mat", 5)
    train, test = (Recordings(*part, read=read, shape=(2, 10, 10)) for part in parts)
    classes = tuple("0123456789")
    return Streamed(
        name="st-mnist", train=train, test=test, classes=classes, temporal=True, workers=2
    )


ST_MNIST = Source(
    "ST-MNIST",
    "ST-MNIST: 6,953 digits as touches, 10 x 10",
    _load,
    folder="st-mnist",
    address="https://scholarbank.nus.edu.sg/handle/10635/168106",
)
