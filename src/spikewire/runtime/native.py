"""A network on the C kernels, one stage after the other.

All time steps of a layer run before the next layer begins, so threads are joined once per layer.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spikewire.errors import check
from spikewire.formats.arrays import check_array
from spikewire.formats.network import Network, Stage, check_steps
from spikewire.runtime.layer import Added, State, count_planes
from spikewire.runtime.layers import Conv, Linear
from spikewire.runtime.layout import Floats, Words
from spikewire.runtime.library import LANES, Call, Kernels
from spikewire.runtime.program import Program, Programs, Recorder

OnSpikes = Callable[[int, NDArray[np.bool_]], None]
CHUNK = 2**22  # bytes of shifted spikes at once: about what stays in the cache


class NativeEngine:
    """A network on one of the C paths; `Runtime` uses `run_images`, `make_state` and `run_`.

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
        self.network, self.exact = network, exact
        self.call = Kernels(library)
        self.layers = [
            (Conv if stage.is_conv else Linear)(
                stage, geometry, count_source_planes(network, number), path, threads
            )
            for number, (stage, geometry) in enumerate(
                zip(network.stages, network.geometry, strict=True)
            )
        ]
        self.layers[-1].membrane = network.membrane
        for number in network.recurrent:
            self.layers[number].recurrent = True
        self.last_use = find_last_uses(network)
        self.threads = threads
        self.executors: dict[int, ThreadPoolExecutor] = {}  # by process
        self.programs = Programs()

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

    def run_images(self, images: Floats, steps: int) -> Floats:
        """Return the outputs ``[steps, batch, outputs]`` of neurons that start at rest.

        The calls of the kernels are recorded for small batches, and repeated as one.
        """
        program = self.programs.find(images, steps)
        if program is not None:
            return program.run(images)
        check_steps(steps)
        check_array("images", images, np.float32, (None, *self.network.input_shape))
        if self._is_recordable(len(images), steps):
            return self.programs.store(self._record(images, steps), steps).run(images)
        return self.run_(self.compute_current(images), steps, self.make_state(len(images)))

    def _is_recordable(self, batch: int, steps: int) -> bool:
        """Whether the same calls serve all images: one thread, one piece, no dense stage."""
        if self.threads > 1 or self._count_at_once(batch, steps) < batch:
            return False
        return self.exact or not (
            self.layers[0].dense.is_faster(batch, 1.0, pixels=True)
            or any(self._may_be_dense(layer, batch * steps) for layer in self.layers[1:])
        )

    def _record(self, images: Floats, steps: int) -> Program:
        recorder = Recorder()
        source, state = np.empty_like(images), self.make_state(len(images))
        for own, start in zip(state, self.make_state(1), strict=True):
            for key, rest in start.items():
                sizes = (1, len(images), rest.nbytes, 0, rest.nbytes, 0, 0)
                recorder("spikewire_copy", own[key], rest, *sizes)
        first = self.layers[0]
        current = first.pool_currents(recorder, first.feed_pixels(recorder, source, self.each))
        outputs = self._run_part_(recorder, current, steps, state, None)
        return recorder.finish(self.call, source, outputs)

    def compute_current(self, images: Floats) -> Floats:
        """Return the current of the first layer for images ``[batch, *input_shape]``."""
        check_array("images", images, np.float32, (None, *self.network.input_shape))
        first = self.layers[0]
        if not self.exact and self._is_dense_faster_on_pixels(images):
            current = first.currents.pad_rows(first.dense(torch.from_numpy(images).unsqueeze(1)))
        else:
            current = first.feed_pixels(self.call, images, self.each)
        return first.pool_currents(self.call, current)

    def _is_dense_faster_on_pixels(self, images: Floats) -> bool:
        """Count the pixels that are not 0 only where their number decides."""
        dense, batch = self.layers[0].dense, len(images)
        if not dense.is_faster(batch, 1.0, pixels=True):
            return False
        return dense.is_faster(batch, np.count_nonzero(images) / images.size, pixels=True)

    def make_state(self, batch: int) -> list[State]:
        """Return the state of every stage before the first time step."""
        return [layer.make_state(batch) for layer in self.layers]

    def check_state(self, state: Sequence[State], batch: int) -> None:
        """Check the state of `batch` samples, which the kernels write."""
        count = len(self.layers)
        fits = len(state) == count and all(isinstance(own, Mapping) for own in state)
        check(fits, "state", f"{len(state)} objects", f"{count} mappings, one per stage")
        for layer, own in zip(self.layers, state, strict=True):
            layer.check_state(own, batch)

    def run_(
        self,
        current: Floats,
        steps: int,
        state: Sequence[State],
        on_spikes: OnSpikes | None = None,
    ) -> Floats:
        """Advance `state` in place by `steps` time steps of the same current of the first layer.

        Args:
            current: As returned by `compute_current`.
            steps: Number of time steps.
            state: As returned by `make_state`.
            on_spikes: Called with the number of each stage and its spikes ``[steps, batch, ...]``.

        Returns:
            Outputs ``[steps, batch, outputs]``.

        Raises:
            SpikewireError: If an array has another type, shape or layout, or `steps` is out of
                range.
        """
        check_steps(steps)
        check_array("current", current, np.float32, (None, self.layers[0].neurons.words * LANES))
        self.check_state(state, len(current))
        size = len(current) if on_spikes else self._count_at_once(len(current), steps)
        outputs = []
        for begin in range(0, len(current), size):
            part = slice(begin, begin + size)
            own = [{key: array[part] for key, array in of.items()} for of in state]
            outputs.append(self._run_part_(self.call, current[part], steps, own, on_spikes))
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, 1)

    def _count_at_once(self, batch: int, steps: int) -> int:
        """Return how many samples to run at once, so that shifted spikes stay in the cache."""
        largest = max(layer.map_bytes for layer in self.layers)
        return max(1, CHUNK // (steps * largest)) if largest else max(1, batch)

    def _run_part_(
        self,
        call: Call,
        current: Floats,
        steps: int,
        state: Sequence[State],
        on_spikes: OnSpikes | None,
    ) -> Floats:
        spikes: dict[tuple[int, bool], Any] = {}  # by stage, before and after its pooling
        x: Any = None
        for number, (layer, own) in enumerate(zip(self.layers, state, strict=True)):
            added = [spikes[other, False] for other in layer.stage.adds]
            if layer.recurrent:
                x = self._feed_back_(call, layer, steps, own, added)
            elif number:
                x = self.advance_(layer, self._gather(call, number, spikes), own, added, call)
            elif layer.stage.neuron is None:
                x = repeat(call, current, steps)
            else:
                x = layer.fire_(call, current, steps, own)
            if on_spikes and layer.stage.neuron:
                on_spikes(number, layer.read_spikes(x).swapaxes(0, 1))
            spikes[number, False] = x
            for key in [key for key in spikes if self.last_use[key[0]] <= number]:
                del spikes[key]
        return self.layers[-1].read_outputs(call, x)

    def _feed_back_(
        self, call: Call, layer: Conv | Linear, steps: int, state: State, added: Added
    ) -> Words:
        """Return the spikes of a recurrent stage; `state` is updated in place."""
        latest = state["spikes"]
        batch, words = latest.shape
        out = np.empty((batch, steps, words), np.uint16)
        for step in range(steps):
            now = [select_step(call, currents, step) for currents in added]
            x = self.advance_(layer, latest.reshape(batch, 1, words), state, now, call)
            call("spikewire_copy", latest, x, 1, batch, 2 * words, 0, 2 * words, 0, 2 * words)
            sizes = (2 * words, 0, 2 * steps * words, 0, 2 * words)
            call("spikewire_copy", out[:, step:], x, 1, batch, *sizes)
        return out

    def _gather(self, call: Call, number: int, spikes: dict[tuple[int, bool], Words]) -> Words:
        """Return what a stage reads: the planes of all of its sources, one after the other."""
        parts = []
        for source in self.network.sources[number]:
            if source not in spikes:
                spikes[source] = self.layers[source.stage].pool(call, spikes[source.stage, False])
            parts.append(spikes[source])
        return parts[0] if len(parts) == 1 else concatenate(call, parts)

    def advance_(
        self,
        layer: Conv | Linear,
        x: Words,
        state: State,
        added: Added = (),
        call: Call | None = None,
    ) -> Words | Floats:
        """Return the spikes or currents of a layer, computed by dense torch where that is faster.

        `state` is updated in place.
        """
        call = call or self.call
        if not self.exact and self._is_dense_faster(layer, x):
            return layer.feed_spikes_densely_(call, x, state, added)
        return layer.feed_spikes_(call, x, state, self.each, added)

    def _may_be_dense(self, layer: Conv | Linear, maps: int) -> bool:
        planes, dense = layer.planes, layer.dense
        return any(dense.is_faster(maps, d, planes=planes) for d in (0, planes))

    def _is_dense_faster(self, layer: Conv | Linear, x: Words) -> bool:
        """Count spikes only where their number decides."""
        maps, planes, dense = math.prod(x.shape[:2]), layer.planes, layer.dense
        with_none, with_all = (dense.is_faster(maps, d, planes=planes) for d in (0, planes))
        if with_none == with_all:
            return with_all
        spikes = np.count_nonzero(np.unpackbits(x.view(np.uint8)).view(bool))
        density = spikes / (maps * math.prod(layer.geometry.inputs))
        return dense.is_faster(maps, density, planes=planes)


def count_source_planes(network: Network, number: int) -> int:
    """Return the planes per input map of a stage, over all of its sources."""

    def pool_of(stage: Stage, pooled: bool) -> int:
        return count_planes(stage.pool if pooled else None)

    return sum(pool_of(network.stages[s.stage], s.pooled) for s in network.sources[number])


def find_last_uses(network: Network) -> list[int]:
    """Return for each stage the number of the last stage that reads or adds it."""
    last = list(range(len(network.stages)))
    for number, sources in enumerate(network.sources[1:], 1):
        for earlier in (*(source.stage for source in sources), *network.stages[number].adds):
            last[earlier] = number
    return last


def repeat(call: Call, current: Floats, steps: int) -> Floats:
    """Return the same current at every step, ``[batch, steps, ...]``."""
    out = np.empty((len(current), steps, current.shape[1]), np.float32)
    size = current.shape[1] * 4
    call("spikewire_copy", out, current, len(current), steps, size, steps * size, size, size, 0)
    return out


def select_step(call: Call, currents: Floats, step: int) -> Floats:
    """Return the currents ``[batch, steps, ...]`` of one step, ``[batch, 1, ...]``."""
    batch, steps, width = currents.shape
    out = np.empty((batch, 1, width), np.float32)
    sizes = (4 * width, 0, 4 * width, 0, 4 * steps * width)
    call("spikewire_copy", out, currents[:, step:], 1, batch, *sizes)
    return out


def concatenate(call: Call, parts: list[Words]) -> Words:
    """Return the words of several sources, one after the other within each map."""
    maps, total = math.prod(parts[0].shape[:2]), sum(part.shape[2] for part in parts)
    out, begin = np.empty((*parts[0].shape[:2], total), np.uint16), 0
    for part in parts:
        size = 2 * part.shape[2]
        call("spikewire_copy", out[..., begin:], part, 1, maps, size, 0, 2 * total, 0, size)
        begin += part.shape[2]
    return out
