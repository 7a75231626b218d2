"""Stages on the C kernels: arrays in the layout of the kernels, and threads over outputs.

A map is one time step of one sample. Its spikes are words of 16 bits; rows are padded to whole
words. All work on arrays is a call of the kernels, so that `spikewire.runtime.program` can record
the calls and repeat them as one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spikewire.errors import check
from spikewire.formats.arrays import check_array
from spikewire.formats.network import Geometry, Pool, Stage
from spikewire.runtime.dense import Dense
from spikewire.runtime.layout import Floats, Layout, Words
from spikewire.runtime.library import (
    GROUP,
    LANES,
    PATHS,
    Call,
    make_layer_record,
    make_neuron_record,
    make_window_record,
)

Each = Callable[[Callable[[Any], None], Sequence[Any]], None]  # runs a function on all parts
MAX_PLANES = 2**12


def count_planes(pool: Pool | None) -> int:
    """Return the planes per map after a pool: one per position of the window of a sum pool."""
    return pool.size**2 if pool and pool.kind == "sum" else 1


class Layer:
    """What convolutions and fully connected layers share: records, pooling and neurons.

    Args:
        stage: The stage.
        geometry: Its shapes.
        planes: Planes per input map, as left by additions and by the pooling before.
        path: Name of the C path: a key of `PATHS`.
    """

    def __init__(self, stage: Stage, geometry: Geometry, planes: int, path: str) -> None:
        check(planes <= MAX_PLANES, f"{stage.name}: planes", planes, f"at most {MAX_PLANES}")
        self.stage, self.geometry, self.planes = stage, geometry, planes
        self.dense = Dense(stage, geometry, path)
        self.inputs, self.currents = Layout(geometry.inputs), Layout(geometry.currents)
        self.neurons, self.outputs = Layout(geometry.neurons), Layout(geometry.outputs)
        self.is_fused = stage.neuron is not None and stage.current_pool is None
        neuron = make_neuron_record(stage.neuron)
        self.fields: dict[str, Any] = {"planes": planes, "path": PATHS[path], "neuron": neuron}
        self.fields |= self.currents.fields

    def make_state(self, batch: int) -> Floats:
        """Return the membrane potentials before the first time step."""
        rest = self.stage.neuron.rest if self.stage.neuron else 0.0
        return np.full((batch, self.neurons.words * LANES), rest, np.float32)

    def make_record(self, batch: int, steps: int, **fields: Any) -> Any:
        """Return the record; the arrays belong to `self`."""
        return make_layer_record({**self.fields, **fields, "batch": batch, "steps": steps})

    def check_state(self, state: Floats, batch: int) -> None:
        """Check the membrane potentials of `batch` samples, which the kernels write."""
        shape = (batch, self.neurons.words * LANES)
        check_array(f"{self.stage.name}: state", state, np.float32, shape, writeable=True)

    def check_spikes(self, spikes: Words) -> None:
        """Check input maps ``[batch, steps, plane * word]``."""
        shape = (None, None, self.planes * self.inputs.words)
        check_array(f"{self.stage.name}: spikes", spikes, np.uint16, shape)

    def allocate_outputs(self, batch: int, steps: int) -> tuple[Any, Words | None, Floats | None]:
        """Return an array for spikes or currents, and both as arguments, one of them None."""
        if self.is_fused:
            spikes = np.empty((batch, steps, self.currents.words), np.uint16)
            return spikes, spikes, None
        currents = np.empty((batch, steps, self.currents.words * LANES), np.float32)
        return currents, None, currents

    def finish_(self, call: Call, out: Any, state: Floats) -> Words | Floats:
        """Return the outputs of a stage, from what its synapses returned."""
        if self.is_fused:
            return out
        out = self.pool_currents(call, out)
        return out if self.stage.neuron is None else self.fire_(call, out, out.shape[1], state)

    def fire_(self, call: Call, current: Floats, steps: int, state: Floats) -> Words:
        """Return the spikes of currents ``[batch, steps, ...]``; `state` is updated in place.

        Currents ``[batch, ...]`` are fed at every step.
        """
        sizes = (None, self.neurons.words * LANES)
        sizes = sizes if np.ndim(current) == 2 else (None, steps, sizes[1])
        check_array(f"{self.stage.name}: current", current, np.float32, sizes)
        batch = len(current)
        self.check_state(state, batch)
        spikes = np.empty((batch, steps, self.neurons.words), np.uint16)
        record = self.make_record(batch, steps, **self.neurons.fields)
        call("spikewire_fire", record, current, current.ndim == 2, state, spikes)
        return spikes

    def feed_spikes_densely_(self, call: Call, spikes: Words, state: Floats) -> Words | Floats:
        """Return the result of `feed_spikes_`, up to rounding, computed by dense torch."""
        self.check_spikes(spikes)
        batch, steps = spikes.shape[:2]
        maps = self.inputs.unpack(spikes).reshape(-1, self.planes, *self.geometry.inputs)
        currents = self.currents.pad_rows(self.dense(torch.from_numpy(maps)))
        out = self.pool_currents(call, currents.reshape(batch, steps, -1))
        return out if self.stage.neuron is None else self.fire_(call, out, steps, state)

    def pool_currents(self, call: Call, currents: Floats) -> Floats:
        """Return ``[..., neurons]`` of currents after the pooling before the neurons."""
        pool, wide, narrow = self.stage.current_pool, self.currents, self.neurons
        if pool is None:
            return currents
        out = np.empty((*currents.shape[:-1], narrow.words * LANES), np.float32)
        maps = math.prod(currents.shape[:-1]) * wide.channels
        sizes = (maps, wide.height, wide.width, wide.row_words * LANES)
        ends = (narrow.height, narrow.width, narrow.row_words * LANES, pool.kind == "max")
        call("spikewire_pool_currents", currents, out, *sizes, make_pool_window(pool), *ends)
        return out

    def pool(self, call: Call, spikes: Words) -> Words:
        """Return ``[batch, steps, plane * word]`` after the pooling of the stage."""
        pool, wide, narrow = self.stage.pool, self.neurons, self.outputs
        if pool is None:
            return spikes
        check_array(f"{self.stage.name}: spikes", spikes, np.uint16, (None, None, wide.words))
        out = np.empty((*spikes.shape[:2], count_planes(pool) * narrow.words), np.uint16)
        sizes = (math.prod(spikes.shape[:2]), wide.channels, wide.height, wide.row_words)
        ends = (narrow.height, narrow.row_words, narrow.tail, pool.kind == "max")
        call("spikewire_pool", spikes, out, *sizes, make_pool_window(pool), *ends)
        return out

    def read_outputs(self, call: Call, x: Any) -> Floats:
        """Return spikes or currents ``[batch, steps, ...]`` as ``[steps, batch, outputs]``."""
        batch, steps = x.shape[:2]
        out = np.empty((steps, batch, math.prod(self.neurons.shape)), np.float32)
        both = (x, None) if self.stage.neuron else (None, x)
        sizes = (self.neurons.rows, self.neurons.width, self.neurons.row_words)
        call("spikewire_read", *both, out, batch, steps, *sizes)
        return out


def make_pool_window(pool: Pool) -> Any:
    """Return the window of a pool for the kernels."""
    sizes = (pool.size, pool.step, pool.padding, 1)
    return make_window_record(*((size, size) for size in sizes))


class Conv(Layer):
    """A convolution: sparse taps over shifted spike rows; each thread has some output channels."""

    def __init__(
        self, stage: Stage, geometry: Geometry, planes: int, path: str, threads: int
    ) -> None:
        super().__init__(stage, geometry, planes, path)
        (down, right), (rows, columns) = stage.stride, stage.padding
        _, _, height, self.taps = stage.shape
        self.rows = self.inputs.height + 2 * rows
        self.lines = -(-self.rows // down)  # rows that are a stride apart, see spikewire_spread
        self.plane_words = (
            self.inputs.channels * self.taps * self.lines * down * self.currents.row_words
        )
        last = (self.currents.row_words * LANES - 1) * right + (self.taps - 1) * stage.dilation[1]
        self.row_floats = max(last + 1, self.inputs.width + columns)  # of a padded row of pixels
        self.image_floats = self.inputs.channels * self.rows * self.row_floats
        fits = max(self.plane_words * planes, self.image_floats) < 2**28
        check(fits, stage.name, geometry.inputs, "a smaller input")
        kernel = (height, self.taps)
        self.window = make_window_record(kernel, stage.stride, stage.padding, stage.dilation)
        self._locate_taps()
        self.fields |= {"plane_words": self.plane_words, "start": self.start}
        self.fields |= {"weight": stage.values, "bias": stage.bias}
        self.ranges = split_channels(self.start, threads)

    def _locate_taps(self) -> None:
        """Find where the words and pixels of each tap begin."""
        stage = self.stage
        output, c, ky, kx = stage.locate_weights()
        top, left = ky * stage.dilation[0], kx * stage.dilation[1]
        slot = top % stage.stride[0] * self.lines + top // stage.stride[0]
        shifted = (c * self.taps + kx) * self.lines * stage.stride[0] + slot
        self.offset = (shifted * self.currents.row_words).astype(np.uint32)
        self.pixel = ((c * self.rows + top) * self.row_floats + left).astype(np.uint32)
        self.start = np.searchsorted(output, np.arange(stage.shape[0] + 1)).astype(np.int64)

    @property
    def map_bytes(self) -> int:
        """Size of the shifted spikes of one map."""
        return 2 * self.plane_words * self.planes

    def feed_pixels(self, call: Call, images: Floats, each: Each) -> Floats:
        """Return the currents of real-valued images: one multiplication per tap and position."""
        check_array("images", images, np.float32, (None, *self.geometry.inputs))
        batch, (down, right) = len(images), self.stage.stride
        padded = self._pad(call, images)
        currents = np.empty((batch, self.currents.words * LANES), np.float32)
        record = self.make_record(batch, 1, offset=self.pixel)
        sizes = (self.image_floats, self.row_floats, down, right)

        def run(part: tuple[int, int]) -> None:
            call("spikewire_conv_analogue", record, padded, *sizes, currents, *part)

        each(run, self.ranges)
        return currents

    def _pad(self, call: Call, images: Floats) -> Floats:
        """Return images with zeros around them."""
        inputs, (rows, columns) = self.inputs, self.stage.padding
        shape = (len(images), inputs.channels, self.rows, self.row_floats)
        padded = np.zeros(shape, np.float32)
        inner = padded[:, :, rows:, columns:]
        sizes = (len(images) * inputs.channels, inputs.height, 4 * inputs.width)
        steps = (4 * self.rows * self.row_floats, 4 * self.row_floats)
        call("spikewire_copy", inner, images, *sizes, *steps, inputs.height * sizes[2], sizes[2])
        return padded

    def feed_spikes_(self, call: Call, spikes: Words, state: Floats, each: Each) -> Words | Floats:
        """Return spikes, or currents without neurons; `state` is updated in place."""
        self.check_spikes(spikes)
        batch, steps = spikes.shape[:2]
        self.check_state(state, batch)
        shifted = self._shift(call, spikes)
        out, spiked, currents = self.allocate_outputs(batch, steps)
        record = self.make_record(batch, steps, offset=self.offset)

        def run(part: tuple[int, int]) -> None:
            scratch = np.empty(self.currents.vectors * LANES, np.float32)
            call("spikewire_conv", record, shifted, state, scratch, spiked, currents, *part)

        each(run, self.ranges)
        return self.finish_(call, out, state)

    def _shift(self, call: Call, spikes: Words) -> Words:
        """Return the spike rows, shifted once per column of the kernel."""
        maps, inputs = math.prod(spikes.shape[:2]) * self.planes, self.inputs
        shifted = np.empty(maps * self.plane_words, np.uint16)
        sizes = (maps * inputs.channels, inputs.height, inputs.row_words)
        ends = (self.lines, self.currents.row_words)
        call("spikewire_spread", spikes, shifted, *sizes, self.window, *ends)
        return shifted


class Linear(Layer):
    """A fully connected layer: columns of the inputs that fire; each thread has some outputs."""

    map_bytes = 0

    def __init__(
        self, stage: Stage, geometry: Geometry, planes: int, path: str, threads: int
    ) -> None:
        super().__init__(stage, geometry, planes, path)
        self.words = self.currents.words
        self.bias = np.zeros(self.words * LANES, np.float32)
        self.bias[: len(stage.bias)] = stage.bias
        plane_words = self.inputs.rows * self.inputs.row_words
        self.fields |= {"plane_words": plane_words, "bias": self.bias}
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

    def feed_pixels(self, call: Call, images: Floats, each: Each) -> Floats:
        """Return the currents of real-valued images: one multiplication per synapse."""
        inputs = self.stage.shape[1]
        check_array("images", images, np.float32, (None, *self.geometry.inputs))
        batch = len(images)
        currents = np.empty((batch, self.words * LANES), np.float32)

        def run(block: tuple[int, dict[str, Any]]) -> None:
            begin, fields = block
            record = self.make_record(batch, 1, **fields)
            ends = (inputs, begin, self.words, currents)
            call("spikewire_linear_analogue", record, images, *ends)

        each(run, self.blocks)
        return currents

    def feed_spikes_(self, call: Call, spikes: Words, state: Floats, each: Each) -> Words | Floats:
        """Return spikes, or currents without neurons; `state` is updated in place."""
        self.check_spikes(spikes)
        batch, steps = spikes.shape[:2]
        self.check_state(state, batch)
        out, spiked, currents = self.allocate_outputs(batch, steps)
        sizes = (self.inputs.rows, self.inputs.row_words, self.inputs.width)

        def run(block: tuple[int, dict[str, Any]]) -> None:
            begin, fields = block
            scratch = np.empty((1 + GROUP) * fields["vectors"] * LANES, np.float32)
            events = np.empty((self.planes * self.stage.shape[1], 2), np.uint32)
            record = self.make_record(batch, steps, **fields)
            arrays = (state, scratch, events, spiked, currents)
            call("spikewire_linear", record, spikes, *sizes, begin, self.words, *arrays)

        each(run, self.blocks)
        return self.finish_(call, out, state)


def split_channels(start: NDArray[np.int64], threads: int) -> list[tuple[int, int]]:
    """Split channels into ranges with about the same number of taps."""
    channels = len(start) - 1
    if threads == 1:
        return [(0, channels)]
    goal = np.linspace(0, start[-1], 2 * threads + 1)
    edges = sorted({0, channels, *np.searchsorted(start, goal)[1:-1].tolist()})
    return [(a, b) for a, b in zip(edges, edges[1:], strict=False) if b <= channels]
