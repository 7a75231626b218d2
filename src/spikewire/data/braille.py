"""The embedded event data set: seven Braille letters (see ``braille.txt`` for its authors)."""

import io
from pathlib import Path

import numpy as np
import torch

from spikewire.data.dataset import Dataset
from spikewire.data.source import File, Source, read_embedded

_FILE = File("braille.npz", 419239, "d1b81850c9d97e3a92f26cdcd3dcb4e7")


def parse(content: bytes) -> Dataset:
    """Return the data set; the published validation part is part of the training samples."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        parts = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    return Dataset(
        name="braille",
        train_images=torch.cat([parts["train_x"], parts["val_x"]]),
        train_labels=torch.cat([parts["train_y"], parts["val_y"]]).long(),
        test_images=parts["test_x"],
        test_labels=parts["test_y"].long(),
        classes=("Space", "A", "E", "I", "O", "U", "Y"),
        mean=(),
        std=(),
        temporal=True,
    )


def _load(_: Path) -> Dataset:
    return parse(read_embedded("braille", _FILE))


BRAILLE = Source(
    "Braille", "1,400 Braille letters as events of 12 taxels, embedded in the package", _load
)
