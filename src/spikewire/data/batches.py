"""Batches of samples from one tensor that is kept on the training device."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf, isfinite

import torch
from torch import Tensor

from spikewire.data.augment import Apply, cutmix, mix_labels, parse
from spikewire.data.normalise import Normalisation
from spikewire.data.time_shift import time_shift
from spikewire.data.trivial import trivial
from spikewire.errors import check

Part = Callable[[int], slice]
# values that are augmented at once: many small kernels for one batch would keep a GPU waiting
GROUP_VALUES = {"cuda": 2**22}


class Batches:
    """Shuffled, augmented, normalised batches; each is a pure function of seed, epoch and index.

    ``image = (augment(pixels) / 255 - mean) / std``; without `mean` the samples as they are.

    There is no state to save: `epoch(number, start)` resumes bit-identically after `start` batches.
    Order and augmentation parameters are drawn on the CPU and moved to the device once per epoch,
    so that CPU and GPU agree and no batch waits for a copy.

    Args:
        images: uint8 ``[count, channels, height, width]``, or samples of any other shape.
        labels: int64 ``[count]``.
        batch_size: Images per batch, 1 or more.
        mean: One number per channel, for pixels scaled to 0..1; empty: samples stay as they are.
        std: One positive number per channel, for pixels scaled to 0..1; empty where `mean` is.
        device: Where images, labels and batches are kept.
        augment: Names from `AUGMENTATIONS` with optional magnitudes, such as ``"crop:4"``, applied
            in this order. With ``"cutmix"`` labels become the fraction of each class,
            ``[batch, classes]``.
        seed: Any whole number.
        shuffle: Whether each epoch has its own random order.
        drop_last: Whether to omit the last batch of an epoch if it is smaller.
        dtype: Of the batches of images.
        channels_last: Whether batches of images have the channels-last memory layout.
        temporal: Whether samples are ``[time, ...]``; batches are then ``[time, batch, ...]``.

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
        temporal: bool = False,
    ):
        count = len(labels)
        check(len(images) == count, "labels", count, f"as many as the images, {len(images)}")
        check(batch_size >= 1, "batch_size", batch_size, "1 or more")
        check(
            batch_size <= count or not drop_last,
            "batch_size",
            batch_size,
            f"at most {count}, the number of samples",
        )
        _check_normalisation(mean, std, tuple(images.shape))
        frames = images.ndim == (5 if temporal else 4)
        self._augment = [parse(spec) for spec in augment]
        for spec, (_, apply) in zip(augment, self._augment, strict=True):
            over_time = apply is time_shift
            what = "no data over time" if over_time else "no images"
            fits = temporal if over_time else frames
            if apply is trivial:
                what = "no single images of 1 or 3 channels with pixels of 0..255"
                fits = frames and bool(mean) and not temporal and images.shape[1] in (1, 3)
            check(fits, "augment", spec, f"left out for data that are {what}")
        self.images, self.labels = images.to(device), labels.to(device)
        self.count, self.device = count, self.labels.device
        self.size = (images.shape[-2], images.shape[-1])
        self.batch_size, self.seed = batch_size, seed
        self.classes = int(labels.max()) + 1
        self.shuffle, self.drop_last, self.temporal = shuffle, drop_last, temporal
        self._normalise = Normalisation(mean, std, device) if mean else Tensor.float
        self._dtype = dtype
        last = channels_last and frames and not temporal
        self._layout = torch.channels_last if last else torch.contiguous_format

    def __len__(self) -> int:
        """Batches per epoch."""
        whole, rest = divmod(self.count, self.batch_size)
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
        generator = torch.Generator().manual_seed(_mix(self.seed, number))
        if self.shuffle:
            order = torch.randperm(self.count, generator=generator)
        else:
            order = torch.arange(self.count)
        drawn = [
            (apply, draw(self.count, self.size, generator).to(self.device))
            for draw, apply in self._augment
        ]
        cuts = [cut for i in range(start, len(self)) if (cut := self._cut(i, part))]
        batches = zip(cuts, self.samples(order, [here for here, _ in cuts]), strict=True)
        size = self._group_size([here for here, _ in cuts])
        while few := list(islice(batches, size)):
            heres, kept = zip(*(cut for cut, _ in few), strict=True)
            images, labels = map(_join, zip(*(batch for _, batch in few), strict=True))
            parameters = [(apply, _join([v[here] for here in heres])) for apply, v in drawn]
            images, labels = self._augmented(images, labels, parameters)
            lengths = [len(own) for _, (_, own) in few]  # a data set may leave samples out
            pairs = zip(self._normalise(images).split(lengths), labels.split(lengths), strict=True)
            for own, (inputs, targets) in zip(kept, pairs, strict=True):
                inputs = inputs[own].transpose(0, 1) if self.temporal else inputs[own]
                yield inputs.to(self._dtype, memory_format=self._layout), targets[own]

    def _group_size(self, slices: Sequence[slice]) -> int:
        """Return how many batches to augment at once; the result is the same for any number."""
        most = GROUP_VALUES.get(self.device.type, 0)
        whole = all((x.stop - x.start) % 2 == 0 for x in slices[:-1])  # no pair of `cutmix` is cut
        return max(1, most // (self.images[0].numel() * self.batch_size)) if whole else 1

    def _cut(self, index: int, part: Part) -> tuple[slice, slice] | None:
        """Return which samples of the epoch to read for a batch, and which of these to keep."""
        first = index * self.batch_size
        length = min(self.batch_size, self.count - first)
        wanted = part(length)
        low, high = wanted.start or 0, wanted.stop
        even = low - low % 2  # partners of `cutmix` stay together, whatever the part
        here = slice(first + even, first + min(length, high + high % 2))
        return (here, slice(low - even, high - even)) if low != high else None

    def samples(self, order: Tensor, slices: Sequence[slice]) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over images and labels of each slice of `order`, on the device."""
        order = order.to(self.device)
        for here in slices:
            yield self.images[order[here]], self.labels[order[here]]

    def _augmented(
        self, images: Tensor, labels: Tensor, drawn: Sequence[tuple[Apply, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return images and labels with these augmentations applied, all frames in the same way."""
        shape = images.shape
        for apply, parameters in drawn:
            if apply is time_shift:
                images = apply(images, parameters)
            else:
                images = apply(images.flatten(1, -3), parameters).view(shape)
            if apply is cutmix:
                labels = mix_labels(labels, parameters, self.size, self.classes)
        return images, labels


def _join(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensors as one; a single one as it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat([*tensors])


def _check_normalisation(
    mean: Sequence[float], std: Sequence[float], shape: tuple[int, ...]
) -> None:
    """Raise unless there is one finite mean and one positive std per channel, or none at all."""
    if not mean and not std:
        return
    channels = shape[1] if len(shape) == 4 else 0
    finite, positive = all(map(isfinite, mean)), all(0 < value < inf for value in std)
    check(len(mean) == channels and finite, "mean", mean, f"{channels} finite numbers")
    check(len(std) == channels and positive, "std", std, f"{channels} positive numbers")


def _mix(*numbers: int) -> int:
    """Hash whole numbers to a seed, so that neighbouring epochs are independent."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
