"""The torch twin of the C kernels: the same additions in the same order, so the same spikes.

Every current is summed in ascending order of (input, plane), with one rounding per addition.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spikewire.formats.network import Network, Pool, Stage
from spikewire.formats.neuron import step_
from spikewire.runtime.dense import Dense
from spikewire.runtime.layer import State


def list_windows(pool: Pool, x: Tensor, padding: float) -> Tensor:
    """Return the cells of all windows of maps ``[..., height, width]``, ``[cells, ...]``."""
    x = functional.pad(x, [pool.padding] * 4, value=padding)
    height, width = ((n - pool.size) // pool.step + 1 for n in x.shape[-2:])
    return torch.stack([
        x[..., y : y + height * pool.step : pool.step, c : c + width * pool.step : pool.step]
        [..., :height, :width]
        for y in range(pool.size)
        for c in range(pool.size)
    ])  # fmt: skip


def pool_spikes(pool: Pool, spikes: Tensor) -> Tensor:
    """Return spikes ``[maps, *neurons]`` as planes ``[maps, planes, *outputs]``."""
    planes = list_windows(pool, spikes, 0.0).transpose(0, 1)
    return planes.amax(1, keepdim=True) if pool.kind == "max" else planes


def pool_currents(pool: Pool, currents: Tensor) -> Tensor:
    """Return the largest current of each window, or their sum by rows and columns."""
    if pool.kind == "max":
        return list_windows(pool, currents, -torch.inf).amax(0)
    first, *others = list_windows(pool, currents, 0.0)
    for other in others:
        first = first + other
    return first


class Conv:
    """A sparse convolution, one tap of all outputs after the other."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        output, *position = stage.locate_weights()
        sizes = (stage.shape[1] * stage.groups, *stage.shape[2:])
        tap = np.ravel_multi_index(tuple(position), sizes)
        order = np.lexsort((output, tap))
        found, first = np.unique(tap[order], return_index=True)
        self.taps = list(
            zip(*(part.tolist() for part in np.unravel_index(found, sizes)), strict=True)
        )
        ends = np.append(first[1:], len(tap)).astype(int)
        parts = [slice(a, b) for a, b in zip(first, ends, strict=False)]
        output, values = output[order], stage.values[order]
        self.outputs = [output[part] for part in parts]
        self.weights = [values[part] for part in parts]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the currents of ``[maps, planes, channels, height, width]``."""
        stage = self.stage
        _, height, width = stage.infer_currents(tuple(x.shape[2:]))
        rows, columns = stage.padding
        x = functional.pad(x, [columns, columns, rows, rows])
        current = torch.from_numpy(stage.bias).view(1, -1, 1, 1).repeat(len(x), 1, height, width)
        active = x.abs().amax((0, 1, 3, 4)).ne(0).tolist()
        (down, right), (dy, dx) = stage.stride, stage.dilation
        for (c, ky, kx), outputs, weights in zip(
            self.taps, self.outputs, self.weights, strict=True
        ):
            if not active[c]:
                continue
            to, w = torch.from_numpy(outputs), torch.from_numpy(weights).view(1, -1, 1, 1)
            patch = x[:, :, c, ky * dy :: down, kx * dx :: right][..., :height, :width]
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
        is_dense = not self.exact and dense.is_faster(len(x), density, planes=x.shape[1])
        currents = dense(x) if is_dense else self.layers[number](x)
        pool = self.network.stages[number].current_pool
        return pool_currents(pool, currents) if pool else currents

    @torch.no_grad()
    def compute_current(self, images: np.ndarray) -> np.ndarray:
        """Return the current of the first layer for images ``[batch, *input_shape]``."""
        return self.run_layer(0, torch.from_numpy(images).unsqueeze(1)).numpy()

    def gather(self, number: int, spikes: list[Tensor]) -> Tensor:
        """Return what a stage reads: ``[maps, planes, ...]`` of spikes ``[steps, batch, ...]``."""
        parts = []
        for source in self.network.sources[number]:
            maps, pool = spikes[source.stage].flatten(0, 1), self.network.stages[source.stage].pool
            parts.append(pool_spikes(pool, maps) if source.pooled and pool else maps.unsqueeze(1))
        return torch.cat(parts, 1)

    def feed_back_(self, number: int, steps: int, state: State, spikes: list[Tensor]) -> Tensor:
        """Return the spikes of a recurrent stage; `state` is updated in place."""
        stage, latest, found = self.network.stages[number], torch.from_numpy(state["spikes"]), []
        for step in range(steps):
            current = self.run_layer(number, latest.unsqueeze(1))
            for added in stage.adds:
                current = current + spikes[added][step]
            latest.copy_(fire_(stage, current.unsqueeze(0), state)[0][0])
            found.append(latest.clone())
        return torch.stack(found)

    def run_images(self, images: np.ndarray, steps: int) -> np.ndarray:
        """Return the outputs ``[steps, batch, outputs]`` of neurons that start at rest."""
        return self.run_(self.compute_current(images), steps, self.make_state(len(images)))

    def make_state(self, batch: int) -> list[State]:
        """Return the state of every stage before the first time step."""
        return [self._make_own_state(number, batch) for number in range(len(self.layers))]

    def _make_own_state(self, number: int, batch: int) -> State:
        """Return membrane potentials and, if any, synaptic currents and latest spikes."""
        neuron, shape = self.network.stages[number].neuron, self.network.geometry[number].neurons
        fill = {"voltage": neuron.rest if neuron else 0.0}
        fill |= {"current": 0.0} if neuron and neuron.current_decay else {}
        fill |= {"spikes": 0.0} if number in self.network.recurrent else {}
        return {key: np.full((batch, *shape), value, np.float32) for key, value in fill.items()}

    @torch.no_grad()
    def run_(
        self,
        current: np.ndarray,
        steps: int,
        state: list[State],
        on_spikes: Callable[[int, np.ndarray], None] | None = None,
    ) -> np.ndarray:
        """Advance `state` in place by `steps` time steps of the same current of the first layer.

        Args:
            current: As returned by `compute_current`.
            steps: Number of time steps.
            state: As returned by `make_state`.
            on_spikes: Called with the number of each stage and its spikes ``[steps, batch, ...]``.

        Returns:
            Outputs ``[steps, batch, outputs]``.
        """
        x = torch.from_numpy(current).expand(steps, *current.shape)
        spikes: list[Tensor] = []  # of all stages; currents of those without neurons
        recurrent = self.network.recurrent
        for number, stage in enumerate(self.network.stages):
            if number in recurrent:
                x = self.feed_back_(number, steps, state[number], spikes)
                spikes.append(x)
                if on_spikes:
                    on_spikes(number, x.numpy().astype(bool))
                continue
            if number:
                x = self.run_layer(number, self.gather(number, spikes)).unflatten(0, (steps, -1))
            for added in stage.adds:
                x = x + spikes[added]
            if stage.neuron is not None:
                now, x = fire_(stage, x, state[number])
                spikes.append(now)
                if on_spikes:
                    on_spikes(number, now.numpy().astype(bool))
                x = x if self.network.membrane else now
            else:
                spikes.append(x)
        return x.flatten(2).numpy()


def fire_(stage: Stage, current: Tensor, state: State) -> tuple[Tensor, Tensor]:
    """Return spikes and membrane potentials of ``[steps, ...]``; `state` is updated in place."""
    assert stage.neuron is not None
    kept = [torch.from_numpy(state[key]) for key in ("voltage", "current") if key in state]
    spikes, membranes = zip(*(step_(stage.neuron, x, *kept) for x in current), strict=True)
    return torch.stack(spikes), torch.stack(membranes)
