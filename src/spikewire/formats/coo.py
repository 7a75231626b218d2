"""Connection lists for simulators and chips: (pre, post, weight, delay) between single neurons.

One file per layer, written in pieces, because the 37 million synapses of a convolution would not
fit in memory at once. Neurons are numbered row by row, ``(channel * height + row) * width +
column``; after pooling, inputs are numbered in the pooled map. ``network.json`` names the pooling
between two layers and holds all constants.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spikewire.errors import check
from spikewire.files import atomic_write, io_errors
from spikewire.formats.network import Geometry, Network, Stage

FIELDS: dict[str, Any] = {"pre": "<u4", "post": "<u4", "weight": "<f4", "delay": "<u2"}
PIECE = 2**16  # fully connected synapses per piece
Piece = dict[str, NDArray[Any]]


def write(network: Network, folder: str | Path) -> int:
    """Write ``network.json`` and one NPZ file per layer into a new folder.

    Each NPZ file has the arrays `pre` and `post` (uint32), `weight` (float32) and `delay` (uint16,
    always 0), with one entry per synapse. ``network.json`` is written last.

    Args:
        network: The network to write.
        folder: Path of the folder; it must not exist.

    Returns:
        The number of synapses in all files.

    Raises:
        SpikewireError: If the folder exists or cannot be written.

    Example:
        >>> coo.write(trace_model(model), "connections")
    """
    folder = Path(folder)
    check(not folder.exists(), "folder", str(folder), "a new one")
    layers = []
    with io_errors(folder):
        folder.mkdir(parents=True)
        for number, (stage, geometry) in enumerate(
            zip(network.stages, network.geometry, strict=True)
        ):
            name, count = f"{number}-{stage.name}.npz", count_synapses(stage, geometry)
            _write_npz(folder / name, stage, geometry, count)
            layers.append(_describe_layer(stage, geometry, name, count))
        with atomic_write(folder / "network.json") as file:
            file.write(_make_header(network, layers).encode())
    return sum(layer["synapses"] for layer in layers)


def count_synapses(stage: Stage, geometry: Geometry) -> int:
    """Return the synapses between neurons: a weight counts once per position it connects."""
    if not stage.is_conv:
        return len(stage.index)
    *_, ky, kx = np.unravel_index(stage.index, stage.shape)
    sides = zip(stage.shape[2:], geometry.inputs[1:], geometry.neurons[1:], strict=True)
    rows, columns = (
        np.array([len(_find_positions(tap, n, m, stage.padding)) for tap in range(kernel)])
        for kernel, n, m in sides
    )
    return int((rows[ky] * columns[kx]).sum())


def iterate_pieces(stage: Stage, geometry: Geometry) -> Iterator[Piece]:
    """Yield the synapses of a stage in pieces, ordered by output and then by input."""
    if stage.is_conv:
        for number in range(len(stage.index)):  # at most one synapse per position of the map
            yield _expand_tap(stage, geometry, number)
        return
    for begin in range(0, len(stage.index), PIECE):
        part = slice(begin, begin + PIECE)
        post, pre = np.divmod(stage.index[part], stage.shape[1])
        yield _make_piece(pre, post, stage.values[part])


def _expand_tap(stage: Stage, geometry: Geometry, number: int) -> Piece:
    """Return the synapses of one weight of a convolution."""
    output, c, ky, kx = map(int, np.unravel_index(stage.index[number], stage.shape))
    _, height, width = geometry.inputs
    _, out_height, out_width = geometry.neurons
    y = _find_positions(ky, height, out_height, stage.padding)[:, None]
    x = _find_positions(kx, width, out_width, stage.padding)[None, :]
    pre = (c * height + y + ky - stage.padding) * width + x + kx - stage.padding
    post = (output * out_height + y) * out_width + x
    return _make_piece(pre.ravel(), post.ravel(), np.full(pre.size, stage.values[number]))


def _find_positions(tap: int, inputs: int, outputs: int, padding: int) -> NDArray[np.int64]:
    """Return the output positions at which a tap reads an input and not the padding."""
    return np.arange(max(0, padding - tap), min(outputs, inputs + padding - tap))


def _make_piece(pre: Any, post: Any, weight: Any) -> Piece:
    columns = zip(FIELDS.items(), (pre, post, weight, np.zeros(len(pre))), strict=True)
    return {name: column.astype(dtype) for (name, dtype), column in columns}


def _make_header(network: Network, layers: list[dict[str, Any]]) -> str:
    header = {"layers": layers, "time_steps": network.time_steps, "vote": network.vote}
    header |= {"classes": network.classes, "mean": network.mean, "std": network.std}
    return json.dumps(header, indent=2) + "\n"


def _describe_layer(stage: Stage, geometry: Geometry, file: str, count: int) -> dict[str, Any]:
    return {
        "name": stage.name,
        "file": file,
        "synapses": count,
        "inputs": geometry.inputs,
        "neurons": geometry.neurons,
        "bias": stage.bias.tolist(),
        "neuron": stage.neuron and stage.neuron._asdict(),
        "pool_after": stage.pool and stage.pool._asdict(),
    }


def _write_npz(path: Path, stage: Stage, geometry: Geometry, count: int) -> None:
    """Stream the columns into the archive, one pass over the synapses per column."""
    with atomic_write(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, dtype in FIELDS.items():
            header = {"descr": dtype, "fortran_order": False, "shape": (count,)}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for piece in iterate_pieces(stage, geometry):
                    file.write(piece[name].tobytes())
