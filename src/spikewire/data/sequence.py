"""Images as sequences: one pixel per time step, row by row, then a cue to answer.

A sample is ``[time, 2]``: the pixel, 0 to 255, and the cue, which is 1 in the last steps, one for
every 14 pixels (56 after the 784 of MNIST), and 0 before.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from spikewire.data.dataset import Dataset
from spikewire.data.digits import DIGITS
from spikewire.data.idx import MNIST
from spikewire.data.source import Source

PIXELS_PER_CUE = 14


def to_sequence(images: Tensor) -> Tensor:
    """Return uint8 images ``[count, 1, height, width]`` as sequences ``[count, time, 2]``.

    Args:
        images: grey images.

    Returns:
        Pixel and cue at every time step, uint8.

    Example:
        >>> to_sequence(torch.zeros(5, 1, 28, 28, dtype=torch.uint8)).shape
        torch.Size([5, 840, 2])
    """
    pixels = images.flatten(1)
    size = pixels.shape[1]
    pixels = functional.pad(pixels, (0, size // PIXELS_PER_CUE))
    cue = torch.zeros_like(pixels)
    cue[:, size:] = 1
    return torch.stack([pixels, cue], 2)


def _sequential(source: Source, name: str, title: str, summary: str) -> Source:
    """Return a data set of images as one of sequences; its files are the same."""

    def read(root: Path) -> Dataset:
        images = source.read(root)
        assert isinstance(images, Dataset)
        return replace(
            images,
            name=name,
            train_images=to_sequence(images.train_images),
            test_images=to_sequence(images.test_images),
            mean=(),
            std=(),
            temporal=True,
        )

    return replace(source, title=title, summary=summary, read=read)


SEQ_MNIST = _sequential(
    MNIST,
    "seqmnist",
    "sequential MNIST",
    "MNIST as sequences of 784 pixels and a cue of 56 steps",
)
SEQ_DIGITS = _sequential(
    DIGITS,
    "seqdigits",
    "sequential digits",
    "the embedded digits as sequences of 64 pixels and a cue of 4 steps",
)
