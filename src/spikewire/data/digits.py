"""The embedded data set: 1,797 handwritten digits, 8 x 8 (see ``digits.txt`` for its authors)."""

import io
from pathlib import Path

import numpy as np
import torch

from spikewire.data.dataset import Dataset
from spikewire.data.source import File, Source, read_embedded

_FILE = File("digits.npz", 46624, "81a72b224ca16911c6b80cd91b862cd7")
_TRAIN = 1437


def parse(content: bytes) -> Dataset:
    """Return the data set; its file has the training images first."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        images = torch.from_numpy(arrays["images"])
        labels = torch.from_numpy(arrays["labels"]).long()
    return Dataset(
        name="digits",
        train_images=images[:_TRAIN],
        train_labels=labels[:_TRAIN],
        test_images=images[_TRAIN:],
        test_labels=labels[_TRAIN:],
        classes=tuple("0123456789"),
        mean=(0.0,),
        std=(1.0,),
    )


def _load(_: Path) -> Dataset:
    return parse(read_embedded("digits", _FILE))


DIGITS = Source("digits", "1,797 handwritten digits, 8 x 8, embedded in the package", _load)
