"""CIFAR10-DVS: 10,000 images of CIFAR-10 seen by an event camera, 128 x 128.

Li et al., 2017, https://doi.org/10.3389/fnins.2017.00309. The folders are
``cifar10-dvs/airplane`` to ``truck`` with 1,000 recordings each, ``.aedat`` (AEDAT 2.0, as
published) or ``.aedat4``. There is no official split; as is usual, the last tenth of each class is
for testing.
"""

from pathlib import Path

from spikewire.data.events import Events, Recordings, aedat2, aedat4
from spikewire.data.events.listing import split_classes
from spikewire.data.source import Source
from spikewire.data.streamed import Streamed

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def read(path: Path) -> Events:
    """Return the events of a recording in either format.

    Raises:
        SpikewireError: If it cannot be read.
    """
    return aedat4.read(path) if path.suffix == ".aedat4" else aedat2.read(path)


def _load(root: Path) -> Streamed:
    folders = [root / "cifar10-dvs" / name for name in CLASSES]
    parts = split_classes(folders, (".aedat", ".aedat4"), 10)
    train, test = (Recordings(*part, read=read, shape=(2, 128, 128)) for part in parts)
    return Streamed(
        name="cifar10-dvs", train=train, test=test, classes=CLASSES, temporal=True, workers=2
    )


CIFAR10_DVS = Source(
    "CIFAR10-DVS",
    "CIFAR10-DVS: 10,000 photographs as events, 128 x 128",
    _load,
    folder="cifar10-dvs",
    address="https://doi.org/10.6084/m9.figshare.4724671",
)
