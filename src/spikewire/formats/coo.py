"""Connection lists for simulators and chips: (pre, post, weight, delay) between single neurons.

One file per layer, written in pieces, because the 37 million synapses of a convolution would not
fit in memory at once. Neurons are numbered row by row, ``(channel * height + row) * width +
column``; after pooling, inputs are numbered in the pooled map. ``network.json`` names the pooling
between two layers and holds all constants. A layer with several `sources` reads the sum of their
spikes. Where currents are pooled before the neurons, `post` numbers the positions before pooling.
Spikes arrive in the time step in which they are fired, `delay` 0; those of recurrent neurons arrive
at the same neurons one step later, `delay` 1.
"""

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spikewire.errors import SpikewireError
from spikewire.files import atomic_folder, atomic_write, io_errors, make_folder
from spikewire.formats.network import Geometry, Network, Stage

FIELDS: dict[str, Any] = {"pre": "<u4", "post": "<u4", "weight": "<f4", "delay": "<u2"}
PIECE = 2**16  # fully connected synapses per piece
Piece = dict[str, NDArray[Any]]


def write(network: Network, folder: str | Path) -> int:
    """Write ``network.json`` and one NPZ file per layer into a new folder.

    Each NPZ file has the arrays `pre` and `post` (uint32), `weight` (float32) and `delay` (uint16,
    in time steps), with one entry per synapse. The folder appears under its name once it is
    complete.

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
    if os.path.lexists(folder):
        raise SpikewireError(f"{folder}: exists; connection lists are written into a new folder")
    layers = []
    with io_errors(folder):
        if not folder.parent.is_dir():
            make_folder(folder.parent)
        with atomic_folder(folder) as temporary:
            for number, (stage, geometry) in enumerate(
                zip(network.stages, network.geometry, strict=True)
            ):
                name, count = f"{number}-{stage.name}.npz", count_synapses(stage, geometry)
                delay = int(number in network.recurrent)
                pieces = partial(iterate_pieces, stage, geometry, delay)
                _write_npz(temporary / name, pieces, count)
                layers.append(_describe_layer(network, number, name, count))
            with atomic_write(temporary / "network.json") as file:
                file.write(_make_header(network, layers).encode())
    return sum(layer["synapses"] for layer in layers)


def count_synapses(stage: Stage, geometry: Geometry) -> int:
    """Return the synapses between neurons: a weight counts once per position it connects."""
    if not stage.is_conv:
        return len(stage.index)
    *_, ky, kx = stage.locate_weights()
    rows, columns = (
        np.array(
            [len(_find_positions(stage, geometry, side, k)) for k in range(stage.shape[2 + side])]
        )
        for side in (0, 1)
    )
    return int((rows[ky] * columns[kx]).sum())


def iterate_pieces(stage: Stage, geometry: Geometry, delay: int = 0) -> Iterator[Piece]:
    """Yield the synapses of a stage in pieces, ordered by output and then by input."""
    if stage.is_conv:
        weights = zip(*map(np.ndarray.tolist, stage.locate_weights()), stage.values, strict=True)
        for position in weights:  # at most one synapse per position of the map
            yield _expand_tap(stage, geometry, *position)
        return
    for begin in range(0, len(stage.index), PIECE):
        part = slice(begin, begin + PIECE)
        post, pre = np.divmod(stage.index[part], stage.shape[1])
        yield _make_piece(pre, post, stage.values[part], delay)


def _expand_tap(
    stage: Stage, geometry: Geometry, output: int, c: int, ky: int, kx: int, weight: float
) -> Piece:
    """Return the synapses of one weight of a convolution."""
    _, height, width = geometry.inputs
    _, out_height, out_width = geometry.currents
    y = _find_positions(stage, geometry, 0, ky)[:, None]
    x = _find_positions(stage, geometry, 1, kx)[None, :]
    rows = y * stage.stride[0] + ky * stage.dilation[0] - stage.padding[0]
    columns = x * stage.stride[1] + kx * stage.dilation[1] - stage.padding[1]
    pre = (c * height + rows) * width + columns
    post = (output * out_height + y) * out_width + x
    return _make_piece(pre.ravel(), post.ravel(), np.full(pre.size, weight))


def _find_positions(stage: Stage, geometry: Geometry, side: int, tap: int) -> NDArray[np.int64]:
    """Return the output positions at which a tap reads an input and not the padding."""
    positions = np.arange(geometry.currents[1 + side])
    read = positions * stage.stride[side] + tap * stage.dilation[side] - stage.padding[side]
    return positions[(read >= 0) & (read < geometry.inputs[1 + side])]


def _make_piece(pre: Any, post: Any, weight: Any, delay: int = 0) -> Piece:
    columns = zip(FIELDS.items(), (pre, post, weight, np.full(len(pre), delay)), strict=True)
    return {name: column.astype(dtype) for (name, dtype), column in columns}


def _make_header(network: Network, layers: list[dict[str, Any]]) -> str:
    header = {"layers": layers, "time_steps": network.time_steps, "vote": network.vote}
    header["membrane"] = network.membrane
    header |= {"classes": network.classes, "mean": network.mean, "std": network.std}
    return json.dumps(header, indent=2) + "\n"


def _describe_layer(network: Network, number: int, file: str, count: int) -> dict[str, Any]:
    stage, geometry = network.stages[number], network.geometry[number]
    return {
        "name": stage.name,
        "file": file,
        "synapses": count,
        "sources": [
            {"name": network.name_of(source), "pooled": source.pooled}
            for source in network.sources[number]
        ],
        "adds_currents_of": [network.stages[added].name for added in stage.adds],
        "inputs": geometry.inputs,
        "neurons": geometry.neurons,
        "bias": stage.bias.tolist(),
        "pool_before_neuron": stage.current_pool and stage.current_pool._asdict(),
        "neuron": stage.neuron and stage.neuron._asdict(),
        "pool_after": stage.pool and stage.pool._asdict(),
    }


def _write_npz(path: Path, pieces: Callable[[], Iterator[Piece]], count: int) -> None:
    """Stream the columns into the archive, one pass over the synapses per column."""
    with atomic_write(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, dtype in FIELDS.items():
            header = {"descr": dtype, "fortran_order": False, "shape": (count,)}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for piece in pieces():
                    file.write(piece[name].tobytes())
