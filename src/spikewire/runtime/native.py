"""A network on the C kernels, stage after stage.

All time steps of a layer run before the next layer begins, so threads meet once a layer.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spikewire.formats.network import Network
from spikewire.runtime.layers import Conv, Floats, Linear, Words, planes_after, unpack

State = list[Floats]
Seen = Callable[[int, NDArray[np.bool_]], None]
CHUNK = 2**22  # bytes of shifted spikes at once: about what stays in the cache


class Native:
    """A network on one of the C paths; `current`, `rest` and `run` are what a `Runtime` needs.

    Unless `exact`, stages are computed densely where that is quicker.
    """

    def __init__(
        self, network: Network, library: Any, path: str, threads: int, exact: bool = True
    ) -> None:
        self.network, self.library, self.exact = network, library, exact
        self.layers: list[Conv | Linear] = []
        planes = 1
        for stage, place in zip(network.stages, network.geometry, strict=True):
            kind = Linear if len(stage.shape) == 2 else Conv
            self.layers.append(kind(stage, place, planes, path, threads))
            planes = planes_after(stage.pool)
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def each(self, run: Callable[[Any], None], parts: Sequence[Any]) -> None:
        """Do the parts at once; ctypes lets go of the interpreter's lock."""
        if self.pool is None or len(parts) == 1:
            for part in parts:
                run(part)
        else:
            list(self.pool.map(run, parts))

    def current(self, images: Floats) -> Floats:
        """Return what the first layer makes of images ``[batch, *input_shape]``."""
        first, batch = self.layers[0], len(images)
        if not self.exact and first.dense.wins(batch, 1.0, pixels=True):
            share = np.count_nonzero(images) / images.size
            if first.dense.wins(batch, share, pixels=True):
                return first.lay_out(first.dense(torch.from_numpy(images).unsqueeze(1)))
        return first.analogue(self.library, images, self.each)

    def rest(self, batch: int) -> State:
        """Return a state before the first step."""
        return [layer.rest(batch) for layer in self.layers]

    def run(self, current: Floats, steps: int, state: State, seen: Seen | None = None) -> Floats:
        """Advance `steps`; return the outputs ``[steps, batch, outputs]``."""
        largest = max(layer.bytes for layer in self.layers)
        size = len(current)
        if seen is None and largest:
            size = max(1, CHUNK // (steps * largest))
        parts = []
        for begin in range(0, len(current), size):
            here = slice(begin, begin + size)
            parts.append(self._run(current[here], steps, [u[here] for u in state], seen))
        return np.concatenate(parts, 1)

    def _run(self, current: Floats, steps: int, state: State, seen: Seen | None) -> Floats:
        x: Any = None
        for number, (layer, u) in enumerate(zip(self.layers, state, strict=True)):
            if number:
                x = self.advance(layer, x, u)
            elif layer.stage.neuron is None:
                x = np.repeat(current[:, None], steps, 1)
            else:
                x = layer.fire(self.library, current, steps, u)
            if seen and layer.stage.neuron:
                maps = unpack(x, layer.place.neurons)
                seen(number, maps.reshape(len(current), steps, *layer.place.neurons).swapaxes(0, 1))
            x = layer.pool(self.library, x)
        return self._outputs(x).swapaxes(0, 1)

    def advance(self, layer: Conv | Linear, x: Words, state: Floats) -> Any:
        """Return what a layer makes of spikes, densely where that is quicker."""
        if not self.exact and self._dense_wins(layer, x):
            return layer.densely(self.library, x, state)
        return layer.spiking(self.library, x, state, self.each)

    def _dense_wins(self, layer: Conv | Linear, x: Words) -> bool:
        """Count spikes only where their number decides."""
        maps, planes = math.prod(x.shape[:2]), layer.planes
        none, most = (layer.dense.wins(maps, share, planes=planes) for share in (0, planes))
        if none == most:
            return most
        spikes = np.count_nonzero(np.unpackbits(x.view(np.uint8)).view(bool))
        share = spikes / (maps * math.prod(layer.place.inputs))
        return layer.dense.wins(maps, share, planes=planes)

    def _outputs(self, x: Any) -> Floats:
        count = self.network.stages[-1].shape[0]
        if self.network.stages[-1].neuron is None:
            return x[..., :count]
        return unpack(x, (count,)).reshape(*x.shape[:2], count).astype(np.float32)
