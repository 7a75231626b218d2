"""Data sets of the user's own: ``FILE.py:FUNCTION``, ``folder:PATH`` and ``npz:FILE``."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from spikewire.data import folder, npz
from spikewire.data.dataset import Dataset
from spikewire.data.reference import call_function, is_python, named_path, short_name
from spikewire.data.streamed import AnyDataset, Streamed
from spikewire.data.tensors import from_arrays, is_temporal
from spikewire.errors import SpikewireError

RETURNS = (
    "a spikewire.data.Dataset, ((train_x, train_y), (test_x, test_y)) or (train, test) of torch "
    "Datasets or DataLoaders"
)


def load(value: str, *, resize: int = 0, **offered: Any) -> AnyDataset:
    """Return a data set of the user's own.

    Args:
        value: ``FILE.py:FUNCTION``, ``folder:PATH`` or ``npz:FILE``. The Python file is executed.
        resize: Side of the square to which images of a folder are resized; 0: as they are.
        **offered: What a function with parameters of these names gets, such as `time_steps`.

    Raises:
        SpikewireError: If it cannot be read, or the function returns something else.
    """
    path = named_path(value)
    assert path is not None
    if is_python(value):
        return as_dataset(short_name(value), call_function("dataset", value, **offered))
    return npz.read(path) if value.startswith("npz:") else folder.read(path, resize)


def as_dataset(name: str, found: Any) -> AnyDataset:
    """Return what a user's function returned as a data set.

    Args:
        name: The name of the data set.
        found: A `Dataset` or `Streamed`; or a pair (train, test) of torch `Dataset`s, `DataLoader`s
            or (samples, labels) pairs; or a mapping with ``train``, ``test`` and ``classes``.

    Raises:
        SpikewireError: If it is something else.
    """
    if isinstance(found, Dataset | Streamed):
        return replace(found, name=name)
    classes = found.get("classes") if isinstance(found, Mapping) else None
    pair: Any = found
    if isinstance(found, Mapping):
        pair = [found.get(key) for key in ("train", "test")]
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise _other(found)
    train, test = pair
    if all(isinstance(part, DataLoader | TorchDataset) for part in pair):
        return _streamed(name, train, test, classes)
    if all(isinstance(part, tuple | list) and len(part) == 2 for part in pair):
        (train_x, train_y), (test_x, test_y) = pair
        return from_arrays(name, train_x, train_y, test_x, test_y, classes=classes)
    raise _other(found)


def _streamed(name: str, train: Any, test: Any, classes: Any) -> Streamed:
    """Return torch data sets, or those of loaders, as a data set that is read while it is used."""
    collate, workers = None, 0
    if isinstance(train, DataLoader):
        collate, workers = train.collate_fn, train.num_workers
    train, test = (x.dataset if isinstance(x, DataLoader) else x for x in (train, test))
    classes = classes or getattr(train, "classes", None)
    if not classes:
        raise SpikewireError(
            "dataset: the classes are not known; return a mapping with train, test and classes"
        )
    shape = Streamed(name=name, train=train, test=test, classes=tuple(map(str, classes))).shape
    sample = torch.as_tensor(train[0][0])
    pixels = sample.dtype == torch.uint8 and len(shape) == 3
    return Streamed(
        name=name,
        train=train,
        test=test,
        classes=tuple(map(str, classes)),
        mean=(0.0,) * shape[0] if pixels else (),
        std=(1.0,) * shape[0] if pixels else (),
        temporal=is_temporal(shape),
        workers=workers,
        collate=collate,
    )


def _other(found: Any) -> SpikewireError:
    return SpikewireError(f"dataset: the function returned {type(found).__name__}, not {RETURNS}")
