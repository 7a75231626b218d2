"""MNIST and Fashion-MNIST: the IDX format of LeCun et al. (1998).

A file is ``00 00 type rank``, `rank` big-endian 32-bit sizes, then the values row by row.
"""

import struct
from pathlib import Path

import torch
from torch import Tensor

from spikewire.data import npm
from spikewire.data.dataset import Dataset
from spikewire.data.source import Archive, File, Package, Source, read_file

_FILES = (
    ("train-images-idx3-ubyte", 16 + 60_000 * 784),
    ("train-labels-idx1-ubyte", 8 + 60_000),
    ("t10k-images-idx3-ubyte", 16 + 10_000 * 784),
    ("t10k-labels-idx1-ubyte", 8 + 10_000),
)
_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
)
# Per file: its md5, then size and md5 of the .gz file that is published.
_MNIST_SUMS = (
    ("6bbc9ace898e44ae57da46a324031adb", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    ("a25bea736e30d166cdddb491f175f624", 28881, "d53e105ee54ea40749a09fcbcd1e9432"),
    ("2646ac647ad5339dbf082846283269ea", 1648877, "9fb629c4189551a2d022fa330f9573f3"),
    ("27ae3e4e09519cfbb04c329615203637", 4542, "ec29112dd5afa0611ce80d1b7f02629c"),
)
_FASHION_SUMS = (
    ("f4a8712d7a061bf5bd6d2ca38dc4d50a", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    ("9018921c3c673c538a1fc5bad174d6f9", 29515, "25c81989df183df01b3e8a0aad5dffbe"),
    ("8181f5470baa50b63fa0f6fddb340f0a", 4422102, "bef4ecab320f06d8554ea6380940ec79"),
    ("15d484375f8d13e6eb1aabb0c3f46965", 5148, "bb300cfdad3c16e7a12a480ee83cd310"),
)
_CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"


def parse(content: bytearray) -> Tensor:
    """Return the uint8 tensor in an IDX file."""
    rank = content[3]
    shape = struct.unpack_from(f">{rank}I", content, 4)
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * rank).view(shape)


def _source(
    name: str,
    title: str,
    summary: str,
    sums: tuple[tuple[str, int, str], ...],
    mirrors: tuple[str, ...],
    classes: tuple[str, ...],
    package: Package | None = None,
) -> Source:
    files = [
        File(f"{name}/{file}", size, md5)
        for (file, size), (md5, _, _) in zip(_FILES, sums, strict=True)
    ]
    archives = tuple(
        Archive(f"{Path(file.path).name}.gz", packed, md5, mirrors, (file,))
        for file, (_, packed, md5) in zip(files, sums, strict=True)
    )

    def load(root: Path) -> Dataset:
        parts = (parse(read_file(file, root, name)) for file in files)
        train_images, train_labels, test_images, test_labels = parts
        return Dataset(
            name=name,
            train_images=train_images.unsqueeze(1),
            train_labels=train_labels.long(),
            test_images=test_images.unsqueeze(1),
            test_labels=test_labels.long(),
            classes=classes,
            mean=(0.0,),
            std=(1.0,),
        )

    return Source(title, summary, load, archives, package)


MNIST = _source(
    "mnist",
    "MNIST",
    "70,000 handwritten digits, 28 x 28",
    _MNIST_SUMS,
    _MNIST_MIRRORS,
    tuple("0123456789"),
    npm.MNIST,
)
FASHION_MNIST = _source(
    "fashion-mnist",
    "Fashion-MNIST",
    "70,000 pieces of clothing, 28 x 28",
    _FASHION_SUMS,
    _FASHION_MIRRORS,
    tuple(_CLOTHES.split(",")),
)
