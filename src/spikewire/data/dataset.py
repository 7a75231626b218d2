"""A data set in memory: images and labels of its two parts, and what normalises them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spikewire.errors import check


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Images are uint8 ``[count, channels, height, width]``, labels int64 ``[count]``.

    `mean` and `std` are one number a channel, for pixels scaled to 0..1.
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

    def centred(self, centre: float) -> "Dataset":
        """Return a set whose normalised pixels are all less by `centre`."""
        shifted = (m + centre * s for m, s in zip(self.mean, self.std, strict=True))
        return replace(self, mean=tuple(shifted)) if centre else self

    def hold_out(self, count: int) -> "Dataset":
        """Return a set whose test part is `count` training images, for choosing recipes.

        The same images each time, the classes in proportion; the real test part is left out.
        """
        total = len(self.train_labels)
        check(0 < count < total, "hold_out", count, f"between 1 and {total - 1}")
        held = stratified(self.train_labels, count)
        return replace(
            self,
            train_images=self.train_images[~held],
            train_labels=self.train_labels[~held],
            test_images=self.train_images[held],
            test_labels=self.train_labels[held],
        )


def stratified(labels: Tensor, count: int) -> Tensor:
    """Mark `count` samples, each class in proportion (largest remainder), evenly spaced in it."""
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
