"""Batches from one uint8 tensor that lives on the training device."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from math import inf, isfinite

import torch
from torch import Tensor

from spikewire.data.augment import cutmix, mixed, parse
from spikewire.errors import check

Part = Callable[[int], slice]


class Batches:
    """Shuffled, augmented, normalised batches; each is a pure function of seed, epoch and index.

    ``image = (augment(pixels) / 255 - mean) / std``

    Nothing needs saving: `epoch(number, start)` goes on bit-identically after `start` batches.
    Order and augmentation parameters are drawn on the CPU and moved once an epoch, so CPU and GPU
    agree and no batch waits for a copy. With `cutmix`, labels are shares of the classes. For
    evaluation: ``shuffle=False, drop_last=False``.
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
        known, spread = all(map(isfinite, mean)), all(0 < value < inf for value in std)
        check(len(mean) == channels and known, "mean", mean, f"{channels} finite numbers")
        check(len(std) == channels and spread, "std", std, f"{channels} positive numbers")
        self.images, self.labels = images.to(device), labels.to(device)
        self.batch_size, self.seed = batch_size, seed
        self.classes = int(labels.max()) + 1
        self.shuffle, self.drop_last = shuffle, drop_last
        # in units of pixels and as tensors: CUDA multiplies by the reciprocal of a Python number
        self._mean = torch.tensor([255 * value for value in mean], device=device).view(-1, 1, 1)
        self._std = torch.tensor([255 * value for value in std], device=device).view(-1, 1, 1)
        self._augment = [parse(spec) for spec in augment]
        self._dtype = dtype
        self._layout = torch.channels_last if channels_last else torch.contiguous_format

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(len(self.labels), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(
        self, number: int, start: int = 0, part: Part = slice
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over epoch `number` (images, labels), leaving out its first `start` batches.

        `part` maps the size of a batch to the part that is wanted; where that is empty, none comes.
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
            if low == high:
                continue
            even = low - low % 2  # partners of `cutmix` stay together, whatever the part
            here = slice(first + even, first + min(length, high + high % 2))
            images, labels = self.images[order[here]], self.labels[order[here]]
            for apply, parameters in drawn:
                images = apply(images, parameters[here])
                if apply is cutmix:
                    labels = mixed(labels, parameters[here], size, self.classes)
            kept = slice(low - even, high - even)
            yield self._normalise(images[kept]), labels[kept]

    def _normalise(self, images: Tensor) -> Tensor:
        images = images.float().sub(self._mean).div_(self._std)
        return images.to(self._dtype, memory_format=self._layout)


def _mix(*numbers: int) -> int:
    """Hash whole numbers to a seed, so that neighbouring epochs share nothing."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
