"""CIFAR-100, binary version (Krizhevsky, 2009): records of two labels and 3 x 32 x 32 pixels.

A record is a coarse label (20 groups of classes), a fine label (100 classes) and the pixels. Copies
of the data set that keep the records in another order are accepted.
"""

from pathlib import Path

import torch
from torch import Tensor

from spikewire.data.dataset import Dataset
from spikewire.data.source import Archive, RecordFile, Source, read_file

RECORD = 2 + 3 * 32 * 32
_FILES = (
    RecordFile(
        "cifar-100-binary/train.bin", 50_000 * RECORD, "772c6a3ef8a34fc2086014baf07c0367", RECORD
    ),
    RecordFile(
        "cifar-100-binary/test.bin", 10_000 * RECORD, "0cae01c7c17335467fe8b99276934bdc", RECORD
    ),
)
_ARCHIVE = Archive(
    "cifar-100-binary.tar.gz",
    168513733,
    "03b5dce01913d631647c71ecec9e9cb8",
    ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
    _FILES,
)
_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


def parse(content: bytearray) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, fine labels and coarse labels of one file."""
    records = torch.frombuffer(content, dtype=torch.uint8).view(-1, RECORD)
    pixels = records[:, 2:].contiguous().view(-1, 3, 32, 32)
    return pixels, records[:, 1].long(), records[:, 0].long()


def _load(root: Path) -> Dataset:
    train, test = (parse(read_file(file, root, "cifar100")) for file in _FILES)
    return Dataset(
        name="cifar100",
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
        classes=tuple(_CLASSES.split()),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    )


CIFAR100 = Source(
    "CIFAR-100", "60,000 colour photographs of 100 classes, 32 x 32", _load, (_ARCHIVE,)
)
