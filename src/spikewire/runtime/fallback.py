"""The torch twin of the C kernels: the same additions in the same order, so the same spikes.

Every current is summed in ascending order of (input, plane), with one rounding per addition.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spikewire.formats.network import Network, Stage
from spikewire.nn import neurons
from spikewire.runtime.dense import Dense


def pool_spikes(stage: Stage, spikes: Tensor) -> Tensor:
    """Return spikes ``[maps, *neurons]`` as planes ``[maps, planes, *outputs]``."""
    if stage.pool is None:
        return spikes.unsqueeze(1)
    kind, size = stage.pool
    maps, channels, height, width = spikes.shape
    rows, columns = height // size, width // size
    windows = spikes[:, :, : rows * size, : columns * size]
    windows = windows.reshape(maps, channels, rows, size, columns, size)
    planes = windows.permute(0, 3, 5, 1, 2, 4).reshape(maps, size * size, channels, rows, columns)
    return planes.amax(1, keepdim=True) if kind == "max" else planes


class Conv:
    """A sparse convolution, one tap of all outputs after the other."""

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
        active = x.abs().amax((0, 1, 3, 4)).ne(0).tolist()
        for tap, outputs, weights in zip(self.taps, self.outputs, self.weights, strict=True):
            c, ky, kx = np.unravel_index(tap, self.stage.shape[1:])
            if not active[c]:
                continue
            to, w = torch.from_numpy(outputs), torch.from_numpy(weights).view(1, -1, 1, 1)
            patch = x[:, :, c, ky : ky + height, kx : kx + width]
            for plane in patch.unbind(1):
                current.index_add_(1, to, w * plane.unsqueeze(1))
        return current


class Linear:
    """A sparse fully connected layer: the columns of the inputs that are not 0, in order."""

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
            # In one dimension index_add_ adds one by one, in order.
            to.index_add_(0, self.post[synapse], self.weight[synapse] * arriving)
        return current


class TorchEngine:
    """A network on torch, without compiled kernels; the same methods as `NativeEngine`.

    Args:
        network: The network.
        exact: Whether to compute every stage sparsely.
    """

    def __init__(self, network: Network, exact: bool) -> None:
        self.network, self.exact = network, exact
        self.layers = [Conv(s) if s.is_conv else Linear(s) for s in network.stages]
        pairs = zip(network.stages, network.geometry, strict=True)
        self.dense = [Dense(stage, geometry, "torch") for stage, geometry in pairs]

    def run_layer(self, number: int, x: Tensor) -> Tensor:
        """Return the currents of ``[maps, planes, ...]``, by dense torch where that is faster."""
        density, dense = float(x.ne(0).sum()) / x[:, 0].numel(), self.dense[number]
        if not self.exact and dense.is_faster(len(x), density, planes=x.shape[1]):
            return dense(x)
        return self.layers[number](x)

    @torch.no_grad()
    def compute_current(self, images: np.ndarray) -> np.ndarray:
        """Return the current of the first layer for images ``[batch, *input_shape]``."""
        return self.run_layer(0, torch.from_numpy(images).unsqueeze(1)).numpy()

    def make_state(self, batch: int) -> list[np.ndarray]:
        """Return the membrane potentials before the first time step."""
        return [
            np.full((batch, *geometry.neurons), s.neuron.rest if s.neuron else 0.0, np.float32)
            for s, geometry in zip(self.network.stages, self.network.geometry, strict=True)
        ]

    @torch.no_grad()
    def run_(
        self,
        current: np.ndarray,
        steps: int,
        state: list[np.ndarray],
        on_spikes: Callable[[int, np.ndarray], None] | None = None,
    ) -> np.ndarray:
        """Advance `state` in place by `steps` time steps of the same current of the first layer.

        Args:
            current: As returned by `compute_current`.
            steps: Number of time steps.
            state: Membrane potentials, as returned by `make_state`.
            on_spikes: Called with the number of each stage and its spikes ``[steps, batch, ...]``.

        Returns:
            Outputs ``[steps, batch, outputs]``.
        """
        x = torch.from_numpy(current).expand(steps, *current.shape)
        for number, stage in enumerate(self.network.stages):
            if number:
                x = self.run_layer(number, x.flatten(0, 1)).unflatten(0, (steps, -1))
            if stage.neuron is not None:
                x = fire_(stage, x, state[number])
                if on_spikes:
                    on_spikes(number, x.numpy().astype(bool))
            if stage is not self.network.stages[-1]:
                x = pool_spikes(stage, x.flatten(0, 1)).unflatten(0, (steps, -1))
        return x.numpy()


def fire_(stage: Stage, current: Tensor, state: np.ndarray) -> Tensor:
    """Return the spikes of currents ``[steps, ...]``; `state` is updated in place."""
    assert stage.neuron is not None
    voltage, spikes = torch.from_numpy(state), []
    for now in current:
        spike, after = neurons.step(now, voltage, **stage.neuron._asdict())
        voltage.copy_(after)
        spikes.append(spike)
    return torch.stack(spikes)
