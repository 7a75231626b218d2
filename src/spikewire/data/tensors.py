"""Data sets from arrays or tensors of the user's own: checked, and given their meaning by shape.

======================================  ===========================================================
shape of one sample                     meaning
======================================  ===========================================================
``[features]``                          a vector, fed at every time step
``[channels, height, width]``           an image; uint8 is pixels, which are divided by 255
``[time, features]``                    a vector over time
``[time, channels, height, width]``     frames over time
======================================  ===========================================================
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spikewire.data.dataset import Dataset
from spikewire.errors import check

CHANNELS = (1, 3, 4)  # of pictures: grey, colours, colours with transparency
FORMS = "[features], [channels, height, width], [time, features] or [time, channels, height, width]"


def is_temporal(shape: Sequence[int]) -> bool:
    """Return whether a sample of this shape has time as its first dimension.

    Raises:
        SpikewireError: If the shape has no meaning here.
    """
    check(1 <= len(shape) <= 4, "dataset: shape of a sample", tuple(shape), FORMS)
    return len(shape) in (2, 4)


def from_arrays(
    name: str,
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    *,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Return a data set of arrays or tensors.

    Args:
        name: The name of the data set.
        train_x: Samples ``[count, ...]``, whose meaning follows from their shape.
        train_y: Class numbers ``[count]``, from 0.
        test_x: As `train_x`.
        test_y: As `train_y`.
        classes: Names of the classes; None for their numbers.

    Raises:
        SpikewireError: If the arrays do not fit together.
    """
    train, test = _samples("train", train_x), _samples("test", test_x)
    shape = tuple(train.shape[1:])
    same = tuple(test.shape[1:]) == shape
    check(
        same, "dataset: shape of a test sample", tuple(test.shape[1:]), f"that of training, {shape}"
    )
    labels = _labels("train", train_y, len(train)), _labels("test", test_y, len(test))
    count = len(classes) if classes else int(max(part.max() for part in labels)) + 1
    for part in labels:
        check(int(part.max()) < count, "dataset: label", int(part.max()), f"below {count}")
    temporal = is_temporal(shape)
    pixels = train.dtype == torch.uint8 and len(shape) == 3
    if pixels and shape[-1] in CHANNELS and shape[0] not in CHANNELS:
        logging.getLogger("spikewire").warning(
            "dataset: samples of %s are read as [channels, height, width]; if %d is the number of "
            "channels, move it to the front",
            list(shape),
            shape[-1],
        )
    return Dataset(
        name=name,
        train_images=train,
        train_labels=labels[0],
        test_images=test,
        test_labels=labels[1],
        classes=tuple(classes or map(str, range(count))),
        mean=(0.0,) * shape[0] if pixels else (),
        std=(1.0,) * shape[0] if pixels else (),
        temporal=temporal,
    )


def _samples(part: str, values: Any) -> Tensor:
    """Return samples as uint8 or float32."""
    try:
        found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        check(False, f"dataset: {part} samples", type(values).__name__, f"numbers ({error})")
        raise
    check(
        found.ndim >= 2 and len(found) > 0,
        f"dataset: {part} samples",
        tuple(found.shape),
        "[count, ...]",
    )
    check(not found.is_complex(), f"dataset: {part} samples", str(found.dtype), "real numbers")
    found = found if found.dtype == torch.uint8 else found.float()
    finite = bool(found.isfinite().all())
    check(finite, f"dataset: {part} samples", "NaN or infinity", "finite numbers")
    return found


def _kind(values: Any) -> str:
    """Return of what type labels are, by the first one."""
    dtype = getattr(values, "dtype", None)
    return str(dtype) if dtype is not None else type(next(iter(values), None)).__name__


def _labels(part: str, values: Any, count: int) -> Tensor:
    """Return labels as int64."""
    try:
        found = torch.as_tensor(values).flatten()
    except (TypeError, ValueError, RuntimeError):
        check(False, f"dataset: {part} labels", _kind(values), "class numbers from 0")
        raise
    check(
        len(found) == count, f"dataset: {part} labels", len(found), f"as many as samples, {count}"
    )
    whole = not found.is_floating_point() and not found.is_complex()
    check(whole, f"dataset: {part} labels", str(found.dtype), "class numbers from 0")
    smallest = int(found.min())
    check(smallest >= 0, f"dataset: {part} labels", smallest, "class numbers from 0")
    return found.long()
