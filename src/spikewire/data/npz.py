"""``npz:FILE``: training and test samples from one NumPy archive.

The arrays are ``train_x``, ``train_y``, ``test_x``, ``test_y`` (or ``x_train`` and so on) and,
where classes have names, ``classes``.
"""

from pathlib import Path
from zipfile import is_zipfile

import numpy as np

from spikewire.data.dataset import Dataset
from spikewire.data.tensors import from_arrays
from spikewire.errors import SpikewireError

PARTS = ("train_x", "train_y", "test_x", "test_y")


def read(path: Path) -> Dataset:
    """Return the data set in a ``.npz`` file; nothing in it is executed.

    Raises:
        SpikewireError: If the file cannot be read, or arrays are missing or do not fit together.
    """
    if path.is_file() and not is_zipfile(path):  # numpy would propose to unpickle it
        raise SpikewireError(f"dataset: {path} is not a NumPy archive (.npz)")
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            found = ", ".join(file.files) or "none"
            arrays = {_name(key): file[key] for key in file.files}
    except OSError as error:
        raise SpikewireError(f"dataset: {path} cannot be read: {error.strerror}") from None
    except Exception as error:  # a damaged file fails anywhere inside zipfile and numpy
        raise SpikewireError(f"dataset: {path} is not a NumPy archive: {error}") from None
    if missing := [key for key in PARTS if key not in arrays]:
        raise SpikewireError(f"dataset: {path} has no {', '.join(missing)}; its arrays: {found}")
    names = [str(name) for name in arrays["classes"]] if "classes" in arrays else None
    return from_arrays(path.stem, *(arrays[key] for key in PARTS), classes=names)


def _name(key: str) -> str:
    """Return ``train_x`` for ``x_train``, and the like; other names as they are."""
    first, _, second = key.partition("_")
    return f"{second}_{first}" if first in ("x", "y") else key
