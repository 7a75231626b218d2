"""Spiking Heidelberg Digits and Spiking Speech Commands: spoken words as events of 700 units.

Cramer et al., 2020, https://zenkelab.org/resources/spiking-heidelberg-datasets-shd. The files are
``SHD/shd_train.h5``, ``SHD/shd_test.h5``, ``SSC/ssc_train.h5``, ``SSC/ssc_test.h5``: HDF5 with
``spikes/times`` (seconds), ``spikes/units`` and ``labels``.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from spikewire.data.events import Recordings, format_errors
from spikewire.data.source import Source
from spikewire.data.streamed import Streamed
from spikewire.errors import SpikewireError, check

UNITS = 700
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GERMAN = ["null", "eins", "zwei", "drei", "vier", "fuenf", "sechs", "sieben", "acht", "neun"]
Word = tuple[Path, int]  # the file, and the number of the word in it


def read(word: Word) -> tuple[np.ndarray, np.ndarray]:
    """Return times in whole microseconds and units of the events of one word.

    Raises:
        SpikewireError: If the file cannot be read.
    """
    path, number = word
    with format_errors(path, "HDF5 with spikes"):
        spikes = _open(path)["spikes"]
        times = np.asarray(spikes["times"][number], np.float64)
        units = np.asarray(spikes["units"][number], np.int64)
        inside = bool(((units >= 0) & (units < UNITS)).all())
        check(inside, "unit of an event", int(units.max(initial=0)), f"0 to {UNITS - 1}")
        return np.rint(times * 1e6).astype(np.int64), units


@lru_cache(maxsize=4)
def _open(path: Path) -> Any:
    """Open an HDF5 file; it stays open, once per process."""
    try:
        import h5py
    except ImportError:
        raise SpikewireError("h5py: not installed; run `pip install 'spikewire[events]'`") from None
    return h5py.File(path, "r")


def _source(name: str, folder: str, classes: tuple[str, ...], summary: str) -> Source:
    def load(root: Path) -> Streamed:
        found = []
        for part in ("train", "test"):
            path = root / folder / f"{name}_{part}.h5"
            with format_errors(path, "HDF5 with labels"):
                labels = [int(label) for label in _open(path)["labels"]]
            words = [(path, number) for number in range(len(labels))]
            found.append(Recordings(words, labels, read=read, shape=(UNITS,)))
        return Streamed(name=name, train=found[0], test=found[1], classes=classes, temporal=True)

    address = "https://zenkelab.org/resources/spiking-heidelberg-datasets-shd"
    return Source(folder, summary, load, folder=folder, address=address)


SHD = _source(
    "shd", "SHD", (*DIGITS, *GERMAN), "Spiking Heidelberg Digits: 10,420 spoken digits as events"
)
SSC = _source(
    "ssc",
    "SSC",
    tuple(map(str, range(35))),
    "Spiking Speech Commands: 105,829 spoken words of 35 kinds as events",
)
