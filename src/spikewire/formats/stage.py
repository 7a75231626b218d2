"""One stage of a recorded network: synapses, pooled currents, neurons, pooled spikes."""

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from spikewire.errors import check
from spikewire.formats import neuron as neurons
from spikewire.formats.arrays import check_array
from spikewire.formats.neuron import Neuron

Shape = tuple[int, ...]
Pair = tuple[int, int]  # of rows and columns
IMAGE = -1  # number of the image as a source
MAX_NEURONS = 2**24  # in total; a hostile header cannot make a reader allocate more than this
MAX_KERNEL = 255


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether `value` is a Python integer; those of NumPy overflow."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_shape(shape: object) -> bool:
    """Return whether `shape` is a tuple of positive integers."""
    return isinstance(shape, tuple) and all(is_whole(size) and size > 0 for size in shape)


class Source(NamedTuple):
    """Where a stage reads its input.

    Args:
        stage: Number of an earlier stage, or `IMAGE`; the stage's own number for its spikes of the
            time step before.
        pooled: Whether its spikes are read after the pooling of that stage.
    """

    stage: int
    pooled: bool = False


class Pool(NamedTuple):
    """Pooling over square windows of spikes or of currents.

    Args:
        kind: ``"max"``, or ``"sum"`` for the sum over the window.
        size: Height and width of a window.
        stride: Distance between windows; 0 for `size`, so that they do not overlap.
        padding: Rows and columns around the map that never fire, at most half of `size`.
    """

    kind: str
    size: int
    stride: int = 0
    padding: int = 0

    @property
    def step(self) -> int:
        """Distance between windows."""
        return self.stride or self.size

    def infer_outputs(self, name: str, shape: Shape) -> Shape:
        """Return the shape after pooling a map of `shape`.

        Raises:
            SpikewireError: If the pooling does not fit; the message begins with `name`.
        """
        check(self.kind in ("max", "sum"), name, self.kind, "max or sum")
        check(all(map(is_whole, self[1:])), name, self[1:], "whole numbers")
        fits = len(shape) == 3 and 1 < max(self.size, self.step) <= MAX_KERNEL
        check(fits and self.size > 0 and self.step > 0, name, self[1:3], f"windows in {shape}")
        fits = 0 <= self.padding <= self.size // 2
        check(fits, f"{name}: padding", self.padding, f"from 0 to {self.size // 2}")
        fits = self.size <= min(shape[1:]) + 2 * self.padding
        check(fits, name, self.size, f"at least 2 and within {shape}")
        rows, columns = ((n + 2 * self.padding - self.size) // self.step + 1 for n in shape[1:])
        return (shape[0], rows, columns)


class Geometry(NamedTuple):
    """Shapes of a stage: inputs, currents of its synapses, neurons, and outputs after pooling."""

    inputs: Shape
    currents: Shape
    neurons: Shape
    outputs: Shape


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """Synapses, the neurons they feed, and the pooling of the spikes of these neurons.

    Args:
        name: Name of the layer in the torch model.
        shape: Shape of the weights: (out, in), or (out, in / groups, rows, columns) for a
            convolution.
        index: Sorted positions of the non-zero weights in the flattened weight tensor. This array
            and the next two are contiguous.
        values: The weight at each position of `index`.
        bias: One number per output (channel).
        stride: Distance between the windows of a convolution, of rows and of columns.
        padding: Zeros on each side of the input of a convolution.
        dilation: Distance between the taps of a convolution.
        groups: Number of groups of channels that a convolution keeps apart.
        inputs: What the synapses read; several sources of the same shape are added. Empty for the
            previous stage after its pooling, or the image for the first stage. A fully connected
            stage that reads only itself is recurrent: ``I[t] = W S[t-1] + added currents[t]``.
        current_pool: Pooling of the currents before the neurons; None for no pooling.
        adds: Numbers of earlier stages without neurons; their currents are added to those of this
            stage, after its pooling.
        neuron: Constants of the neurons; None for a readout of currents, or where another stage
            adds the currents.
        pool: Pooling after the neurons; None for no pooling.
    """

    name: str
    shape: Shape
    index: NDArray[np.int64]
    values: NDArray[np.float32]
    bias: NDArray[np.float32]
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    inputs: tuple[Source, ...] = ()
    current_pool: Pool | None = None
    adds: tuple[int, ...] = ()
    neuron: Neuron | None = None
    pool: Pool | None = None

    @property
    def size(self) -> int:
        """Number of weights, zeros included."""
        return math.prod(self.shape)

    @property
    def connectivity(self) -> float:
        """Fraction of weights that are not zero."""
        return len(self.index) / self.size

    @property
    def is_conv(self) -> bool:
        """Whether this stage is a convolution."""
        return len(self.shape) == 4

    def to_dense(self) -> NDArray[np.float32]:
        """Return the weights with their zeros, in `shape`."""
        weight = np.zeros(self.size, np.float32)
        weight[self.index] = self.values
        return weight.reshape(self.shape)

    def locate_weights(self) -> tuple[NDArray[np.int64], ...]:
        """Return output channel, input channel, row and column of each weight of a convolution."""
        output, channel, row, column = np.unravel_index(self.index, self.shape)
        group = output // (self.shape[0] // self.groups)
        return output, channel + group * self.shape[1], row, column

    def infer_geometry(self, inputs: Shape) -> Geometry:
        """Return the shapes around this stage.

        Args:
            inputs: Shape of one input, without the batch dimension.

        Returns:
            Shapes of inputs, currents, neurons and outputs.

        Raises:
            SpikewireError: If an array of this stage or its shape does not fit.
        """
        self._check_shape()
        self._check_arrays()
        if self.neuron is not None:
            neurons.validate(self.neuron)
        currents = self.infer_currents(inputs)
        fits = min(currents) > 0 and math.prod(currents) <= MAX_NEURONS
        check(fits, self.name, currents, f"from 1 to {MAX_NEURONS} neurons")
        found = outputs = currents
        if self.current_pool is not None:
            found = outputs = self.current_pool.infer_outputs(f"{self.name}: pool", currents)
        if self.pool is not None:
            check(self.neuron is not None, f"{self.name}: pool", self.pool.kind, "after neurons")
            outputs = self.pool.infer_outputs(f"{self.name}: pool", found)
        return Geometry(inputs, currents, found, outputs)

    def infer_currents(self, inputs: Shape) -> Shape:
        """Return the shape of the currents of the synapses."""
        if not self.is_conv:
            check(math.prod(inputs) == self.shape[1], self.name, self.shape, f"for {inputs}")
            return self.shape[:1]
        fits = len(inputs) == 3 and inputs[0] == self.shape[1] * self.groups
        check(fits, self.name, self.shape, f"for {inputs}")
        return (self.shape[0], *(self._count_positions(side, inputs[1 + side]) for side in (0, 1)))

    def _count_positions(self, side: int, length: int) -> int:
        reach = self.dilation[side] * (self.shape[2 + side] - 1)
        return (length + 2 * self.padding[side] - reach - 1) // self.stride[side] + 1

    def _check_shape(self) -> None:
        field = f"{self.name}: shape"
        fits = is_shape(self.shape) and len(self.shape) in (2, 4) and self.size < 2**62
        check(fits, field, self.shape, "(out, in) or (out, in, rows, columns)")
        kernel = self.shape[2:]
        narrow = max(kernel, default=1) <= MAX_KERNEL
        check(narrow, field, self.shape, f"with a kernel of at most {MAX_KERNEL}")
        for word in ("stride", "dilation"):
            pair = getattr(self, word)
            fits = is_shape(pair) and len(pair) == 2 and max(pair) <= MAX_KERNEL
            check(fits, f"{self.name}: {word}", pair, f"two numbers from 1 to {MAX_KERNEL}")
        fits = is_whole(self.groups) and self.groups > 0 and self.shape[0] % self.groups == 0
        check(fits, f"{self.name}: groups", self.groups, f"a divisor of {self.shape[0]}")
        self._check_padding(kernel or (1, 1))

    def _check_padding(self, kernel: Shape) -> None:
        reach = tuple(d * (n - 1) for d, n in zip(self.dilation, kernel, strict=True))
        padding = self.padding
        fits = isinstance(padding, tuple) and len(padding) == 2 and all(map(is_whole, padding))
        fits = fits and all(0 <= p <= r for p, r in zip(padding, reach, strict=True))
        check(fits, f"{self.name}: padding", padding, f"two numbers from 0 to {reach}")

    def _check_arrays(self) -> None:
        index, values, outputs = self.index, self.values, self.shape[0]
        for key, dtype in (("index", np.int64), ("values", np.float32), ("bias", np.float32)):
            check_array(f"{self.name}: {key}", getattr(self, key), dtype, (None,))
        check(len(index) == len(values), f"{self.name}: values", len(values), f"{len(index)}")
        fits = len(self.bias) == outputs
        check(fits, f"{self.name}: bias", len(self.bias), f"{outputs}, one per output")
        for array in (values, self.bias):
            check(bool(np.isfinite(array).all()), self.name, "a weight", "finite")
        if len(index):
            inside = index[0] >= 0 and index[-1] < self.size
            ascending = bool((np.diff(index) > 0).all())
            check(inside and ascending, self.name, "index", "sorted and within the shape")
