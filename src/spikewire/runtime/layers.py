"""Stages on the C kernels: arrays in the layout of the kernels, and threads over outputs.

A map is one time step of one sample. Its spikes are words of 16 bits; rows are padded to whole
words. All work on arrays is a call of the kernels, so that `spikewire.runtime.program` can record
the calls and repeat them as one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spikewire.errors import check
from spikewire.formats.arrays import check_array
from spikewire.formats.network import Geometry, Stage
from spikewire.runtime.layer import Added, Layer, State
from spikewire.runtime.layout import Floats, Words
from spikewire.runtime.library import (
    GROUP,
    LANES,
    Call,
    make_window_record,
)

Each = Callable[[Callable[[Any], None], Sequence[Any]], None]  # runs a function on all parts


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

    def feed_spikes_(
        self, call: Call, spikes: Words, state: State, each: Each, added: Added = ()
    ) -> Words | Floats:
        """Return spikes, or currents without neurons; `state` is updated in place."""
        self.check_spikes(spikes)
        batch, steps = spikes.shape[:2]
        self.check_state(state, batch)
        shifted = self._shift(call, spikes)
        voltage, (out, spiked, currents) = state["voltage"], self.allocate_outputs(batch, steps)
        record = self.make_record(batch, steps, state, offset=self.offset)

        def run(part: tuple[int, int]) -> None:
            scratch = np.empty(self.currents.vectors * LANES, np.float32)
            call("spikewire_conv", record, shifted, voltage, scratch, spiked, currents, *part)

        each(run, self.ranges)
        return self.finish_(call, out, state, added)

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

    def feed_spikes_(
        self, call: Call, spikes: Words, state: State, each: Each, added: Added = ()
    ) -> Words | Floats:
        """Return spikes, or currents without neurons; `state` is updated in place."""
        self.check_spikes(spikes)
        batch, steps = spikes.shape[:2]
        self.check_state(state, batch)
        voltage, (out, spiked, currents) = state["voltage"], self.allocate_outputs(batch, steps)
        sizes = (self.inputs.rows, self.inputs.row_words, self.inputs.width)

        def run(block: tuple[int, dict[str, Any]]) -> None:
            begin, fields = block
            scratch = np.empty((1 + GROUP) * fields["vectors"] * LANES, np.float32)
            events = np.empty((self.planes * self.stage.shape[1], 2), np.uint32)
            record = self.make_record(batch, steps, state, **fields)
            arrays = (voltage, scratch, events, spiked, currents)
            call("spikewire_linear", record, spikes, *sizes, begin, self.words, *arrays)

        each(run, self.blocks)
        return self.finish_(call, out, state, added)


def split_channels(start: NDArray[np.int64], threads: int) -> list[tuple[int, int]]:
    """Split channels into ranges with about the same number of taps."""
    channels = len(start) - 1
    if threads == 1:
        return [(0, channels)]
    goal = np.linspace(0, start[-1], 2 * threads + 1)
    edges = sorted({0, channels, *np.searchsorted(start, goal)[1:-1].tolist()})
    return [(a, b) for a, b in zip(edges, edges[1:], strict=False) if b <= channels]
