"""Stages on the C kernels: arrays in the layout of the kernels, and threads over outputs.

A map is one time step of one sample. Its spikes are words of 16 bits; rows are padded to whole
words.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from spikewire.errors import check
from spikewire.formats.arrays import get_address
from spikewire.formats.network import Geometry, Pool, Shape, Stage
from spikewire.runtime.dense import Dense
from spikewire.runtime.library import GROUP, LANES, PATHS, make_layer_record, make_neuron_record

Words = NDArray[np.uint16]
Floats = NDArray[np.float32]
Each = Callable[[Callable[[Any], None], Sequence[Any]], None]  # runs a function on all parts


def count_words(width: int) -> int:
    """Return the number of words that hold `width` bits."""
    return -(-width // LANES)


def tail_mask(width: int) -> int:
    """Return the bits in use in the last word of a row of `width` bits."""
    return 0xFFFF >> (-width % LANES)


def as_map_shape(shape: Shape) -> Shape:
    """Return a shape of (channels, height, width); a vector is one row of one channel."""
    return shape if len(shape) == 3 else (1, 1, *shape)


def count_planes(pool: Pool | None) -> int:
    """Return the planes per map after a pool: one per position of the window of a sum pool."""
    return pool.size**2 if pool and pool.kind == "sum" else 1


def unpack(spikes: Words, shape: Shape) -> NDArray[np.bool_]:
    """Return words ``[..., word]`` of maps of `shape` as booleans ``[maps, *shape]``."""
    c, h, w = as_map_shape(shape)
    rows = spikes.reshape(-1, c, h, count_words(w)).astype("<u2").view(np.uint8)
    return np.unpackbits(rows, axis=-1, bitorder="little", count=w).astype(bool).reshape(-1, *shape)


class Layer:
    """What convolutions and fully connected layers share: a record for the kernels, and pooling.

    Args:
        stage: The stage.
        geometry: Its shapes.
        planes: Planes per input map, as left by the pooling before.
        path: Name of the C path: a key of `PATHS`.
    """

    def __init__(self, stage: Stage, geometry: Geometry, planes: int, path: str) -> None:
        self.stage, self.geometry, self.planes = stage, geometry, planes
        self.dense = Dense(stage, geometry, path)
        channels, height, width = as_map_shape(geometry.neurons)
        self.row_words = count_words(width)
        self.vectors = height * self.row_words
        self.words = channels * self.vectors
        self.fields: dict[str, Any] = {
            "planes": planes,
            "channels": channels,
            "vectors": self.vectors,
            "row_words": self.row_words,
            "tail": tail_mask(width),
            "path": PATHS[path],
            "neuron": make_neuron_record(stage.neuron),
        }

    def make_state(self, batch: int) -> Floats:
        """Return the membrane potentials before the first time step."""
        rest = self.stage.neuron.rest if self.stage.neuron else 0.0
        return np.full((batch, self.words * LANES), rest, np.float32)

    def make_record(self, batch: int, steps: int, **fields: Any) -> Any:
        """Return a pointer to the record; the arrays belong to `self`."""
        fields = {**self.fields, **fields, "batch": batch, "steps": steps}
        return ctypes.byref(make_layer_record(fields))

    def get_state_address(self, state: Floats, batch: int) -> int:
        """Return the address of the membrane potentials of `batch` samples."""
        shape = (batch, self.words * LANES)
        return get_address(f"{self.stage.name}: state", state, np.float32, shape, writeable=True)

    def get_spikes_address(self, spikes: Words) -> int:
        """Return the address of input maps ``[batch, steps, plane * word]``."""
        channels, height, width = as_map_shape(self.geometry.inputs)
        words = self.planes * channels * height * count_words(width)
        field = f"{self.stage.name}: spikes"
        return get_address(field, spikes, np.uint16, (None, None, words))

    def allocate_outputs(self, batch: int, steps: int) -> tuple[Any, int | None, int | None]:
        """Return an array for spikes or currents, and the pointers to both, one of them None."""
        if self.stage.neuron:
            spikes = np.empty((batch, steps, self.words), np.uint16)
            return spikes, spikes.ctypes.data, None
        currents = np.empty((batch, steps, self.words * LANES), np.float32)
        return currents, None, currents.ctypes.data

    def fire_(self, library: Any, current: Floats, steps: int, state: Floats) -> Words:
        """Return the spikes of the same current at every step; `state` is updated in place."""
        shape = (None, self.words * LANES)
        source = get_address(f"{self.stage.name}: current", current, np.float32, shape)
        batch = len(current)
        at = self.get_state_address(state, batch)
        spikes = np.empty((batch, steps, self.words), np.uint16)
        library.spikewire_fire(self.make_record(batch, steps), source, at, spikes.ctypes.data)
        return spikes

    def feed_spikes_densely_(self, library: Any, spikes: Words, state: Floats) -> Words | Floats:
        """Return the result of `feed_spikes_`, up to rounding, computed by dense torch."""
        batch, steps = spikes.shape[:2]
        maps = unpack(spikes, self.geometry.inputs)
        maps = torch.from_numpy(maps.reshape(-1, self.planes, *self.geometry.inputs))
        currents = self.pad_rows(self.dense(maps)).reshape(batch, steps, -1)
        if self.stage.neuron is None:
            return currents
        by_step = np.ascontiguousarray(currents.swapaxes(0, 1))
        return np.concatenate([self.fire_(library, now, 1, state) for now in by_step], 1)

    def pad_rows(self, currents: torch.Tensor) -> Floats:
        """Return currents ``[maps, *neurons]`` of torch with rows of whole words."""
        channels, height, width = as_map_shape(self.geometry.neurons)
        rows = currents.reshape(-1, channels, height, width)
        rows = functional.pad(rows, (0, self.row_words * LANES - width))
        return rows.flatten(1).numpy()

    def pool(self, library: Any, spikes: Words) -> Words:
        """Return ``[batch, steps, plane * word]`` after the pooling of the stage."""
        if self.stage.pool is None:
            return spikes
        kind, size = self.stage.pool
        shape = (None, None, self.words)
        source = get_address(f"{self.stage.name}: spikes", spikes, np.uint16, shape)
        channels, height, _ = as_map_shape(self.geometry.neurons)
        _, rows, columns = as_map_shape(self.geometry.outputs)
        words = count_words(columns)
        planes = count_planes(self.stage.pool)
        out = np.empty((*spikes.shape[:2], planes * channels * rows * words), np.uint16)
        maps = math.prod(spikes.shape[:2])
        sizes = (maps, channels, height, self.row_words, size, rows, words)
        ends = (tail_mask(columns), kind == "max")
        library.spikewire_pool(source, out.ctypes.data, *sizes, *ends)
        return out


class Conv(Layer):
    """A convolution: sparse taps over shifted spike rows; each thread has some output channels."""

    def __init__(
        self, stage: Stage, geometry: Geometry, planes: int, path: str, threads: int
    ) -> None:
        super().__init__(stage, geometry, planes, path)
        outputs, inputs, _, self.taps = stage.shape
        _, self.height, self.width = geometry.inputs
        self.rows = self.height + 2 * stage.padding
        self.plane_words = inputs * self.taps * self.rows * self.row_words
        self.row_floats = self.row_words * LANES + self.taps - 1  # of a padded row of pixels
        self.image_floats = inputs * self.rows * self.row_floats
        fits = max(self.plane_words, self.image_floats) < 2**28
        check(fits, stage.name, geometry.inputs, "a smaller input")
        output, c, ky, kx = np.unravel_index(stage.index, stage.shape)
        shifted = ((c * self.taps + kx) * self.rows + ky) * self.row_words
        self.offset = shifted.astype(np.uint32)
        self.pixel = ((c * self.rows + ky) * self.row_floats + kx).astype(np.uint32)
        self.start = np.searchsorted(output, np.arange(outputs + 1)).astype(np.int64)
        self.fields |= {"plane_words": self.plane_words, "start": self.start}
        self.fields |= {"weight": stage.values, "bias": stage.bias}
        self.ranges = split_channels(self.start, threads)

    @property
    def map_bytes(self) -> int:
        """Size of the shifted spikes of one map."""
        return 2 * self.plane_words * self.planes

    def feed_pixels(self, library: Any, images: Floats, each: Each) -> Floats:
        """Return the currents of real-valued images: one multiplication per tap and position."""
        batch, p = len(images), self.stage.padding
        padded = np.zeros((batch, self.stage.shape[1], self.rows, self.row_floats), np.float32)
        padded[:, :, p : p + self.height, p : p + self.width] = images
        currents = np.empty((batch, self.words * LANES), np.float32)
        record = self.make_record(batch, 1, offset=self.pixel)
        source, sizes = padded.ctypes.data, (self.image_floats, self.row_floats)
        target = currents.ctypes.data

        def run(part: tuple[int, int]) -> None:
            library.spikewire_conv_analogue(record, source, *sizes, target, *part)

        each(run, self.ranges)
        return currents

    def feed_spikes_(
        self, library: Any, spikes: Words, state: Floats, each: Each
    ) -> Words | Floats:
        """Return spikes, or currents without neurons; `state` is updated in place."""
        shifted = self._shift(library, spikes)
        batch, steps = spikes.shape[:2]
        out, spiked, current = self.allocate_outputs(batch, steps)
        record = self.make_record(batch, steps, offset=self.offset)
        source, at = shifted.ctypes.data, self.get_state_address(state, batch)

        def run(part: tuple[int, int]) -> None:
            scratch = np.empty(self.vectors * LANES, np.float32)
            library.spikewire_conv(record, source, at, scratch.ctypes.data, spiked, current, *part)

        each(run, self.ranges)
        return out

    def _shift(self, library: Any, spikes: Words) -> Words:
        """Return the spike rows, shifted once per column of the kernel."""
        source = self.get_spikes_address(spikes)
        maps = math.prod(spikes.shape[:2]) * self.planes
        shifted = np.empty(maps * self.plane_words, np.uint16)
        sizes = (maps * self.stage.shape[1], self.height, count_words(self.width))
        ends = (self.taps, self.stage.padding, self.row_words)
        library.spikewire_spread(source, shifted.ctypes.data, *sizes, *ends)
        return shifted


class Linear(Layer):
    """A fully connected layer: columns of the inputs that fire; each thread has some outputs."""

    map_bytes = 0

    def __init__(
        self, stage: Stage, geometry: Geometry, planes: int, path: str, threads: int
    ) -> None:
        super().__init__(stage, geometry, planes, path)
        channels, height, self.width = as_map_shape(geometry.inputs)
        self.rows = channels * height
        self.bias = np.zeros(self.words * LANES, np.float32)
        self.bias[: len(stage.bias)] = stage.bias
        self.fields |= {"plane_words": self.rows * count_words(self.width), "bias": self.bias}
        output, source = np.divmod(stage.index, stage.shape[1])
        order = np.lexsort((output, source))
        sorted_ = (output[order], source[order], stage.values[order])
        # the kernels number the outputs of a block with 16 bits
        count = max(min(threads, self.words), -(-self.words * LANES // 2**16))
        edges = np.linspace(0, self.words, count + 1).astype(int).tolist()
        self.blocks = [
            (first, self._make_block(*sorted_, first, last))
            for first, last in zip(edges, edges[1:], strict=False)
        ]

    def _make_block(
        self, output: Any, source: Any, values: Any, first: int, last: int
    ) -> dict[str, Any]:
        """Return the fields of the record for the words `first` to `last` of the outputs."""
        own = (output >= first * LANES) & (output < last * LANES)
        bounds = np.searchsorted(source[own], np.arange(self.stage.shape[1] + 1))
        return {
            "vectors": last - first,
            "start": bounds.astype(np.int64),
            "post": (output[own] - first * LANES).astype(np.uint16),
            "weight": np.ascontiguousarray(values[own]),
        }

    def feed_pixels(self, library: Any, images: Floats, each: Each) -> Floats:
        """Return the currents of real-valued images: one multiplication per synapse."""
        flat = np.ascontiguousarray(images.reshape(len(images), -1))
        currents = np.empty((len(flat), self.words * LANES), np.float32)
        shape = (None, self.stage.shape[1])
        source = get_address(f"{self.stage.name}: images", flat, np.float32, shape)

        def run(block: tuple[int, dict[str, Any]]) -> None:
            begin, fields = block
            where = (source, flat.shape[1], begin, self.words, currents.ctypes.data)
            library.spikewire_linear_analogue(self.make_record(len(flat), 1, **fields), *where)

        each(run, self.blocks)
        return currents

    def feed_spikes_(
        self, library: Any, spikes: Words, state: Floats, each: Each
    ) -> Words | Floats:
        """Return spikes, or currents without neurons; `state` is updated in place."""
        source = self.get_spikes_address(spikes)
        batch, steps = spikes.shape[:2]
        at = self.get_state_address(state, batch)
        out, spiked, current = self.allocate_outputs(batch, steps)
        sizes = (self.rows, count_words(self.width), self.width)

        def run(block: tuple[int, dict[str, Any]]) -> None:
            begin, fields = block
            scratch = np.empty((1 + GROUP) * fields["vectors"] * LANES, np.float32)
            events = np.empty((self.planes * self.stage.shape[1], 2), np.uint32)
            record = self.make_record(batch, steps, **fields)
            arrays = (at, scratch.ctypes.data, events.ctypes.data, spiked, current)
            library.spikewire_linear(record, source, *sizes, begin, self.words, *arrays)

        each(run, self.blocks)
        return out


def split_channels(start: NDArray[np.int64], threads: int) -> list[tuple[int, int]]:
    """Split channels into ranges with about the same number of taps."""
    channels = len(start) - 1
    if threads == 1:
        return [(0, channels)]
    goal = np.linspace(0, start[-1], 2 * threads + 1)
    edges = sorted({0, channels, *np.searchsorted(start, goal)[1:-1].tolist()})
    return [(a, b) for a, b in zip(edges, edges[1:], strict=False) if b <= channels]
