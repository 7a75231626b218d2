"""The record of a network: stages of synapses, neurons and pooling, with their checks.

Every file format and the runtime read this record. It holds NumPy arrays and plain numbers only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from spikewire.errors import check
from spikewire.formats.arrays import check_array
from spikewire.nn import neurons

Shape = tuple[int, ...]
MAX_NEURONS = 2**24  # in total; a hostile header cannot make a reader allocate more than this
MAX_KERNEL = 255
MAX_TIME_STEPS = 10_000  # as in training


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether `value` is a Python integer; those of NumPy overflow."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_shape(shape: object) -> bool:
    """Return whether `shape` is a tuple of positive integers."""
    return isinstance(shape, tuple) and all(is_whole(size) and size > 0 for size in shape)


def check_steps(steps: object, field: str = "steps") -> None:
    """Raise unless `steps` is a number of time steps."""
    fits = is_whole(steps) and 1 <= steps <= MAX_TIME_STEPS
    check(fits, field, steps, f"from 1 to {MAX_TIME_STEPS}")


class Neuron(NamedTuple):
    """Constants of the neurons of one stage, as in `spikewire.nn.neurons`.

    Args:
        tau: Membrane time constant in time steps, at least 1; None for a neuron without leak (IF).
        threshold: Membrane potential at which the neuron fires; above `rest`.
        rest: Resting potential, and the reset value of a hard reset.
        reset: ``"hard"`` (to `rest`) or ``"soft"`` (subtract ``threshold - rest``).
    """

    tau: float | None
    threshold: float
    rest: float
    reset: str = "hard"


class Pool(NamedTuple):
    """Pooling of spikes over windows that do not overlap.

    Args:
        kind: ``"max"``, or ``"sum"`` for the number of spikes per window.
        size: Height and width of a window, at least 2.
    """

    kind: str
    size: int


class Geometry(NamedTuple):
    """Shapes of a stage: of its inputs, of its neurons, and of its outputs after pooling."""

    inputs: Shape
    neurons: Shape
    outputs: Shape


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """Synapses, the neurons they feed, and the pooling of the spikes of these neurons.

    Args:
        name: Name of the layer in the torch model.
        shape: Shape of the weights: (out, in), or (out, in, rows, columns) for a convolution.
        index: Sorted positions of the non-zero weights in the flattened weight tensor. This array
            and the next two are contiguous.
        values: The weight at each position of `index`.
        bias: One number per output (channel).
        padding: Zeros on each side of the input of a convolution.
        neuron: Constants of the neurons; None for a readout of currents.
        pool: Pooling after the neurons; None for no pooling.
    """

    name: str
    shape: Shape
    index: NDArray[np.int64]
    values: NDArray[np.float32]
    bias: NDArray[np.float32]
    padding: int = 0
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

    def infer_geometry(self, inputs: Shape) -> Geometry:
        """Return the shapes around this stage.

        Args:
            inputs: Shape of one input, without the batch dimension.

        Returns:
            Shapes of inputs, neurons and outputs.

        Raises:
            SpikewireError: If an array of this stage or its shape does not fit.
        """
        self._check_shape()
        self._check_arrays()
        if self.neuron is not None:
            neurons.validate(neurons.NeuronConstants(**self.neuron._asdict()))
        shape = self._infer_neurons(inputs)
        fits = min(shape) > 0 and math.prod(shape) <= MAX_NEURONS
        check(fits, self.name, shape, f"from 1 to {MAX_NEURONS} neurons")
        return Geometry(inputs, shape, self._infer_outputs(shape))

    def _infer_neurons(self, inputs: Shape) -> Shape:
        if not self.is_conv:
            check(math.prod(inputs) == self.shape[1], self.name, self.shape, f"for {inputs}")
            return self.shape[:1]
        fits = len(inputs) == 3 and inputs[0] == self.shape[1]
        check(fits, self.name, self.shape, f"for {inputs}")
        sides = zip(inputs[1:], self.shape[2:], strict=True)
        return (self.shape[0], *(side + 2 * self.padding + 1 - kernel for side, kernel in sides))

    def _infer_outputs(self, neurons: Shape) -> Shape:
        if self.pool is None:
            return neurons
        kind, size = self.pool
        field = f"{self.name}: pool"
        check(is_whole(size), field, size, "a whole number")
        check(kind in ("max", "sum"), field, kind, "max or sum")
        check(self.neuron is not None, field, kind, "after neurons")
        fits = len(neurons) == 3 and 1 < size <= min(neurons[1:])
        check(fits, field, size, f"at least 2 and within {neurons}")
        return (neurons[0], neurons[1] // size, neurons[2] // size)

    def _check_shape(self) -> None:
        field = f"{self.name}: shape"
        fits = is_shape(self.shape) and len(self.shape) in (2, 4) and self.size < 2**62
        check(fits, field, self.shape, "(out, in) or (out, in, rows, columns)")
        kernel = self.shape[2:]
        narrow = max(kernel, default=1) <= MAX_KERNEL
        check(narrow, field, self.shape, f"with a kernel of at most {MAX_KERNEL}")
        limit = min(kernel, default=1)
        fits = is_whole(self.padding) and 0 <= self.padding < limit
        check(fits, f"{self.name}: padding", self.padding, f"at least 0 and below {limit}")

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


@dataclass(frozen=True, eq=False, kw_only=True)
class Network:
    """A finished network: its stages in order, and how images come in and classes come out.

    A network is checked when it is created: every shape, index and constant must fit.

    Args:
        stages: The stages in order; all but the last one have neurons, the last is fully connected.
        input_shape: Shape of one image: (features,) or (channels, height, width).
        time_steps: Time steps per image.
        classes: Names of the classes, in the order of the outputs.
        vote: Number of outputs that are averaged per class.
        mean: Mean per channel of the pixels in [0, 1], subtracted from images; empty for none.
        std: Standard deviation per channel, by which images are divided; empty for none.
        about: Further information that is stored with the network and does not change it.

    Raises:
        SpikewireError: If something does not fit.
    """

    stages: tuple[Stage, ...]
    input_shape: Shape
    time_steps: int
    classes: tuple[str, ...]
    vote: int = 1
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    geometry: tuple[Geometry, ...] = field(init=False)

    def __post_init__(self) -> None:
        check(len(self.stages) > 0, "layers", 0, "at least one layer of synapses")
        check_steps(self.time_steps, "time_steps")
        shape = self.input_shape
        fits = is_shape(shape) and len(shape) in (1, 3) and math.prod(shape) <= MAX_NEURONS
        check(fits, "input_shape", shape, "(features,) or (channels, height, width)")
        object.__setattr__(self, "geometry", self._infer_geometry())
        total = self.neuron_count
        check(total <= MAX_NEURONS, "layers", f"{total} neurons", f"at most {MAX_NEURONS} neurons")
        self._check_readout()
        self._check_normalisation()

    @property
    def size(self) -> int:
        """Number of weights, zeros included."""
        return sum(stage.size for stage in self.stages)

    @property
    def connectivity(self) -> float:
        """Fraction of weights that are not zero."""
        return sum(len(stage.index) for stage in self.stages) / self.size

    @property
    def neuron_count(self) -> int:
        """Number of neurons of all stages."""
        return sum(math.prod(geometry.neurons) for geometry in self.geometry)

    def _infer_geometry(self) -> tuple[Geometry, ...]:
        found, shape = [], self.input_shape
        for stage in self.stages:
            found.append(stage.infer_geometry(shape))
            shape = found[-1].outputs
            last = stage is self.stages[-1]
            check(last or stage.neuron is not None, stage.name, "no neurons", "followed by neurons")
            check(not (last and stage.pool), stage.name, stage.pool, "without pooling at the end")
        return tuple(found)

    def _check_readout(self) -> None:
        shape, expected = self.geometry[-1].outputs, self.vote * len(self.classes)
        check(len(shape) == 1, "layers", shape, "fully connected at the end")
        check(is_whole(self.vote), "vote", self.vote, "a whole number")
        check(self.vote > 0 and shape == (expected,), "classes", expected, f"{shape[0]} outputs")

    def _check_normalisation(self) -> None:
        channels = self.input_shape[0]
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            fits = len(numbers) in (0, channels) and all(map(math.isfinite, numbers))
            check(fits, name, numbers, f"{channels} finite numbers, or none")
        check(min(self.std, default=1) > 0, "std", self.std, "positive")
        check(len(self.mean) == len(self.std), "std", self.std, "given together with the mean")
