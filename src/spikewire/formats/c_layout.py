"""Where a C file keeps the state of a network: offsets in the arrays that all layers share.

Maps of spikes that are not needed at the same time share memory: stage k reads its inputs at time
2 k of a time step and writes its spikes at 2 k + 1.
"""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from spikewire.formats.network import IMAGE, Network, Source


class Map(NamedTuple):
    """Spikes that are stored from time `first` to `last`, both included."""

    size: int
    first: int
    last: int


class Layout(NamedTuple):
    """Places in the array of all spikes.

    Attributes:
        spikes: Offset of the spikes of each stage, before and after pooling.
        sums: Offset of the sum of what a stage reads, where that is more than one map.
        size: Size of the array.
    """

    spikes: Mapping[Source, int]
    sums: Mapping[int, int]
    size: int


class Places(NamedTuple):
    """Places of all layers.

    Attributes:
        records: The fields of each layer's record.
        sources: Offsets of what layers read, in the array of spikes.
        added: Offsets of the currents that layers add, in the array of membranes.
        spikes: Size of the array of spikes.
        synaptic: Number of synaptic currents.
    """

    records: list[dict[str, int]]
    sources: list[int]
    added: list[int]
    spikes: int
    synaptic: int


def find_places(network: Network) -> Places:
    """Return the places of all layers."""
    layout, counts = place_spikes(network), [prod(shapes.neurons) for shapes in network.geometry]
    states = [sum(counts[:number]) for number in range(len(counts))]
    found = Places([], [], [], layout.size, 0)
    for number, (stage, sources) in enumerate(zip(network.stages, network.sources, strict=True)):
        record = {"state": states[number], "synaptic": found.synaptic}
        record["fired"] = layout.spikes.get(Source(number, False), 0)
        record["pooled"] = layout.spikes.get(Source(number, True), 0)
        record["summed"] = layout.sums.get(number, 0)
        record["first_source"], record["first_added"] = len(found.sources), len(found.added)
        found.sources.extend(layout.spikes[x] for x in sources if x.stage != IMAGE)
        found.added.extend(states[k] for k in stage.adds)
        record["last_source"], record["last_added"] = len(found.sources), len(found.added)
        found.records.append(record)
        if stage.neuron and stage.neuron.synapse:
            found = found._replace(synaptic=found.synaptic + counts[number])
    return found


def place_spikes(network: Network) -> Layout:
    """Return the places of all maps of spikes: the lowest that is free for as long as needed."""
    maps = {source: _find_map(network, source) for source in _list_maps(network)}
    sums = {number: _find_sum(network, number) for number in range(len(network.stages))}
    sums = {number: found for number, found in sums.items() if found is not None}
    offsets: dict[Source | int, int] = {}
    wanted: dict[Source | int, Map] = {**maps, **sums}
    for key in sorted(wanted, key=lambda key: wanted[key].first):
        now = wanted[key]
        taken = [(at, at + wanted[k].size) for k, at in offsets.items() if _meet(wanted[k], now)]
        offsets[key] = _find_gap(now.size, taken)
    size = max((at + wanted[key].size for key, at in offsets.items()), default=0)
    spikes = {key: offsets[key] for key in maps}
    return Layout(spikes, {key: offsets[key] for key in sums}, size)


def _list_maps(network: Network) -> list[Source]:
    """Return the maps of all stages with neurons."""
    pairs = [(k, stage) for k, stage in enumerate(network.stages) if stage.neuron]
    pooled = [Source(k, True) for k, stage in pairs if stage.pool]
    return [Source(k, False) for k, _ in pairs] + pooled


def _find_map(network: Network, source: Source) -> Map:
    """Return size and lifetime of spikes; a recurrent stage reads them in the next time step."""
    number, geometry = source.stage, network.geometry[source.stage]
    size = prod(geometry.outputs if source.pooled else geometry.neurons)
    readers = [k for k, sources in enumerate(network.sources) if source in sources]
    end = 2 * len(network.stages)  # when the outputs are read
    if number in readers:
        return Map(size, 0, end)
    last = max((2 * k for k in readers), default=2 * number + 1)
    return Map(size, 2 * number + 1, end if number == len(network.stages) - 1 else last)


def _find_sum(network: Network, number: int) -> Map | None:
    """Return size and lifetime of a sum of spikes; None for a stage that reads one map."""
    if len(network.sources[number]) == 1:
        return None
    return Map(prod(network.geometry[number].inputs), 2 * number, 2 * number)


def _meet(a: Map, b: Map) -> bool:
    return a.first <= b.last and b.first <= a.last


def _find_gap(size: int, taken: list[tuple[int, int]]) -> int:
    """Return the lowest offset of `size` free places."""
    at = 0
    for begin, end in sorted(taken):
        if begin - at >= size:
            break
        at = max(at, end)
    return at
