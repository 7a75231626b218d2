"""Batches from one uint8 tensor that is kept on the training device."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from math import inf, isfinite

import torch
from torch import Tensor

from spikewire.data.augment import Apply, cutmix, mix_labels, parse
from spikewire.data.normalise import Normalisation
from spikewire.errors import check

Part = Callable[[int], slice]


class Batches:
    """Shuffled, augmented, normalised batches; each is a pure function of seed, epoch and index.

    ``image = (augment(pixels) / 255 - mean) / std``

    There is no state to save: `epoch(number, start)` resumes bit-identically after `start` batches.
    Order and augmentation parameters are drawn on the CPU and moved to the device once per epoch,
    so that CPU and GPU agree and no batch waits for a copy.

    Args:
        images: uint8 ``[count, channels, height, width]``.
        labels: int64 ``[count]``.
        batch_size: Images per batch, 1 or more.
        mean: One number per channel, for pixels scaled to 0..1.
        std: One positive number per channel, for pixels scaled to 0..1.
        device: Where images, labels and batches are kept.
        augment: Names from `AUGMENTATIONS` with optional magnitudes, such as ``"crop:4"``, applied
            in this order. With ``"cutmix"`` labels become the fraction of each class,
            ``[batch, classes]``.
        seed: Any whole number.
        shuffle: Whether each epoch has its own random order.
        drop_last: Whether to omit the last batch of an epoch if it is smaller.
        dtype: Of the batches of images.
        channels_last: Whether batches have the channels-last memory layout.

    Raises:
        SpikewireError: If an argument is out of range.

    Example:
        >>> data = spikewire.data.load("digits")
        >>> batches = Batches(data.train_images, data.train_labels, batch_size=128,
        ...                   mean=data.mean, std=data.std, augment=("shift:1",))
        >>> for images, labels in batches.epoch(0):
        ...     ...
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: str | torch.device = "cpu",
        augment: Sequence[str] = (),
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ):
        count, channels = images.shape[:2]
        check(len(labels) == count, "labels", len(labels), f"as many as the images, {count}")
        check(batch_size >= 1, "batch_size", batch_size, "1 or more")
        check(batch_size <= count or not drop_last, "batch_size", batch_size, f"at most {count}")
        finite, positive = all(map(isfinite, mean)), all(0 < value < inf for value in std)
        check(len(mean) == channels and finite, "mean", mean, f"{channels} finite numbers")
        check(len(std) == channels and positive, "std", std, f"{channels} positive numbers")
        self.images, self.labels = images.to(device), labels.to(device)
        self.batch_size, self.seed = batch_size, seed
        self.classes = int(labels.max()) + 1
        self.shuffle, self.drop_last = shuffle, drop_last
        self._normalise = Normalisation(mean, std, device)
        self._augment = [parse(spec) for spec in augment]
        self._dtype = dtype
        self._layout = torch.channels_last if channels_last else torch.contiguous_format

    def __len__(self) -> int:
        """Batches per epoch."""
        whole, rest = divmod(len(self.labels), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(
        self, number: int, start: int = 0, part: Part = slice
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the batches of epoch `number`.

        Args:
            number: The epoch, from 0.
            start: How many batches to leave out at the beginning, at most ``len(self)``.
            part: Maps the size of a batch to the slice of it that is wanted, such as one rank's;
                a batch whose slice is empty is left out.

        Returns:
            An iterator over pairs of images and labels.

        Raises:
            SpikewireError: If `start` is out of range.
        """
        check(0 <= start <= len(self), "start", start, f"between 0 and {len(self)} batches")
        return self._iterate(number, start, part)

    def _iterate(self, number: int, start: int, part: Part) -> Iterator[tuple[Tensor, Tensor]]:
        count, size = len(self.labels), (self.images.shape[2], self.images.shape[3])
        generator = torch.Generator().manual_seed(_mix(self.seed, number))
        order = torch.randperm(count, generator=generator) if self.shuffle else torch.arange(count)
        order = order.to(self.labels.device)
        drawn = [
            (apply, draw(count, size, generator).to(order.device)) for draw, apply in self._augment
        ]
        for index in range(start, len(self)):
            first = index * self.batch_size
            length = min(self.batch_size, count - first)
            wanted = part(length)
            low, high = wanted.start or 0, wanted.stop
            if low != high:
                even = low - low % 2  # partners of `cutmix` stay together, whatever the part
                here = slice(first + even, first + min(length, high + high % 2))
                images, labels = self._augmented(order[here], [(f, p[here]) for f, p in drawn])
                kept = slice(low - even, high - even)
                inputs = self._normalise(images[kept])
                yield inputs.to(self._dtype, memory_format=self._layout), labels[kept]

    def _augmented(
        self, index: Tensor, drawn: Sequence[tuple[Apply, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return the images and labels at `index`, with these augmentations applied in order."""
        images, labels = self.images[index], self.labels[index]
        size = (images.shape[2], images.shape[3])
        for apply, parameters in drawn:
            images = apply(images, parameters)
            if apply is cutmix:
                labels = mix_labels(labels, parameters, size, self.classes)
        return images, labels


def _mix(*numbers: int) -> int:
    """Hash whole numbers to a seed, so that neighbouring epochs are independent."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
