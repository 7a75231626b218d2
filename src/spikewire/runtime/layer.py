"""What all stages share on the C kernels: records, pooling, neurons and outputs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spikewire.errors import check
from spikewire.formats.arrays import check_array
from spikewire.formats.network import Geometry, Pool, Stage
from spikewire.runtime.dense import Dense
from spikewire.runtime.layout import Floats, Layout, Words
from spikewire.runtime.library import (
    LANES,
    PATHS,
    Call,
    make_layer_record,
    make_neuron_record,
    make_window_record,
)

MAX_PLANES = 2**12
Added = Sequence[Floats]  # currents of other stages
State = Mapping[str, Any]  # arrays of one stage by name; their first dimension is the samples


def count_planes(pool: Pool | None) -> int:
    """Return the planes per map after a pool: one per position of the window of a sum pool."""
    return pool.size**2 if pool and pool.kind == "sum" else 1


class Layer:
    """What convolutions and fully connected layers share: records, pooling and neurons.

    Args:
        stage: The stage.
        geometry: Its shapes.
        planes: Planes per input map, as left by additions and by the pooling before.
        path: Name of the C path: a key of `PATHS`.

    Attributes:
        membrane: Whether the outputs are membrane potentials; `NativeEngine` sets it.
        recurrent: Whether the stage reads its own latest spikes; `NativeEngine` sets it.
    """

    membrane = False
    recurrent = False

    def __init__(self, stage: Stage, geometry: Geometry, planes: int, path: str) -> None:
        check(planes <= MAX_PLANES, f"{stage.name}: planes", planes, f"at most {MAX_PLANES}")
        self.stage, self.geometry, self.planes = stage, geometry, planes
        self.dense = Dense(stage, geometry, path)
        self.inputs, self.currents = Layout(geometry.inputs), Layout(geometry.currents)
        self.neurons, self.outputs = Layout(geometry.neurons), Layout(geometry.outputs)
        self.synapse = stage.neuron and stage.neuron.synapse
        self.fields: dict[str, Any] = {"planes": planes, "path": PATHS[path]}
        self.fields["neuron"] = make_neuron_record(stage.neuron)
        self.fields["synapse"] = make_neuron_record(self.synapse)
        self.fields |= self.currents.fields

    @property
    def is_fused(self) -> bool:
        """Whether the kernel of the synapses updates the neurons too."""
        plain = self.stage.current_pool is None and not self.stage.adds and not self.membrane
        return plain and self.stage.neuron is not None

    @property
    def kept(self) -> dict[str, tuple[Any, int]]:
        """Type and width of the arrays of the state: membrane potentials and, if any, others."""
        kept: dict[str, tuple[Any, int]] = {"voltage": (np.float32, self.neurons.words * LANES)}
        if self.synapse is not None:
            kept["current"] = kept["voltage"]
        if self.recurrent:
            kept["spikes"] = (np.uint16, self.neurons.words)
        return kept

    def make_state(self, batch: int) -> State:
        """Return the state before the first time step: at rest, without current and spikes."""
        state = {key: np.zeros((batch, n), dtype) for key, (dtype, n) in self.kept.items()}
        state["voltage"].fill(self.stage.neuron.rest if self.stage.neuron else 0.0)
        return state

    def make_record(self, batch: int, steps: int, state: State | None = None, **own: Any) -> Any:
        """Return the record; the arrays belong to `self` or to the caller."""
        synaptic = state["current"] if state and self.synapse else None
        sizes = {"batch": batch, "steps": steps}
        return make_layer_record({**self.fields, **own, **sizes, "synaptic": synaptic})

    def check_state(self, state: State, batch: int) -> None:
        """Check the state of `batch` samples, which the kernels write."""
        for key, (dtype, width) in self.kept.items():
            field = f"{self.stage.name}: state: {key}"
            check_array(field, state.get(key), dtype, (batch, width), writeable=True)

    def check_spikes(self, spikes: Words) -> None:
        """Check input maps ``[batch, steps, plane * word]``."""
        shape = (None, None, self.planes * self.inputs.words)
        check_array(f"{self.stage.name}: spikes", spikes, np.uint16, shape)

    def allocate_outputs(self, batch: int, steps: int) -> tuple[Any, Words | None, Floats | None]:
        """Return an array for spikes or currents, and both as arguments, one of them None."""
        if self.is_fused:
            spikes = np.empty((batch, steps, self.currents.words), np.uint16)
            return spikes, spikes, None
        currents = np.empty((batch, steps, self.currents.words * LANES), np.float32)
        return currents, None, currents

    def finish_(self, call: Call, out: Any, state: State, added: Added = ()) -> Words | Floats:
        """Return the outputs of a stage, from what its synapses returned, and from other stages."""
        if self.is_fused:
            return out
        out = self.pool_currents(call, out)
        for currents in added:
            check_array(f"{self.stage.name}: currents", currents, np.float32, out.shape)
            call("spikewire_add", out, currents, out.size)
        return out if self.stage.neuron is None else self.fire_(call, out, out.shape[1], state)

    def read_spikes(self, x: Any) -> NDArray[np.bool_]:
        """Return outputs ``[batch, steps, ...]`` of neurons as boolean spikes."""
        if self.membrane and self.stage.neuron:
            rows = x.reshape(-1, self.neurons.rows, self.neurons.row_words * LANES)
            maps = rows[..., : self.neurons.width] >= np.float32(self.stage.neuron.fires_at)
        else:
            maps = self.neurons.unpack(x)
        return maps.reshape(*x.shape[:2], *self.neurons.shape)

    def fire_(self, call: Call, current: Floats, steps: int, state: State) -> Words | Floats:
        """Return the spikes of currents ``[batch, steps, ...]``; `state` is updated in place.

        Currents ``[batch, ...]`` are fed at every step. With `membrane`, return the membrane
        potentials before the reset instead.
        """
        sizes = (None, self.neurons.words * LANES)
        sizes = sizes if np.ndim(current) == 2 else (None, steps, sizes[1])
        check_array(f"{self.stage.name}: current", current, np.float32, sizes)
        batch = len(current)
        self.check_state(state, batch)
        voltage = state["voltage"]
        record = self.make_record(batch, steps, state, **self.neurons.fields)
        if self.membrane:
            membrane = np.empty((batch, steps, self.neurons.words * LANES), np.float32)
            call("spikewire_integrate", record, current, current.ndim == 2, voltage, membrane)
            return membrane
        spikes = np.empty((batch, steps, self.neurons.words), np.uint16)
        call("spikewire_fire", record, current, current.ndim == 2, voltage, spikes)
        return spikes

    def feed_spikes_densely_(
        self, call: Call, spikes: Words, state: State, added: Added = ()
    ) -> Words | Floats:
        """Return the result of `feed_spikes_`, up to rounding, computed by dense torch."""
        self.check_spikes(spikes)
        batch, steps = spikes.shape[:2]
        maps = self.inputs.unpack(spikes).reshape(-1, self.planes, *self.geometry.inputs)
        currents = self.currents.pad_rows(self.dense(torch.from_numpy(maps)))
        currents = currents.reshape(batch, steps, -1)
        if not self.is_fused:
            return self.finish_(call, currents, state, added)
        return self.fire_(call, currents, steps, state)

    def pool_currents(self, call: Call, currents: Floats) -> Floats:
        """Return ``[..., neurons]`` of currents after the pooling before the neurons."""
        pool, wide, narrow = self.stage.current_pool, self.currents, self.neurons
        if pool is None:
            return currents
        out = np.empty((*currents.shape[:-1], narrow.words * LANES), np.float32)
        maps = math.prod(currents.shape[:-1]) * wide.channels
        sizes = (maps, wide.height, wide.width, wide.row_words * LANES)
        ends = (narrow.height, narrow.width, narrow.row_words * LANES, pool.kind == "max")
        call("spikewire_pool_currents", currents, out, *sizes, make_pool_window(pool), *ends)
        return out

    def pool(self, call: Call, spikes: Words) -> Words:
        """Return ``[batch, steps, plane * word]`` after the pooling of the stage."""
        pool, wide, narrow = self.stage.pool, self.neurons, self.outputs
        if pool is None:
            return spikes
        check_array(f"{self.stage.name}: spikes", spikes, np.uint16, (None, None, wide.words))
        out = np.empty((*spikes.shape[:2], count_planes(pool) * narrow.words), np.uint16)
        sizes = (math.prod(spikes.shape[:2]), wide.channels, wide.height, wide.row_words)
        ends = (narrow.height, narrow.row_words, narrow.tail, pool.kind == "max")
        call("spikewire_pool", spikes, out, *sizes, make_pool_window(pool), *ends)
        return out

    def read_outputs(self, call: Call, x: Any) -> Floats:
        """Return spikes or currents ``[batch, steps, ...]`` as ``[steps, batch, outputs]``."""
        batch, steps = x.shape[:2]
        out = np.empty((steps, batch, math.prod(self.neurons.shape)), np.float32)
        both = (x, None) if x.dtype == np.uint16 else (None, x)
        sizes = (self.neurons.rows, self.neurons.width, self.neurons.row_words)
        call("spikewire_read", *both, out, batch, steps, *sizes)
        return out


def make_pool_window(pool: Pool) -> Any:
    """Return the window of a pool for the kernels."""
    sizes = (pool.size, pool.step, pool.padding, 1)
    return make_window_record(*((size, size) for size in sizes))
