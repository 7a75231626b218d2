"""``folder:PATH``: images in one folder per class.

The layout is ``PATH/train/CLASS/*`` and ``PATH/test/CLASS/*``. Without these two, every folder in
PATH is a class, and every fifth image of each class is for testing. Images that together take more
than `IN_MEMORY` bytes are read while they are used.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from spikewire.data.dataset import Dataset, stratified_mask
from spikewire.data.streamed import AnyDataset, Streamed
from spikewire.errors import SpikewireError, check

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
IN_MEMORY = 1 << 30  # bytes of pixels
WORKERS = 2  # processes that read images which are not kept in memory
GREY = ("1", "L", "I", "I;16", "F")  # modes of PIL with one channel


class Images(TorchDataset):
    """Image files with labels; an item is a uint8 tensor ``[channels, height, width]`` and a label.

    Args:
        files: The files.
        targets: Their labels.
        resize: Side of the square to which images are resized; 0: they must be of one size.
        like: The image whose mode (grey or colour) and size all have; None: the first.
    """

    def __init__(
        self,
        files: Sequence[Path],
        targets: Sequence[int],
        resize: int = 0,
        like: "Images | None" = None,
    ) -> None:
        self.files, self.targets = list(files), list(targets)
        self.resize = resize
        if like is not None:
            self.grey, self.size = like.grey, like.size
            return
        with _open(self.files[0]) as image:
            self.grey = image.mode in GREY
            self.size = (resize, resize) if resize else (image.height, image.width)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return one image and its label."""
        path = self.files[index]
        with _open(path) as image:
            pixels = image.convert("L" if self.grey else "RGB")
            if self.resize:
                pixels = pixels.resize((self.resize, self.resize))
            found = np.atleast_3d(np.asarray(pixels, dtype=np.uint8))
        height, width = self.size
        same = found.shape[:2] == self.size
        size = f"{found.shape[0]} x {found.shape[1]}"
        check(same, f"{path}: size", size, f"{height} x {width}, as the first; or set --resize")
        return torch.from_numpy(found.transpose(2, 0, 1).copy()), self.targets[index]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return 1 if self.grey else 3, self.size[0], self.size[1]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Read all images and labels."""
        images = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        for index in range(len(self)):
            images[index] = self[index][0]
        return images, torch.tensor(self.targets)


def read(path: Path, resize: int = 0) -> AnyDataset:
    """Return the images of a folder.

    Args:
        path: The folder.
        resize: Side of the square to which images are resized; 0: they must be of one size.

    Raises:
        SpikewireError: If the layout is not as expected, or an image cannot be read.
    """
    classes, (train_files, test_files) = _list_files(path)
    train = Images(*train_files, resize)
    test = Images(*test_files, resize, like=train)
    channels = train.shape[0]
    about = {"name": path.resolve().name, "classes": classes}
    about |= {"mean": (0.0,) * channels, "std": (1.0,) * channels}
    if (len(train) + len(test)) * int(np.prod(train.shape)) > IN_MEMORY:
        return Streamed(train=train, test=test, workers=WORKERS, **about)
    (train_images, train_labels), (test_images, test_labels) = train.tensors(), test.tensors()
    return Dataset(
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        **about,
    )


Listed = tuple[list[Path], list[int]]


def _list_files(path: Path) -> tuple[tuple[str, ...], list[Listed]]:
    """Return the names of the classes, and files and labels for training and for testing."""
    if not path.is_dir():
        raise SpikewireError(f"dataset: {path} is not a folder")
    if (path / "train").is_dir() and (path / "test").is_dir():
        classes = _folders(path / "train")
        extra = set(_folders(path / "test")) - set(classes)
        check(not extra, f"dataset: classes of {path / 'test'}", sorted(extra), "those of train")
        return classes, [_files(path / part, classes) for part in ("train", "test")]
    classes = _folders(path)
    files, labels = _files(path, classes)
    held = stratified_mask(torch.tensor(labels), len(labels) // 5)
    check(bool(held.any()), f"dataset: images in {path}", len(files), "5 or more")
    parts = [[i for i, mark in enumerate(held.tolist()) if mark == wanted] for wanted in (0, 1)]
    return classes, [([files[i] for i in part], [labels[i] for i in part]) for part in parts]


def _folders(path: Path) -> tuple[str, ...]:
    names = sorted(x.name for x in path.iterdir() if x.is_dir() and not x.name.startswith("."))
    check(len(names) >= 2, f"dataset: folders of classes in {path}", len(names), "2 or more")
    return tuple(names)


def _files(path: Path, classes: Sequence[str]) -> Listed:
    """Return the image files of every class in order, and their labels."""
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        folder = path / name
        own = sorted(folder.iterdir()) if folder.is_dir() else []
        own = [file for file in own if file.suffix.lower() in SUFFIXES]
        files += own
        labels += [label] * len(own)
    check(bool(files), f"dataset: images in {path}", 0, f"files of {', '.join(sorted(SUFFIXES))}")
    return files, labels


def _open(path: Path) -> Any:
    """Open an image; PIL comes with matplotlib."""
    from PIL import Image, UnidentifiedImageError

    try:
        with path.open("rb") as raw:
            image = Image.open(raw)
            image.load()
    except UnidentifiedImageError:
        raise SpikewireError(f"{path}: is not an image") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpikewireError(f"{path}: cannot be read: {reason}") from None
    return image
