"""A data set that is read while it is used: torch `Dataset`s that do not fit in memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset
from torch.utils.data import Dataset as TorchDataset

from spikewire.data.batches import Batches
from spikewire.data.dataset import Dataset, Pixels, group_steps, stratified_mask
from spikewire.data.normalise import Normalisation
from spikewire.errors import check


@dataclass(frozen=True, eq=False, kw_only=True)
class Streamed(Pixels):
    """Samples for training and testing that torch `Dataset`s return by number.

    Args:
        name: The name that run directories and reports show.
        train: A map-style torch `Dataset` (with ``len`` and ``[]``) of (sample, label) pairs.
        test: As `train`.
        classes: One name per class.
        mean: One number per channel for images of 0..255, as in `Dataset`; empty: samples stay as
            they are.
        std: As `mean`.
        temporal: Whether samples have time as their first dimension.
        workers: Processes that read samples ahead; 0 reads them in the training process.
        collate: Makes a batch of a list of samples; None for torch's default.

    Example:
        >>> Streamed(name="mine", train=train, test=test, classes=("no", "yes"), workers=2)
    """

    name: str
    train: Any
    test: Any
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    temporal: bool = False
    workers: int = 0
    collate: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        for part in (self.train, self.test):
            fits = hasattr(part, "__getitem__") and hasattr(part, "__len__")
            fits = fits and not isinstance(part, IterableDataset) and len(part) > 0
            check(fits, "dataset", type(part).__name__, "a torch Dataset with len() and []")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample without time."""
        return tuple(torch.as_tensor(self.train[0][0]).shape[int(self.temporal) :])

    def at(self, time_steps: int, frames: str = "time") -> "Streamed":
        """Return the data set in `time_steps` time steps, as `Dataset.at` does.

        Args:
            time_steps: How many; recordings of events are divided into as many frames.
            frames: How they are divided: "time" or "count".

        Raises:
            SpikewireError: If it is not the number of steps of the data or a divisor of it.
        """
        if not self.temporal:
            return self
        train, test = (_at(part, time_steps, frames) for part in (self.train, self.test))
        return replace(self, train=train, test=test)

    def hold_out(self, count: int, field: str = "hold_out") -> "Streamed":
        """Return a data set whose test samples are `count` of the training samples.

        They are chosen as in `Dataset.hold_out` where the training set has ``targets``; else
        evenly spaced.

        Raises:
            SpikewireError: If `count` is out of range.
        """
        total = len(self.train)
        check(0 < count < total, field, count, f"between 1 and {total - 1}")
        targets = getattr(self.train, "targets", None)
        labels = torch.zeros(total) if targets is None else torch.as_tensor(targets)
        held = stratified_mask(labels.long(), count)
        train, test = (Subset(self.train, m.nonzero().flatten().tolist()) for m in (~held, held))
        return replace(self, train=train, test=test)


AnyDataset = Dataset | Streamed


class StreamedBatches(Batches):
    """`Batches` of samples that a `DataLoader` reads: same order, resumption and normalisation.

    What a `Dataset` draws at random inside ``[]`` is its own: it is not repeated by a resumed run.

    Args:
        dataset: A map-style torch `Dataset` of (sample, label) pairs.
        classes: Number of classes.
        mean: As in `Batches`.
        std: As in `Batches`.
        workers: Processes that read ahead.
        collate: Makes a batch of a list of samples; None for torch's default.
        device: Where batches are moved to.
        **options: Those of `Batches`.

    Raises:
        SpikewireError: If an argument is out of range.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        device: str | torch.device = "cpu",
        **options: Any,
    ):
        first = torch.as_tensor(dataset[0][0])
        shape = torch.empty(1).expand(len(dataset), *first.shape)  # no memory: it has the shape
        super().__init__(shape, torch.zeros(len(dataset)), mean=mean, std=std, **options)
        self.dataset, self.workers, self.collate = dataset, workers, collate
        self.classes, self.device = classes, torch.device(device)
        self._normalise = Normalisation(mean, std, device) if mean else Tensor.float

    def samples(self, order: Tensor, slices: Sequence[slice]) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over samples and labels of each slice of `order`, on the device."""
        loader = DataLoader(
            self.dataset,
            batch_sampler=[order[here].tolist() for here in slices],
            num_workers=self.workers,
            collate_fn=self.collate,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator().manual_seed(self.seed),  # torch's own stays as it is
        )
        for samples, labels, *_ in loader:
            labels = torch.as_tensor(labels).long()
            yield torch.as_tensor(samples).to(self.device), labels.to(self.device)

    def _group_size(self, slices: Sequence[slice]) -> int:
        """Return 1: samples of batches may differ in shape, and are read when they are needed."""
        return 1


class _Grouped(TorchDataset):
    """A temporal data set whose consecutive time steps are added up in groups."""

    def __init__(self, dataset: Any, time_steps: int) -> None:
        self.dataset, self.time_steps = dataset, time_steps

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        sample, label, *_ = self.dataset[index]
        return group_steps(torch.as_tensor(sample), 0, self.time_steps), label

    @property
    def targets(self) -> Any:
        """The labels, where the data set has them."""
        return self.dataset.targets


def _at(dataset: Any, time_steps: int, frames: str) -> Any:
    """Return the data set in `time_steps` time steps."""
    if hasattr(dataset, "at"):  # recordings of events, which are divided into frames
        return dataset.at(time_steps, frames)
    present = len(dataset[0][0])
    group_steps(torch.empty(present), 0, time_steps)  # raises where it is no divisor
    return dataset if present == time_steps else _Grouped(dataset, time_steps)
