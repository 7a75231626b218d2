"""A data set in memory: training and test samples, their labels, and normalisation constants.

A sample is an image, a vector of features, or either of them over time.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from spikewire.errors import check


@dataclass(frozen=True, eq=False, kw_only=True)
class Pixels:
    """How the pixels of a data set are normalised; both are empty for data that are no pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalised(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Self:
        """Return a data set with other constants per channel; empty ones stay as they are.

        Raises:
            SpikewireError: If there is not one number per channel.
        """
        given = bool(mean or std)
        check(not given or bool(self.mean), "pixel_mean", mean, "none for data that are no pixels")
        channels = len(self.mean)
        for name, values in (("pixel_mean", mean), ("pixel_std", std)):
            check(len(values) in (0, channels), name, values, f"one number per channel: {channels}")
        return replace(self, mean=mean or self.mean, std=std or self.std)

    def centred(self, centre: float) -> Self:
        """Return a data set whose normalised pixels are all smaller by `centre`."""
        check(not centre or bool(self.mean), "centre", centre, "0 for data that are no pixels")
        shifted = (m + centre * s for m, s in zip(self.mean, self.std, strict=True))
        return replace(self, mean=tuple(shifted)) if centre else self


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset(Pixels):
    """Images and labels for training and testing.

    Args:
        name: The name that run directories and reports show.
        train_images: uint8 ``[count, channels, height, width]``; or samples of any other shape,
            which the network gets as they are; with `temporal`, ``[count, time, ...]``.
        train_labels: int64 ``[count]``, from 0 to ``len(classes) - 1``.
        test_images: As `train_images`.
        test_labels: As `train_labels`.
        classes: One name per class.
        mean: One number per channel, subtracted from pixels scaled to 0..1; empty: samples are
            used as they are, neither scaled nor normalised.
        std: One number per channel, by which pixels are divided afterwards; empty where `mean` is.
        temporal: Whether samples have time as their first dimension.

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
    temporal: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample without time; of an image: channels, height, width."""
        return tuple(self.train_images.shape[2 if self.temporal else 1 :])

    def at(self, time_steps: int, frames: str = "time") -> "Dataset":
        """Return the data set in `time_steps` time steps; that of images is returned as it is.

        Args:
            time_steps: The time steps of the data, or a divisor of them: groups of consecutive
                steps are then added up.
            frames: Not used here; see `Streamed.at`.

        Raises:
            SpikewireError: If it is neither.
        """
        if not self.temporal or time_steps == self.train_images.shape[1]:
            return self
        train, test = (group_steps(x, 1, time_steps) for x in (self.train_images, self.test_images))
        return replace(self, train_images=train, test_images=test)

    def hold_out(self, count: int, field: str = "hold_out") -> "Dataset":
        """Return a data set whose test images are `count` of the training images.

        For choosing hyper-parameters without the real test images, which are left out.

        Args:
            count: How many images to hold out, from 1 to one less than there are. The same images
                are chosen every time, in proportion to the sizes of the classes.
            field: What error messages call the count.

        Raises:
            SpikewireError: If `count` is out of range.
        """
        total = len(self.train_labels)
        check(0 < count < total, field, count, f"between 1 and {total - 1}")
        held = stratified_mask(self.train_labels, count)
        return replace(
            self,
            train_images=self.train_images[~held],
            train_labels=self.train_labels[~held],
            test_images=self.train_images[held],
            test_labels=self.train_labels[held],
        )


def group_steps(samples: Tensor, dim: int, time_steps: int) -> Tensor:
    """Add up groups of consecutive time steps along `dim`, so that `time_steps` are left."""
    present = samples.shape[dim]
    allowed = f"{present}, the time steps of the data, or a divisor of it"
    if dim == 1 and samples.ndim == 3:
        allowed += "; images need a channel dimension, [count, channels, height, width]"
    check(present % time_steps == 0, "time_steps", time_steps, allowed)
    kind = samples.dtype if samples.is_floating_point() else torch.int16
    groups = samples.unflatten(dim, (time_steps, present // time_steps))
    return groups.sum(dim + 1, dtype=kind)


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
