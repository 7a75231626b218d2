"""Connection lists for simulators and chips: (pre, post, weight, delay) between single neurons.

One file a layer, written in pieces: a convolution's 37 million synapses never sit in memory at
once. Neurons count row by row, ``(channel * height + row) * width + column``. Layers after pooling
count the pooled map; ``network.json`` says which pooling lies between, and all constants.
"""

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spikewire.errors import SpikewireError, check, unknown
from spikewire.formats.network import Geometry, Network, Stage

KINDS = ("npz", "csv")
FIELDS: dict[str, Any] = {"pre": "<u4", "post": "<u4", "weight": "<f4", "delay": "<u2"}
PIECE = 2**16  # fully connected synapses at once
Piece = dict[str, NDArray[Any]]


def write(network: Network, folder: str | Path, kind: str = "npz") -> int:
    """Write ``network.json`` and a file a layer into a new folder; return the synapses in all."""
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    folder = Path(folder)
    check(not folder.exists(), "folder", str(folder), "a new one")
    put = _write_npz if kind == "npz" else _write_csv
    layers = []
    try:
        folder.mkdir(parents=True)
        for number, (stage, place) in enumerate(zip(network.stages, network.geometry, strict=True)):
            name = f"{number}-{stage.name}.{kind}"
            count = synapses(stage, place)
            put(folder / name, lambda s=stage, p=place: pieces(s, p), count)
            layers.append(_about(stage, place, name, count))
        header = {"layers": layers, "time_steps": network.time_steps, "vote": network.vote}
        header |= {"classes": network.classes, "mean": network.mean, "std": network.std}
        (folder / "network.json").write_text(json.dumps(header, indent=2) + "\n")
    except OSError as error:
        raise SpikewireError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return sum(layer["synapses"] for layer in layers)


def synapses(stage: Stage, place: Geometry) -> int:
    """Count synapses between neurons: a tap once for each position where it meets the map."""
    if len(stage.shape) == 2:
        return len(stage.index)
    *_, ky, kx = np.unravel_index(stage.index, stage.shape)
    rows, columns = (
        np.array([len(_reach(k, n, m, stage.padding)) for k in range(size)])
        for size, n, m in zip(stage.shape[2:], place.inputs[1:], place.neurons[1:], strict=True)
    )
    return int((rows[ky] * columns[kx]).sum())


def pieces(stage: Stage, place: Geometry) -> Iterator[Piece]:
    """Yield the synapses of a stage, by output and then by input."""
    if len(stage.shape) == 2:
        for begin in range(0, len(stage.index), PIECE):
            here = slice(begin, begin + PIECE)
            post, pre = np.divmod(stage.index[here], stage.shape[1])
            yield _piece(pre, post, stage.values[here])
        return
    for begin in range(len(stage.index)):  # one tap is at most one map of synapses
        yield _tap(stage, place, begin)


def _tap(stage: Stage, place: Geometry, number: int) -> Piece:
    output, c, ky, kx = map(int, np.unravel_index(stage.index[number], stage.shape))
    _, height, width = place.inputs
    _, tall, wide = place.neurons
    y = _reach(ky, height, tall, stage.padding)[:, None]
    x = _reach(kx, width, wide, stage.padding)[None, :]
    pre = (c * height + y + ky - stage.padding) * width + x + kx - stage.padding
    post = (output * tall + y) * wide + x
    return _piece(pre.ravel(), post.ravel(), np.full(pre.size, stage.values[number]))


def _reach(tap: int, inputs: int, outputs: int, padding: int) -> NDArray[np.int64]:
    """Return the output positions at which a tap meets the map and not its padding."""
    return np.arange(max(0, padding - tap), min(outputs, inputs + padding - tap))


def _piece(pre: Any, post: Any, weight: Any) -> Piece:
    columns = zip(FIELDS.items(), (pre, post, weight, np.zeros(len(pre))), strict=True)
    return {name: column.astype(kind) for (name, kind), column in columns}


def _about(stage: Stage, place: Geometry, file: str, count: int) -> dict[str, Any]:
    return {
        "name": stage.name,
        "file": file,
        "synapses": count,
        "inputs": place.inputs,
        "neurons": place.neurons,
        "bias": stage.bias.tolist(),
        "neuron": stage.neuron and stage.neuron._asdict(),
        "pool_after": stage.pool and stage.pool._asdict(),
    }


def _write_npz(path: Path, parts: Callable[[], Iterator[Piece]], count: int) -> None:
    """Stream each column into the archive, going through the synapses once a column."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, kind in FIELDS.items():
            header = {"descr": kind, "fortran_order": False, "shape": (count,)}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for part in parts():
                    file.write(part[name].tobytes())


def _write_csv(path: Path, parts: Callable[[], Iterator[Piece]], count: int) -> None:
    with path.open("w") as file:
        file.write(",".join(FIELDS) + "\n")
        for part in parts():
            columns = (column.tolist() for column in part.values())
            file.writelines(f"{a},{b},{w!r},{d}\n" for a, b, w, d in zip(*columns, strict=True))
