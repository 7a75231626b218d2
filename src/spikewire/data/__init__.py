"""Data sets by name, their download, and batches that live on the training device."""

from pathlib import Path

from spikewire.data import source as files
from spikewire.data.augment import AUGMENTATIONS
from spikewire.data.batches import Batches
from spikewire.data.cifar10 import CIFAR10
from spikewire.data.dataset import Dataset
from spikewire.data.digits import DIGITS
from spikewire.data.download import Progress, download
from spikewire.data.idx import FASHION_MNIST, MNIST
from spikewire.data.source import data_dir
from spikewire.errors import unknown

__all__ = ["AUGMENTATIONS", "DATASETS", "Batches", "Dataset", "data_dir", "get", "load"]

DATASETS: dict[str, files.Source] = {
    "digits": DIGITS,
    "mnist": MNIST,
    "fashion-mnist": FASHION_MNIST,
    "cifar10": CIFAR10,
}


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Read data set `name`; every file is checked against its published md5."""
    return _source_of(name).read(files.data_dir(data_dir))


def get(
    name: str,
    data_dir: str | Path | None = None,
    *,
    mirrors: tuple[str, ...] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download what is missing or damaged of data set `name`; return the data directory.

    `mirrors` are base addresses to use instead of the public ones. `progress` is called with
    file name, bytes so far and bytes in all.
    """
    root = files.data_dir(data_dir)
    download(name, _source_of(name), root, mirrors=mirrors, progress=progress)
    return root


def _source_of(name: str) -> files.Source:
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name]
