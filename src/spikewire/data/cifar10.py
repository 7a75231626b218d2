"""CIFAR-10, binary version (Krizhevsky, 2009): records of a label and 3 x 32 x 32 pixels."""

from pathlib import Path

import torch
from torch import Tensor

from spikewire.data import npm
from spikewire.data.dataset import Dataset
from spikewire.data.source import Archive, File, Source, read_file

_SIZE = 10_000 * (1 + 3 * 32 * 32)
_FILES = tuple(
    File(f"cifar-10-batches-bin/{name}.bin", _SIZE, md5)
    for name, md5 in (
        ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
        ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
        ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
        ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
        ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
        ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
    )
)
_ARCHIVE = Archive(
    "cifar-10-binary.tar.gz",
    170052171,
    "c32a1d4ab5d03f1284b67883e8d87530",
    ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    _FILES,
)
_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"


def parse(content: bytearray) -> tuple[Tensor, Tensor]:
    """Return images and labels of one file."""
    records = torch.frombuffer(content, dtype=torch.uint8).view(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].contiguous().view(-1, 3, 32, 32), records[:, 0].long()


def _load(root: Path) -> Dataset:
    parts = [parse(read_file(file, root, "cifar10")) for file in _FILES]
    images, labels = zip(*parts, strict=True)
    return Dataset(
        name="cifar10",
        train_images=torch.cat(images[:-1]),
        train_labels=torch.cat(labels[:-1]),
        test_images=images[-1],
        test_labels=labels[-1],
        classes=tuple(_CLASSES.split()),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
    )


CIFAR10 = Source("CIFAR-10", "60,000 colour photographs, 32 x 32", _load, (_ARCHIVE,), npm.CIFAR10)
