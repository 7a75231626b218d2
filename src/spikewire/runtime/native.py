"""A network on the C kernels, one stage after the other.

All time steps of a layer run before the next layer begins, so threads are joined once per layer.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spikewire.errors import check
from spikewire.formats.arrays import check_array
from spikewire.formats.network import Network, check_steps
from spikewire.runtime.layers import Conv, Floats, Linear, Words, count_planes, unpack
from spikewire.runtime.library import LANES

State = list[Floats]
OnSpikes = Callable[[int, NDArray[np.bool_]], None]
CHUNK = 2**22  # bytes of shifted spikes at once: about what stays in the cache


class NativeEngine:
    """A network on one of the C paths; `Runtime` uses `compute_current`, `make_state` and `run_`.

    Args:
        network: The network.
        library: The compiled kernels.
        path: Name of the C path: "avx512", "avx2" or "portable".
        threads: Number of threads.
        exact: Whether to compute every stage sparsely.
    """

    def __init__(
        self, network: Network, library: Any, path: str, threads: int, exact: bool
    ) -> None:
        self.network, self.library, self.exact = network, library, exact
        self.layers: list[Conv | Linear] = []
        planes = 1
        for stage, geometry in zip(network.stages, network.geometry, strict=True):
            kind = Conv if stage.is_conv else Linear
            self.layers.append(kind(stage, geometry, planes, path, threads))
            planes = count_planes(stage.pool)
        self.threads = threads
        self.executors: dict[int, ThreadPoolExecutor] = {}  # by process

    def each(self, run: Callable[[Any], None], parts: Sequence[Any]) -> None:
        """Run the parts in parallel; ctypes releases the global interpreter lock."""
        if self.threads == 1 or len(parts) == 1:
            for part in parts:
                run(part)
        else:
            list(self._executor.map(run, parts))

    @property
    def _executor(self) -> ThreadPoolExecutor:
        """Threads of this process: those of its parent do not exist after a fork."""
        process = os.getpid()
        if process not in self.executors:
            self.executors.setdefault(process, ThreadPoolExecutor(self.threads))
        return self.executors[process]

    def compute_current(self, images: Floats) -> Floats:
        """Return the current of the first layer for images ``[batch, *input_shape]``."""
        check_array("images", images, np.float32, (None, *self.network.input_shape))
        first = self.layers[0]
        if not self.exact and self._is_dense_faster_on_pixels(images):
            return first.pad_rows(first.dense(torch.from_numpy(images).unsqueeze(1)))
        return first.feed_pixels(self.library, images, self.each)

    def _is_dense_faster_on_pixels(self, images: Floats) -> bool:
        """Count the pixels that are not 0 only where their number decides."""
        dense, batch = self.layers[0].dense, len(images)
        if not dense.is_faster(batch, 1.0, pixels=True):
            return False
        return dense.is_faster(batch, np.count_nonzero(images) / images.size, pixels=True)

    def make_state(self, batch: int) -> State:
        """Return the membrane potentials before the first time step."""
        return [layer.make_state(batch) for layer in self.layers]

    def run_(
        self, current: Floats, steps: int, state: State, on_spikes: OnSpikes | None = None
    ) -> Floats:
        """Advance `state` in place by `steps` time steps of the same current of the first layer.

        Args:
            current: As returned by `compute_current`.
            steps: Number of time steps.
            state: Membrane potentials, as returned by `make_state`.
            on_spikes: Called with the number of each stage and its spikes ``[steps, batch, ...]``.

        Returns:
            Outputs ``[steps, batch, outputs]``.

        Raises:
            SpikewireError: If an array has another type, shape or layout, or `steps` is out of
                range.
        """
        check_steps(steps)
        check_array("current", current, np.float32, (None, self.layers[0].words * LANES))
        check(len(state) == len(self.layers), "state", len(state), f"{len(self.layers)} arrays")
        for layer, u in zip(self.layers, state, strict=True):
            layer.get_state_address(u, len(current))
        largest = max(layer.map_bytes for layer in self.layers)
        size = len(current)
        if on_spikes is None and largest:
            size = max(1, CHUNK // (steps * largest))
        outputs = []
        for begin in range(0, len(current), size):
            part = slice(begin, begin + size)
            outputs.append(
                self._run_part_(current[part], steps, [u[part] for u in state], on_spikes)
            )
        return np.concatenate(outputs, 1)

    def _run_part_(
        self, current: Floats, steps: int, state: State, on_spikes: OnSpikes | None
    ) -> Floats:
        x: Any = None
        for number, (layer, u) in enumerate(zip(self.layers, state, strict=True)):
            if number:
                x = self.advance_(layer, x, u)
            elif layer.stage.neuron is None:
                x = np.repeat(current[:, None], steps, 1)
            else:
                x = layer.fire_(self.library, current, steps, u)
            if on_spikes and layer.stage.neuron:
                shape = layer.geometry.neurons
                maps = unpack(x, shape).reshape(len(current), steps, *shape)
                on_spikes(number, maps.swapaxes(0, 1))
            x = layer.pool(self.library, x)
        return self._read_outputs(x).swapaxes(0, 1)

    def advance_(self, layer: Conv | Linear, x: Words, state: Floats) -> Words | Floats:
        """Return the spikes or currents of a layer, computed by dense torch where that is faster.

        `state` is updated in place.
        """
        if not self.exact and self._is_dense_faster(layer, x):
            return layer.feed_spikes_densely_(self.library, x, state)
        return layer.feed_spikes_(self.library, x, state, self.each)

    def _is_dense_faster(self, layer: Conv | Linear, x: Words) -> bool:
        """Count spikes only where their number decides."""
        maps, planes, dense = math.prod(x.shape[:2]), layer.planes, layer.dense
        with_none, with_all = (dense.is_faster(maps, d, planes=planes) for d in (0, planes))
        if with_none == with_all:
            return with_all
        spikes = np.count_nonzero(np.unpackbits(x.view(np.uint8)).view(bool))
        density = spikes / (maps * math.prod(layer.geometry.inputs))
        return dense.is_faster(maps, density, planes=planes)

    def _read_outputs(self, x: Any) -> Floats:
        """Return ``[batch, steps, outputs]`` of the last stage."""
        last = self.network.stages[-1]
        count = last.shape[0]
        if last.neuron is None:
            return x[..., :count]
        return unpack(x, (count,)).reshape(*x.shape[:2], count).astype(np.float32)
