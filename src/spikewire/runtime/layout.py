"""How maps of spikes and currents are stored: rows of whole words, 16 neurons per word."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from spikewire.formats.stage import Shape
from spikewire.runtime.library import LANES

Words = NDArray[np.uint16]
Floats = NDArray[np.float32]


def count_words(width: int) -> int:
    """Return the number of words that hold `width` bits."""
    return -(-width // LANES)


def tail_mask(width: int) -> int:
    """Return the bits in use in the last word of a row of `width` bits."""
    return 0xFFFF >> (-width % LANES)


class Layout:
    """How a map of a shape is stored: channels of rows of whole words.

    Args:
        shape: (channels, height, width); any other shape is one row of one channel.

    Attributes:
        vectors: Words per channel.
        words: Words per map.
        tail: Bits in use in the last word of a row.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        map_shape = shape if len(shape) == 3 else (1, 1, math.prod(shape))
        self.channels, self.height, self.width = map_shape
        self.row_words = count_words(self.width)
        self.vectors = self.height * self.row_words
        self.words = self.channels * self.vectors
        self.tail = tail_mask(self.width)

    @property
    def rows(self) -> int:
        """Rows per map."""
        return self.channels * self.height

    @property
    def fields(self) -> dict[str, int]:
        """The fields of a layer record that depend on the layout of its outputs."""
        sizes = {"channels": self.channels, "vectors": self.vectors, "row_words": self.row_words}
        return {**sizes, "tail": self.tail}

    def unpack(self, spikes: Words) -> NDArray[np.bool_]:
        """Return words ``[..., word]`` as booleans ``[maps, *shape]``."""
        rows = spikes.reshape(-1, self.rows, self.row_words).astype("<u2").view(np.uint8)
        bits = np.unpackbits(rows, axis=-1, bitorder="little", count=self.width)
        return bits.astype(bool).reshape(-1, *self.shape)

    def pad_rows(self, currents: torch.Tensor) -> Floats:
        """Return currents ``[maps, *shape]`` of torch with rows of whole words."""
        rows = currents.reshape(-1, self.rows, self.width)
        rows = functional.pad(rows, (0, self.row_words * LANES - self.width))
        return rows.flatten(1).numpy()
