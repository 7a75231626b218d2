"""A data set in memory: training and test images, their labels, and normalisation constants."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spikewire.errors import check


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Images and labels for training and testing.

    Args:
        name: The name that run directories and reports show.
        train_images: uint8 ``[count, channels, height, width]``.
        train_labels: int64 ``[count]``, from 0 to ``len(classes) - 1``.
        test_images: As `train_images`.
        test_labels: As `train_labels`.
        classes: One name per class.
        mean: One number per channel, subtracted from pixels scaled to 0..1.
        std: One number per channel, by which pixels are divided afterwards.

    Example:
        >>> Dataset(name="mine", train_images=images, train_labels=labels,
        ...         test_images=images, test_labels=labels, classes=("no", "yes"),
        ...         mean=(0.0,), std=(1.0,))
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image: channels, height, width."""
        return tuple(self.train_images.shape[1:])

    def normalised(self, mean: tuple[float, ...], std: tuple[float, ...]) -> "Dataset":
        """Return a data set with other constants per channel; empty ones stay as they are.

        Raises:
            SpikewireError: If there is not one number per channel.
        """
        channels = self.shape[0]
        for name, values in (("pixel_mean", mean), ("pixel_std", std)):
            check(len(values) in (0, channels), name, values, f"one number per channel: {channels}")
        return replace(self, mean=mean or self.mean, std=std or self.std)

    def centred(self, centre: float) -> "Dataset":
        """Return a data set whose normalised pixels are all smaller by `centre`."""
        shifted = (m + centre * s for m, s in zip(self.mean, self.std, strict=True))
        return replace(self, mean=tuple(shifted)) if centre else self

    def hold_out(self, count: int) -> "Dataset":
        """Return a data set whose test images are `count` of the training images.

        For choosing hyper-parameters without the real test images, which are left out.

        Args:
            count: How many images to hold out, from 1 to one less than there are. The same images
                are chosen every time, in proportion to the sizes of the classes.

        Raises:
            SpikewireError: If `count` is out of range.
        """
        total = len(self.train_labels)
        check(0 < count < total, "hold_out", count, f"between 1 and {total - 1}")
        held = stratified_mask(self.train_labels, count)
        return replace(
            self,
            train_images=self.train_images[~held],
            train_labels=self.train_labels[~held],
            test_images=self.train_images[held],
            test_labels=self.train_labels[held],
        )


def stratified_mask(labels: Tensor, count: int) -> Tensor:
    """Mark `count` samples: classes in proportion (largest remainder), evenly spaced in each."""
    sizes = torch.bincount(labels)
    exact = sizes * count
    quota, remainder = exact // len(labels), exact % len(labels)
    order = remainder.argsort(descending=True, stable=True)
    quota[order[: count - int(quota.sum())]] += 1
    marked = torch.zeros(len(labels), dtype=torch.bool)
    for label, (size, held) in enumerate(zip(sizes.tolist(), quota.tolist(), strict=True)):
        ranks = (2 * torch.arange(held) + 1) * size // (2 * max(held, 1))
        marked[(labels == label).nonzero().flatten()[ranks]] = True
    return marked
