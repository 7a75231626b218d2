"""Stages on the C kernels: arrays laid out for them, and threads over outputs.

A map is one time step of one sample; its spikes are words of 16 bits, rows padded to whole words.
"""

import ctypes
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from spikewire.errors import check
from spikewire.formats.network import Geometry, Pool, Shape, Stage
from spikewire.runtime.dense import Dense
from spikewire.runtime.library import GROUP, LANES, PATHS, layer_record, neuron_record

Words = NDArray[np.uint16]
Floats = NDArray[np.float32]


def words(width: int) -> int:
    """Words that hold `width` bits."""
    return -(-width // LANES)


def tail(width: int) -> int:
    """Bits in use of the last word of a row."""
    return 0xFFFF >> (-width % LANES)


def image_shape(shape: Shape) -> Shape:
    """Return a shape of three; a vector is one row of one channel."""
    return shape if len(shape) == 3 else (1, 1, *shape)


def unpack(spikes: Words, shape: Shape) -> NDArray[np.bool_]:
    """Return words ``[..., word]`` of maps of `shape` as ``[maps, *shape]``."""
    c, h, w = image_shape(shape)
    rows = spikes.reshape(-1, c, h, words(w)).astype("<u2").view(np.uint8)
    return np.unpackbits(rows, axis=-1, bitorder="little", count=w).astype(bool).reshape(-1, *shape)


class Layer:
    """What convolution and full connection share: a record for the kernels, and pooling."""

    def __init__(self, stage: Stage, place: Geometry, planes: int, path: str) -> None:
        self.stage, self.place, self.planes = stage, place, planes
        self.dense = Dense(stage, place, path)
        channels, height, width = image_shape(place.neurons)
        self.row_words = words(width)
        self.vectors = height * self.row_words
        self.words = channels * self.vectors
        self.fields: dict[str, Any] = {
            "planes": planes,
            "channels": channels,
            "vectors": self.vectors,
            "row_words": self.row_words,
            "tail": tail(width),
            "path": PATHS[path],
            "neuron": neuron_record(stage.neuron),
        }

    def rest(self, batch: int) -> Floats:
        """Return membranes before the first step."""
        rest = self.stage.neuron.rest if self.stage.neuron else 0.0
        return np.full((batch, self.words * LANES), rest, np.float32)

    def record(self, batch: int, steps: int, **fields: Any) -> Any:
        """Return a pointer to the record; the arrays belong to `self`."""
        return ctypes.byref(layer_record({**self.fields, **fields, "batch": batch, "steps": steps}))

    def fire(self, library: Any, current: Floats, steps: int, state: Floats) -> Words:
        """Feed one current at every step."""
        batch = len(current)
        spikes = np.empty((batch, steps, self.words), np.uint16)
        pointers = (array.ctypes.data for array in (current, state, spikes))
        library.spikewire_fire(self.record(batch, steps), *pointers)
        return spikes

    def densely(self, library: Any, spikes: Words, state: Floats) -> Words | Floats:
        """Return what `spiking` does, up to rounding, by way of dense torch."""
        batch, steps = spikes.shape[:2]
        maps = unpack(spikes, self.place.inputs).reshape(-1, self.planes, *self.place.inputs)
        currents = self.lay_out(self.dense(torch.from_numpy(maps))).reshape(batch, steps, -1)
        if self.stage.neuron is None:
            return currents
        now = np.ascontiguousarray(currents.swapaxes(0, 1))
        return np.concatenate([self.fire(library, each, 1, state) for each in now], 1)

    def lay_out(self, currents: torch.Tensor) -> Floats:
        """Return torch's currents ``[maps, *neurons]`` with rows of whole words."""
        channels, height, width = image_shape(self.place.neurons)
        rows = currents.reshape(-1, channels, height, width)
        rows = functional.pad(rows, (0, self.row_words * LANES - width))
        return rows.flatten(1).numpy()

    def pool(self, library: Any, spikes: Words) -> Words:
        """Return ``[batch, steps, plane * word]`` after the stage's pooling."""
        if self.stage.pool is None:
            return spikes
        channels, height, _ = image_shape(self.place.neurons)
        _, low, narrow = image_shape(self.place.outputs)
        maps, merge = math.prod(spikes.shape[:2]), self.stage.pool.kind == "max"
        planes = planes_after(self.stage.pool)
        out = np.empty((*spikes.shape[:2], planes * channels * low * words(narrow)), np.uint16)
        sizes = (maps, channels, height, self.row_words, self.stage.pool.size, low, words(narrow))
        library.spikewire_pool(spikes.ctypes.data, out.ctypes.data, *sizes, tail(narrow), merge)
        return out


def planes_after(pool: Pool | None) -> int:
    """Planes that a stage hands on: one for each position of a window that is summed."""
    return pool.size**2 if pool and pool.kind == "sum" else 1


class Conv(Layer):
    """Sparse taps over shifted spike rows; threads share the output channels."""

    def __init__(self, stage: Stage, place: Geometry, planes: int, path: str, threads: int) -> None:
        super().__init__(stage, place, planes, path)
        outputs, inputs, _, self.taps = stage.shape
        _, self.height, self.width = place.inputs
        self.rows = self.height + 2 * stage.padding
        output, c, ky, kx = np.unravel_index(stage.index, stage.shape)
        self.plane_words = inputs * self.taps * self.rows * self.row_words
        self.wide = self.row_words * LANES + self.taps - 1  # floats in a padded row of pixels
        self.image = inputs * self.rows * self.wide
        check(max(self.plane_words, self.image) < 2**28, stage.name, place.inputs, "smaller maps")
        spread = ((c * self.taps + kx) * self.rows + ky) * self.row_words
        self.offset = spread.astype(np.uint32)
        self.pixel = ((c * self.rows + ky) * self.wide + kx).astype(np.uint32)
        self.start = np.searchsorted(output, np.arange(outputs + 1)).astype(np.int64)
        self.fields |= {"plane_words": self.plane_words, "start": self.start}
        self.fields |= {"weight": stage.values, "bias": stage.bias}
        self.ranges = split(self.start, threads)

    @property
    def bytes(self) -> int:
        """Of one map's shifted spikes."""
        return 2 * self.plane_words * self.planes

    def analogue(self, library: Any, images: Floats, each: Any) -> Floats:
        """Return the currents of pixels: a multiplication a tap."""
        batch, p = len(images), self.stage.padding
        padded = np.zeros((batch, self.stage.shape[1], self.rows, self.wide), np.float32)
        padded[:, :, p : p + self.height, p : p + self.width] = images
        currents = np.empty((batch, self.words * LANES), np.float32)
        record = self.record(batch, 1, offset=self.pixel)
        source, to = padded.ctypes.data, currents.ctypes.data

        def run(part: tuple[int, int]) -> None:
            library.spikewire_conv_analogue(record, source, self.image, self.wide, to, *part)

        each(run, self.ranges)
        return currents

    def spiking(self, library: Any, spikes: Words, state: Floats, each: Any) -> Words | Floats:
        """Return spikes, or currents where no neurons follow."""
        batch, steps = spikes.shape[:2]
        maps = batch * steps * self.planes * self.stage.shape[1]
        masks = np.empty(batch * steps * self.planes * self.plane_words, np.uint16)
        sizes = (maps, self.height, words(self.width), self.taps, self.stage.padding)
        library.spikewire_spread(spikes.ctypes.data, masks.ctypes.data, *sizes, self.row_words)
        out, spiked, current = outputs_of(self, batch, steps)
        record = self.record(batch, steps, offset=self.offset)
        source, at = masks.ctypes.data, state.ctypes.data

        def run(part: tuple[int, int]) -> None:
            scratch = np.empty(self.vectors * LANES, np.float32)
            library.spikewire_conv(record, source, at, scratch.ctypes.data, spiked, current, *part)

        each(run, self.ranges)
        return out


class Linear(Layer):
    """Columns of the inputs that fire, with 16-bit outputs; threads share blocks of outputs."""

    bytes = 0

    def __init__(self, stage: Stage, place: Geometry, planes: int, path: str, threads: int) -> None:
        super().__init__(stage, place, planes, path)
        channels, height, self.width = image_shape(place.inputs)
        self.rows = channels * height
        self.bias = np.zeros(self.words * LANES, np.float32)
        self.bias[: len(stage.bias)] = stage.bias
        self.fields |= {"plane_words": self.rows * words(self.width), "bias": self.bias}
        output, source = np.divmod(stage.index, stage.shape[1])
        order = np.lexsort((output, source))
        output, source, values = output[order], source[order], stage.values[order]
        count = max(min(threads, self.words), -(-self.words * LANES // 2**16))
        edges = np.linspace(0, self.words, count + 1).astype(int).tolist()
        self.blocks = [
            self._block(output, source, values, first, last)
            for first, last in zip(edges, edges[1:], strict=False)
        ]

    def _block(
        self, output: Any, source: Any, values: Any, first: int, last: int
    ) -> dict[str, Any]:
        mine = (output >= first * LANES) & (output < last * LANES)
        bounds = np.searchsorted(source[mine], np.arange(self.stage.shape[1] + 1))
        return {
            "begin": first,
            "vectors": last - first,
            "start": bounds.astype(np.int64),
            "post": (output[mine] - first * LANES).astype(np.uint16),
            "weight": np.ascontiguousarray(values[mine]),
        }

    def analogue(self, library: Any, images: Floats, each: Any) -> Floats:
        """Return the currents of pixels: a multiplication a synapse."""
        flat = np.ascontiguousarray(images.reshape(len(images), -1))
        currents = np.empty((len(flat), self.words * LANES), np.float32)

        def run(block: dict[str, Any]) -> None:
            begin, fields = block["begin"], {k: v for k, v in block.items() if k != "begin"}
            where = (flat.ctypes.data, flat.shape[1], begin, self.words, currents.ctypes.data)
            library.spikewire_linear_analogue(self.record(len(flat), 1, **fields), *where)

        each(run, self.blocks)
        return currents

    def spiking(self, library: Any, spikes: Words, state: Floats, each: Any) -> Words | Floats:
        """Return spikes, or currents where no neurons follow."""
        batch, steps = spikes.shape[:2]
        out, spiked, current = outputs_of(self, batch, steps)
        sizes = (self.rows, words(self.width), self.width)
        source, at = spikes.ctypes.data, state.ctypes.data

        def run(block: dict[str, Any]) -> None:
            begin, fields = block["begin"], {k: v for k, v in block.items() if k != "begin"}
            scratch = np.empty((1 + GROUP) * block["vectors"] * LANES, np.float32)
            record = self.record(batch, steps, **fields)
            events = np.empty((self.planes * self.stage.shape[1], 2), np.uint32)
            room = (at, scratch.ctypes.data, events.ctypes.data, spiked, current)
            library.spikewire_linear(record, source, *sizes, begin, self.words, *room)

        each(run, self.blocks)
        return out


def outputs_of(layer: Layer, batch: int, steps: int) -> tuple[Any, int | None, int | None]:
    """Return room for a stage's spikes or currents, and the pointers to both, one of them None."""
    if layer.stage.neuron:
        out = np.empty((batch, steps, layer.words), np.uint16)
        return out, out.ctypes.data, None
    out = np.empty((batch, steps, layer.words * LANES), np.float32)
    return out, None, out.ctypes.data


def split(start: NDArray[np.int64], threads: int) -> list[tuple[int, int]]:
    """Share channels out so that each part has about as many taps."""
    channels = len(start) - 1
    if threads == 1:
        return [(0, channels)]
    goal = np.linspace(0, start[-1], 2 * threads + 1)
    edges = sorted({0, channels, *np.searchsorted(start, goal)[1:-1].tolist()})
    return [(a, b) for a, b in zip(edges, edges[1:], strict=False) if b <= channels]
