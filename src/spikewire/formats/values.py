"""What a tensor of a traced forward pass is: spikes of stages, or the current of some synapses.

BatchNorm is folded into the weights and the bias of the synapses before it,
``w' = w gamma / sqrt(var + eps)`` and ``b' = beta + (b - mean) gamma / sqrt(var + eps)``. Average
pooling over k x k spikes becomes their sum, with ``1 / k²`` in the next weights. Zeros stay zeros.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.formats.neuron import Neuron
from spikewire.formats.stage import IMAGE, Pair, Pool, Shape, Source, Stage


@dataclass(frozen=True)
class Spikes:
    """The sum of the spikes of some stages, times a factor.

    Args:
        sources: The stages; `IMAGE` for the image.
        scale: The factor.
        vote: Number of outputs that were averaged per class.
        step: Time step, counted in calls of the neurons.
        steps: Number of time steps that it holds, or is a sum or mean of.
        part: Whether it was cut out of more time steps.
        reduced: Whether it is a sum or mean over time.
        membrane: Whether it is the membrane potential of a stage instead, which only the output
            may be.
    """

    sources: tuple[Source, ...]
    scale: float = 1.0
    vote: int = 1
    step: int = 0
    steps: Fraction = Fraction(1)
    part: bool = False
    reduced: bool = False
    membrane: bool = False

    @property
    def key(self) -> Any:
        """What identifies the value at any time step."""
        return self.sources, self.scale, self.vote, self.membrane


@dataclass(frozen=True)
class Current:
    """The current of some synapses.

    Args:
        path: Names of the modules that it passed, the synapses first.
        sources: What the synapses read.
        weight: Weights in float64.
        bias: One number per output in float64.
        geometry: stride, padding, dilation and groups of a convolution.
        pool: Pooling of the current.
        vote: Number of outputs that were averaged per class.
        step: Time step, counted in calls of the neurons.
        steps: Number of time steps that it holds, or is a sum or mean of.
        part: Whether it was cut out of more time steps.
        reduced: Whether it is a sum or mean over time.
        others: Currents of other synapses that are added.
    """

    path: tuple[str, ...]
    sources: tuple[Source, ...]
    weight: Tensor
    bias: Tensor
    geometry: dict[str, Any]
    pool: Pool | None = None
    vote: int = 1
    step: int = 0
    steps: Fraction = Fraction(1)
    part: bool = False
    reduced: bool = False
    others: "tuple[Current, ...]" = ()

    @property
    def key(self) -> Any:
        """What identifies the value at any time step."""
        return self.path, self.sources, self.vote, *(other.key for other in self.others)

    @property
    def all_sources(self) -> tuple[Source, ...]:
        """What all of the synapses read."""
        return sum((other.sources for other in self.others), self.sources)

    @property
    def scale(self) -> float:
        """The factor, which is part of the weights."""
        return 1.0

    @property
    def membrane(self) -> bool:
        """Currents are no membrane potentials."""
        return False

    def scale_by(self, gain: Tensor | float, shift: Tensor | float, name: str = "") -> "Current":
        """Return the current times `gain` plus `shift`, one number per output or one for all."""
        gain = torch.as_tensor(gain, dtype=torch.float64).expand(len(self.bias))
        if self.pool is not None and self.pool.kind == "max" and bool((gain < 0).any()):
            raise SpikewireError(f"{name}: a negative factor after max pooling is not supported")
        if self.pool is not None and self.pool.padding and bool(torch.as_tensor(shift).any()):
            raise SpikewireError(f"{name}: a shift after padded pooling is not supported")
        cells = self.pool.size**2 if self.pool and self.pool.kind == "sum" else 1
        weight = self.weight * gain.view(-1, *[1] * (self.weight.ndim - 1))
        bias = self.bias * gain + torch.as_tensor(shift) / cells
        others = tuple(other.scale_by(gain, 0.0, name) for other in self.others)
        return replace(self, path=(*self.path, name), weight=weight, bias=bias, others=others)

    def to_stage(self, neuron: Neuron | None, adds: tuple[int, ...] = ()) -> Stage:
        """Return the finished stage, in float32; `adds` are the stages of `others`."""
        flat = self.weight.float().flatten().numpy()
        index = np.flatnonzero(flat)
        return Stage(
            name=self.path[0],
            shape=tuple(self.weight.shape),
            index=index.astype(np.int64),
            values=flat[index],
            bias=self.bias.float().numpy(),
            inputs=self.sources,
            current_pool=self.pool,
            adds=adds,
            neuron=neuron,
            **self.geometry,
        )


@dataclass(frozen=True)
class Unknown:
    """A tensor that no record can express; an error only where it is used."""

    reason: str
    step: int = 0


Value = Spikes | Current | Unknown


def feed_layer(name: str, layer: nn.Module, value: Value) -> Current:
    """Return the current of a convolution or a fully connected layer of torch."""
    weight, bias = getattr(layer, "weight"), getattr(layer, "bias", None)  # noqa: B009
    geometry = read_geometry(name, layer) if isinstance(layer, nn.Conv2d) else {}
    return feed(name, weight, bias, value, geometry)


def feed(
    name: str, weight: Tensor, bias: Tensor | None, value: Value, geometry: dict[str, Any]
) -> Current:
    """Return the current of synapses; the factor of the spikes becomes part of the weights."""
    spikes = expect_spikes(name, value)
    weight = to_double(weight) * spikes.scale
    bias = weight.new_zeros(len(weight)) if bias is None else to_double(bias)
    return Current((name,), spikes.sources, weight, bias, geometry, **_time_of(spikes))


def feed_back(name: str, weight: Tensor, bias: Tensor | None = None) -> Current:
    """Return the current of synapses from neurons to themselves, its sources not set yet."""
    return feed(name, weight, bias, Spikes(()), {})


def pass_through(name: str, value: Spikes, shape: Shape) -> Current:
    """Return spikes as a current: one synapse from each neuron to itself."""
    outputs = shape[0] if len(shape) == 3 else int(np.prod(shape))
    weight = torch.eye(outputs, dtype=torch.float64) * value.scale
    if len(shape) == 3:
        weight = weight[:, :, None, None]
    marks = {"vote": value.vote, **_time_of(value)}
    return Current((name,), value.sources, weight, weight.new_zeros(outputs), {}, **marks)


def _time_of(value: Spikes) -> dict[str, Any]:
    """Return the fields that say which time steps a value has."""
    return {key: getattr(value, key) for key in ("step", "steps", "part", "reduced")}


def expect_spikes(name: str, value: Value) -> Spikes:
    """Return a value that synapses may read; refuse all others."""
    value = expect_known(name, value)
    if isinstance(value, Current):
        raise SpikewireError(f"{name}: synapses after {value.path[-1]} without neurons between")
    if value.vote > 1:
        raise SpikewireError(f"{name}: a layer after a vote is not supported")
    if value.membrane:
        raise SpikewireError(f"{name}: a layer that reads membrane potentials is not supported")
    return value


def expect_known(name: str, value: Value) -> Spikes | Current:
    """Return a value that is not `Unknown`."""
    if isinstance(value, Unknown):
        raise SpikewireError(f"{name}: its input is not supported: {value.reason}")
    return value


def normalise(name: str, norm: Any, value: Value, shape: Shape) -> Current:
    """Return the current after a BatchNorm in evaluation mode, folded into the synapses."""
    value = expect_known(name, value)
    if isinstance(value, Spikes):
        value = pass_through(name, expect_spikes(name, value), shape)
    if norm.running_var is None:
        raise SpikewireError(f"{name}: BatchNorm without running statistics is not supported")
    gain = (to_double(norm.running_var) + norm.eps).rsqrt()
    gain = gain if norm.weight is None else gain * to_double(norm.weight)
    shift = -to_double(norm.running_mean) * gain
    return value.scale_by(gain, shift if norm.bias is None else shift + to_double(norm.bias), name)


def pool_currents(name: str, value: Current, pool: Pool, average: bool) -> Current:
    """Return pooled currents; an average is a sum of currents divided by the window's size."""
    if value.pool is not None or value.others:
        raise SpikewireError(f"{name}: pooling of pooled or added currents is not supported")
    if average:
        value = value.scale_by(1 / pool.size**2, 0.0, name)
    return replace(value, path=(*value.path, name), pool=pool)


