"""A NIR file (HDF5) as a graph; a damaged or hostile file is refused in one line."""

from pathlib import Path
from typing import Any

from spikewire.errors import SpikewireError

MAX_BYTES = 2**33  # of all arrays of a file


def read_graph(nir: Any, path: str | Path) -> Any:
    """Return the graph of a NIR file.

    Args:
        nir: The `nir` package.
        path: Path of the file.

    Returns:
        A `nir.NIRGraph`, whose nodes may hold anything.

    Raises:
        SpikewireError: If the file is missing, damaged, or larger in memory than `MAX_BYTES`.
    """
    try:
        if not Path(path).is_file():
            raise FileNotFoundError("no such file")
        _check_size(path)
        return nir.read(str(path))
    except Exception as error:  # a damaged file fails anywhere inside h5py or nir
        reason = " ".join((str(error) or type(error).__name__).split())[:80]
        raise SpikewireError(f"{path}: is not a NIR file ({reason})") from None


def _check_size(path: str | Path) -> None:
    """Refuse arrays that are large in memory: compressed or never written, they need few bytes."""
    import h5py

    total = 0

    def add(_: str, item: Any) -> None:
        nonlocal total
        total += item.nbytes if isinstance(item, h5py.Dataset) else 0

    with h5py.File(path, "r") as file:
        file.visititems(add)
    if total > MAX_BYTES:
        raise ValueError(f"{total} bytes of arrays; at most {MAX_BYTES} are read")
