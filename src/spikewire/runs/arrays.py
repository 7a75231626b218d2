"""Files of named arrays (``.npz``), written atomically and read without executing anything."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from spikewire.files import atomic_write, damaged, io_errors


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name, compressed.

    Raises:
        SpikewireError: If the file cannot be written.
    """
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]
    with io_errors(path.parent), atomic_write(path) as file:
        file.write(content.getvalue())


def load_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Return the arrays by name, or None if there is no such file.

    Raises:
        SpikewireError: If the file is damaged.
    """
    if not path.exists():
        return None
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:  # a damaged file fails anywhere inside zipfile and numpy
        raise damaged(path, error) from None