def add(name: str, left: Value, right: Value, shape: Shape | None = None) -> Value:
    """Return the sum of two values of the same time step, or a sum over time.

    Args:
        name: Name of the module that adds.
        left: A value.
        right: A value.
        shape: Shape of a sample, where spikes are added to currents.
    """
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return left if isinstance(left, Unknown) else right
    part = (left.part or right.part) and Source(IMAGE) not in left.sources
    apart = left.step != right.step or part
    if left.key == right.key and (apart or left.reduced or right.reduced):
        return replace(right, reduced=True, steps=left.steps + right.steps)
    where = f"an addition in {name}" if name else "an addition"
    if isinstance(left, Current) or isinstance(right, Current):
        return _add_currents(name, left, right, shape) or Unknown(f"{where} of these currents")
    if left.membrane or right.membrane:
        return Unknown(f"{where} of membrane potentials")
    if left.scale != right.scale or left.vote > 1 or right.vote > 1 or left.reduced:
        return Unknown(f"{where} of values with different factors")
    if Source(IMAGE) in (*left.sources, *right.sources):
        return Unknown(f"{where} to the image")
    return replace(left, sources=left.sources + right.sources)


def _add_currents(
    name: str, left: Spikes | Current, right: Spikes | Current, shape: Shape | None
) -> Current | None:
    """Return the sum of currents; spikes pass one synapse from each neuron to itself."""
    if left.vote > 1 or right.vote > 1 or left.reduced or right.reduced:
        return None
    both = []
    for value in (left, right):
        if isinstance(value, Spikes):
            if shape is None or value.membrane or Source(IMAGE) in value.sources:
                return None
            value = pass_through(f"{name}.shortcut", value, shape)
        both.append(value)
    first, second = both
    others = (*first.others, replace(second, others=()), *second.others)
    return replace(first, others=others)


def read_geometry(name: str, layer: nn.Conv2d) -> dict[str, Any]:
    """Return stride, padding, dilation and groups of a convolution."""
    if layer.padding_mode != "zeros":
        raise SpikewireError(f"{name}: padding_mode {layer.padding_mode!r} is not supported")
    padding: Any = layer.padding
    if padding == "same":
        reach = [d * (n - 1) for d, n in zip(layer.dilation, layer.kernel_size, strict=True)]
        if any(n % 2 for n in reach):
            raise SpikewireError(f"{name}: padding 'same' of an even kernel is not supported")
        padding = [n // 2 for n in reach]
    pairs = {"stride": layer.stride, "padding": 0 if padding == "valid" else padding}
    pairs["dilation"] = layer.dilation
    return {**{key: to_pair(value) for key, value in pairs.items()}, "groups": layer.groups}


def to_pair(value: Any) -> Pair:
    """Return a number or a pair of numbers as a pair."""
    rows, columns = (value, value) if isinstance(value, int) else value
    return int(rows), int(columns)


def to_double(tensor: Tensor) -> Tensor:
    """Return a detached copy in float64 on the CPU."""
    return tensor.detach().double().cpu()
