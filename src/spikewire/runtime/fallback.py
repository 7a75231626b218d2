"""The torch twin of the C kernels: the same additions in the same order, so the same spikes.

Every current adds up in ascending order of (input, plane), one rounding an addition.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spikewire.formats.network import Network, Stage
from spikewire.nn import neurons
from spikewire.runtime.dense import Dense


def pooled(stage: Stage, spikes: Tensor) -> Tensor:
    """Return spikes ``[maps, *neurons]`` as planes ``[maps, planes, *outputs]``."""
    if stage.pool is None:
        return spikes.unsqueeze(1)
    kind, size = stage.pool
    maps, channels, height, width = spikes.shape
    low, narrow = height // size, width // size
    windows = spikes[:, :, : low * size, : narrow * size]
    windows = windows.reshape(maps, channels, low, size, narrow, size)
    planes = windows.permute(0, 3, 5, 1, 2, 4).reshape(maps, size * size, channels, low, narrow)
    return planes.amax(1, keepdim=True) if kind == "max" else planes


class Conv:
    """One tap of all outputs after the other."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        inputs = int(np.prod(stage.shape[1:]))
        output, tap = np.divmod(stage.index, inputs)
        order = np.lexsort((output, tap))
        self.taps, first = np.unique(tap[order], return_index=True)
        ends = np.append(first[1:], len(tap)).astype(int)
        parts = [slice(a, b) for a, b in zip(first, ends, strict=False)]
        output, values = output[order], stage.values[order]
        self.outputs = [output[part] for part in parts]
        self.weights = [values[part] for part in parts]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the currents of ``[maps, planes, channels, height, width]``."""
        _, _, rows, columns = self.stage.shape
        x = functional.pad(x, [self.stage.padding] * 4)
        height, width = x.shape[-2] - rows + 1, x.shape[-1] - columns + 1
        current = torch.from_numpy(self.stage.bias).view(1, -1, 1, 1)
        current = current.repeat(len(x), 1, height, width)
        busy = x.abs().amax((0, 1, 3, 4)).ne(0).tolist()
        for tap, outputs, weights in zip(self.taps, self.outputs, self.weights, strict=True):
            c, ky, kx = np.unravel_index(tap, self.stage.shape[1:])
            if not busy[c]:
                continue
            to, w = torch.from_numpy(outputs), torch.from_numpy(weights).view(1, -1, 1, 1)
            patch = x[:, :, c, ky : ky + height, kx : kx + width]
            for plane in patch.unbind(1):
                current.index_add_(1, to, w * plane.unsqueeze(1))
        return current


class Linear:
    """The columns of the inputs that are not 0, one after the other."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        output, source = np.divmod(stage.index, stage.shape[1])
        order = np.lexsort((output, source))
        self.post = torch.from_numpy(output[order])
        self.weight = torch.from_numpy(stage.values[order])
        bounds = np.searchsorted(source[order], np.arange(stage.shape[1] + 1))
        self.start = torch.from_numpy(bounds.astype(np.int64))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the currents of ``[maps, planes, ...]``."""
        current = torch.from_numpy(self.stage.bias).repeat(len(x), 1)
        for map, to in zip(x.flatten(2).movedim(1, 2), current, strict=True):
            source, plane = map.nonzero(as_tuple=True)
            begin, length = self.start[source], self.start[source + 1] - self.start[source]
            before = length.cumsum(0) - length
            synapse = torch.arange(int(length.sum())) + (begin - before).repeat_interleave(length)
            arriving = map[source, plane].repeat_interleave(length)
            # One dimension is added up one by one, in order.
            to.index_add_(0, self.post[synapse], self.weight[synapse] * arriving)
        return current


class Torch:
    """A network without compiled kernels; the same three functions as `Native`."""

    def __init__(self, network: Network, exact: bool = True) -> None:
        self.network, self.exact = network, exact
        self.layers = [Linear(s) if len(s.shape) == 2 else Conv(s) for s in network.stages]
        places = zip(network.stages, network.geometry, strict=True)
        self.dense = [Dense(stage, place, "torch") for stage, place in places]

    def layer(self, number: int, x: Tensor) -> Tensor:
        """Return the currents of ``[maps, planes, ...]``, densely where that is quicker."""
        share, dense = float(x.ne(0).sum()) / x[:, 0].numel(), self.dense[number]
        if not self.exact and dense.wins(len(x), share, planes=x.shape[1]):
            return dense(x)
        return self.layers[number](x)

    @torch.no_grad()
    def current(self, images: np.ndarray) -> np.ndarray:
        """Return what the first layer makes of images ``[batch, *input_shape]``."""
        return self.layer(0, torch.from_numpy(images).unsqueeze(1)).numpy()

    def rest(self, batch: int) -> list[np.ndarray]:
        """Return a state before the first step."""
        return [
            np.full((batch, *place.neurons), s.neuron.rest if s.neuron else 0.0, np.float32)
            for s, place in zip(self.network.stages, self.network.geometry, strict=True)
        ]

    @torch.no_grad()
    def run(
        self,
        current: np.ndarray,
        steps: int,
        state: list[np.ndarray],
        seen: Callable[[int, np.ndarray], None] | None = None,
    ) -> np.ndarray:
        """Advance `steps`; return the outputs ``[steps, batch, outputs]``."""
        x = torch.from_numpy(current).expand(steps, *current.shape)
        for number, stage in enumerate(self.network.stages):
            if number:
                x = self.layer(number, x.flatten(0, 1)).unflatten(0, (steps, -1))
            if stage.neuron is not None:
                x = fire(stage, x, state[number])
                if seen:
                    seen(number, x.numpy().astype(bool))
            if stage is not self.network.stages[-1]:
                x = pooled(stage, x.flatten(0, 1)).unflatten(0, (steps, -1))
        return x.numpy()


def fire(stage: Stage, current: Tensor, state: np.ndarray) -> Tensor:
    """Return the spikes of currents ``[steps, ...]``; `state` moves on in place."""
    assert stage.neuron is not None
    voltage, spikes = torch.from_numpy(state), []
    for now in current:
        spike, after = neurons.step(now, voltage, **stage.neuron._asdict())
        voltage.copy_(after)
        spikes.append(spike)
    return torch.stack(spikes)
