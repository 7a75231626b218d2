"""A finished network as plain records: what every export and the runtime read.

A stage is synapses, the neurons they feed and the pooling of their spikes. BatchNorm is folded,
``w' = w gamma / sqrt(var + eps)``, ``b' = beta + (b - mean) gamma / sqrt(var + eps)``, and an
average over k x k spikes is their sum, with ``1 / k²`` in the next weights. Zeros stay zeros.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from spikewire.errors import SpikewireError, check
from spikewire.nn import neurons
from spikewire.nn.models import Dropout, Spiking

Shape = tuple[int, ...]
LIMIT = 2**24  # neurons in all, so that a hostile header cannot ask for the whole memory


class Neuron(NamedTuple):
    """Constants of `spikewire.nn.neurons`; `tau` None has no leak."""

    tau: float | None
    threshold: float
    rest: float
    reset: str = "hard"


class Pool(NamedTuple):
    """Windows of size x size spikes, merged ("max") or counted ("sum")."""

    kind: str
    size: int


class Geometry(NamedTuple):
    """Shapes of what comes into a stage, of its neurons, and of what leaves after pooling."""

    inputs: Shape
    neurons: Shape
    outputs: Shape


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """Weights of `shape` (out, in) or (out, in, rows, columns), as sorted flat positions."""

    name: str
    shape: Shape
    index: NDArray[np.int64]
    values: NDArray[np.float32]
    bias: NDArray[np.float32]
    padding: int = 0
    neuron: Neuron | None = None
    pool: Pool | None = None

    @property
    def connectivity(self) -> float:
        """Share of weights that are there."""
        return len(self.index) / math.prod(self.shape)

    def dense(self) -> NDArray[np.float32]:
        """Return the weights with their zeros."""
        weight = np.zeros(math.prod(self.shape), np.float32)
        weight[self.index] = self.values
        return weight.reshape(self.shape)

    def geometry(self, inputs: Shape) -> Geometry:
        """Return the shapes around this stage, or say why they do not fit."""
        self._check_arrays()
        if len(self.shape) == 2:
            check(math.prod(inputs) == self.shape[1], self.name, self.shape, f"for {inputs}")
            neurons = (self.shape[0],)
        else:
            fits = len(inputs) == 3 and inputs[0] == self.shape[1]
            check(fits, self.name, self.shape, f"for {inputs}")
            sides = (2 * self.padding + 1 - k for k in self.shape[2:])
            neurons = (self.shape[0], *(n + d for n, d in zip(inputs[1:], sides, strict=True)))
        check(min(neurons) > 0 and math.prod(neurons) <= LIMIT, self.name, neurons, "smaller maps")
        return Geometry(inputs, neurons, self._pooled(neurons))

    def _pooled(self, neurons: Shape) -> Shape:
        if self.pool is None:
            return neurons
        kind, size = self.pool
        check(kind in ("max", "sum"), f"{self.name}: pool", kind, "max or sum")
        check(self.neuron is not None, f"{self.name}: pool", kind, "after neurons")
        small = len(neurons) == 3 and 1 < size <= min(neurons[1:])
        check(small, f"{self.name}: pool", size, f"at least 2 and within {neurons}")
        return (neurons[0], neurons[1] // size, neurons[2] // size)

    def _check_arrays(self) -> None:
        ok = len(self.shape) in (2, 4) and min(self.shape) > 0 and math.prod(self.shape) < 2**62
        check(ok, f"{self.name}: shape", self.shape, "(out, in) or (out, in, rows, columns)")
        reach = min(self.shape[2:]) if len(self.shape) == 4 else 1
        check(
            max(self.shape[2:], default=1) < 256,
            f"{self.name}: shape",
            self.shape,
            "below 256 wide",
        )
        check(0 <= self.padding < reach, f"{self.name}: padding", self.padding, f"below {reach}")
        index, values = self.index, self.values
        check(len(index) == len(values), f"{self.name}: values", len(values), f"{len(index)}")
        check(
            len(self.bias) == self.shape[0], f"{self.name}: bias", len(self.bias), "one an output"
        )
        for array in (values, self.bias):
            check(bool(np.isfinite(array).all()), self.name, "a weight", "finite")
        if len(index):
            inside = index[0] >= 0 and index[-1] < math.prod(self.shape)
            check(inside and bool((np.diff(index) > 0).all()), self.name, "index", "sorted, inside")
        if self.neuron is not None:
            neurons.validate(**self.neuron._asdict(), surrogate="atan")


@dataclass(frozen=True, eq=False, kw_only=True)
class Network:
    """Stages in order; `vote` outputs are averaged for each class; `about` is free of meaning."""

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
        check(1 <= self.time_steps <= 2**16, "time_steps", self.time_steps, "from 1 to 65536")
        shape = self.input_shape
        good = len(shape) in (1, 3) and min(shape) > 0 and math.prod(shape) <= LIMIT
        check(good, "input_shape", shape, "(features,) or (channels, height, width)")
        places = []
        for stage in self.stages:
            places.append(stage.geometry(shape))
            shape = places[-1].outputs
            last = stage is self.stages[-1]
            check(last or stage.neuron is not None, stage.name, "no neurons", "followed by neurons")
            check(not (last and stage.pool), stage.name, stage.pool, "without pooling at the end")
        total = sum(math.prod(place.neurons) for place in places)
        check(total <= LIMIT, "layers", f"{total} neurons", f"at most {LIMIT} neurons")
        check(len(shape) == 1, "layers", shape, "fully connected at the end")
        wanted = self.vote * len(self.classes)
        check(self.vote > 0 and shape == (wanted,), "classes", wanted, f"{shape[0]} outputs")
        self._check_normalisation()
        object.__setattr__(self, "geometry", tuple(places))

    def _check_normalisation(self) -> None:
        channels = self.input_shape[0]
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            fits = len(numbers) in (0, channels) and all(map(math.isfinite, numbers))
            check(fits, name, numbers, f"{channels} finite numbers, or none")
        check(min(self.std, default=1) > 0, "std", self.std, "positive")
        check(len(self.mean) == len(self.std), "std", self.std, "given together with the mean")


def describe(model: Spiking, **about: Any) -> Network:
    """Return the records of a trained network; `about` are further fields of `Network`."""
    check(model.input_shape is not None, "input_shape", None, "known to the network")
    stages = _collect(model)
    vote = stages[-1].pop("vote", 1)
    built = tuple(
        _stage(parts, before) for parts, before in zip(stages, [{}, *stages], strict=False)
    )
    about.setdefault("classes", tuple(map(str, range(built[-1].shape[0] // vote))))
    shape = tuple(model.input_shape or ())
    return Network(stages=built, input_shape=shape, time_steps=model.time_steps, vote=vote, **about)


def _collect(model: Spiking) -> list[dict[str, Any]]:
    """Gather what belongs to each layer of synapses, in order."""
    stages: list[dict[str, Any]] = []
    for name, layer in model.named_children():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            stages.append({"name": name, "synapses": layer})
        elif isinstance(layer, nn.Flatten | Dropout):
            continue
        elif not stages:
            raise SpikewireError(
                f"{name}: {type(layer).__name__} before any synapses is not exported"
            )
        elif part := _part(name, layer):
            kind, value = part
            late = [other for other in ORDER[ORDER.index(kind) :] if other in stages[-1]]
            if late:
                order = f"at most one each of {', '.join(ORDER)}, in this order"
                raise SpikewireError(f"{name}: a {kind} after a {late[0]} is not exported; {order}")
            stages[-1][kind] = value
        else:
            raise SpikewireError(f"{name}: {type(layer).__name__} is not exported here")
    check(bool(stages), "model", type(model).__name__, "one with synapses")
    return stages


ORDER = ("norm", "neuron", "pool", "vote")  # of what follows synapses


def _part(name: str, layer: nn.Module) -> tuple[str, Any] | None:
    """Return what a layer is to the synapses before it."""
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return "norm", layer
    if isinstance(layer, neurons.Neuron):
        return "neuron", Neuron(layer.tau, layer.threshold, layer.rest, layer.reset)
    if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
        return "pool", _pool(name, layer)
    if isinstance(layer, nn.AvgPool1d) and layer.kernel_size == layer.stride:
        return "vote", int(np.ravel(layer.kernel_size)[0])
    return None


def _pool(name: str, layer: nn.MaxPool2d | nn.AvgPool2d) -> Pool:
    sizes = {int(n) for part in (layer.kernel_size, layer.stride) for n in np.ravel(part)}
    plain = not np.any(layer.padding) and not layer.ceil_mode
    plain = plain and {int(n) for n in np.ravel(getattr(layer, "dilation", 1))} == {1}
    plain = plain and getattr(layer, "divisor_override", None) is None
    usual = "square, without overlap, padding, dilation or a divisor of its own"
    check(len(sizes) == 1 and plain, f"{name}: pooling", sizes, usual)
    return Pool("max" if isinstance(layer, nn.MaxPool2d) else "sum", sizes.pop())


def _stage(parts: dict[str, Any], before: dict[str, Any]) -> Stage:
    """Fold BatchNorm, and the average of the pooling before, into the weights."""
    layer, norm = parts["synapses"], parts.get("norm")
    with torch.no_grad():
        weight = layer.weight.detach().double().cpu()
        bias = weight.new_zeros(len(weight))
        bias = bias if layer.bias is None else layer.bias.detach().double().cpu()
        if (pool := before.get("pool")) and pool.kind == "sum":
            weight = weight / pool.size**2
        if norm is not None:
            gain, shift = _affine(norm)
            weight = weight * gain.view(-1, *[1] * (weight.ndim - 1))
            bias = bias * gain + shift
    flat = weight.float().flatten().numpy()
    index = np.flatnonzero(flat)
    return Stage(
        name=parts["name"],
        shape=tuple(weight.shape),
        index=index.astype(np.int64),
        values=flat[index],
        bias=bias.float().numpy(),
        padding=_padding(parts["name"], layer),
        neuron=parts.get("neuron"),
        pool=parts.get("pool"),
    )


def _affine(norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    check(norm.running_var is not None, "BatchNorm", "no running statistics", "with statistics")
    mean, var = norm.running_mean.double().cpu(), norm.running_var.double().cpu()
    gain = (var + norm.eps).rsqrt()
    gain = gain if norm.weight is None else gain * norm.weight.detach().double().cpu()
    shift = -mean * gain
    return gain, shift if norm.bias is None else shift + norm.bias.detach().double().cpu()


def _padding(name: str, layer: nn.Module) -> int:
    if isinstance(layer, nn.Linear):
        return 0
    assert isinstance(layer, nn.Conv2d)
    plain = {*layer.stride, *layer.dilation, layer.groups} == {1}
    check(plain, f"{name}: stride, dilation, groups", "other than 1", "1 to be exported")
    both = {layer.padding} if isinstance(layer.padding, str) else set(layer.padding)
    one = len(both) == 1 and "same" not in both and layer.padding_mode == "zeros"
    check(one, f"{name}: padding", layer.padding, "one number of zeros on all sides")
    return 0 if "valid" in both else int(both.pop())
