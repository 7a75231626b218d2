"""The header of a packed file: a network as a JSON record, without fields of usual value."""

from collections.abc import Mapping, Sequence
from typing import Any

from spikewire.errors import check
from spikewire.formats.network import Network, Neuron, Pool, Source, Stage

USUAL_NETWORK = {"vote": 1, "membrane": False, "about": {}}  # fields of this value are left out
USUAL_LAYER = {  # and "inputs", usually the layer before, after its pooling
    "stride": [1, 1],
    "padding": [0, 0],
    "dilation": [1, 1],
    "groups": 1,
    "adds": [],
    "current_pool": None,
    "neuron": None,
    "pool": None,
}
USUAL_NEURON = {"rest": 0.0, "reset": "hard", "strict": False, "current_decay": 0.0}
USUAL_POOL = {"stride": 0, "padding": 0}


def make_header(network: Network, values: str) -> dict[str, Any]:
    """Return the record of a network whose weights are stored as `values`."""
    record = {
        "layers": [_describe_layer(network.stages, i) for i in range(len(network.stages))],
        "input_shape": network.input_shape,
        "time_steps": network.time_steps,
        "classes": network.classes,
        "vote": network.vote,
        "membrane": network.membrane,
        "mean": network.mean,
        "std": network.std,
        "values": values,
        "about": dict(network.about),
    }
    return _without(USUAL_NETWORK, record)


def _describe_layer(stages: Sequence[Stage], number: int) -> dict[str, Any]:
    stage, pooled = stages[number], number > 0 and stages[number - 1].pool is not None
    record = {
        "name": stage.name,
        "shape": stage.shape,
        "stride": [*stage.stride],
        "padding": [*stage.padding],
        "dilation": [*stage.dilation],
        "groups": stage.groups,
        "inputs": [[source.stage, source.pooled] for source in stage.inputs],
        "adds": [*stage.adds],
        "current_pool": _describe_pool(stage.current_pool),
        "neuron": stage.neuron and _without(USUAL_NEURON, stage.neuron._asdict()),
        "pool": _describe_pool(stage.pool),
    }
    return _without(_usual_layer(number, pooled), record)


def complete_network(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a network with the fields that were left out."""
    return {**USUAL_NETWORK, **header}


def complete_layer(layers: Sequence[Mapping[str, Any]], number: int) -> dict[str, Any]:
    """Return the record of a layer with the fields that were left out."""
    pooled = number > 0 and layers[number - 1].get("pool") is not None
    return {**_usual_layer(number, pooled), **layers[number]}


def _describe_pool(pool: Pool | None) -> dict[str, Any] | None:
    return pool and _without(USUAL_POOL, pool._asdict())


def _usual_layer(number: int, pooled: bool) -> dict[str, Any]:
    return {**USUAL_LAYER, "inputs": [[number - 1, pooled]]}


def _without(usual: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without the fields that have their usual value."""
    return {key: x for key, x in record.items() if key not in usual or x != usual[key]}


def read_sources(layer: Mapping[str, Any]) -> tuple[Source, ...]:
    """Return what a layer reads."""
    pairs = read_field(layer, "inputs", list)
    for pair in pairs:
        fits = type(pair) is list and [type(x) for x in pair] == [int, bool]
        check(fits, "inputs", "a pair", "a number of a stage, and whether it is pooled")
    return tuple(Source(*pair) for pair in pairs)


def read_neuron(record: Mapping[str, Any] | None) -> Neuron | None:
    """Return the constants of neurons."""
    if record is None:
        return None
    record = {**USUAL_NEURON, **record}
    tau = None if record["tau"] is None else read_field(record, "tau", float)
    threshold, rest = (read_field(record, key, float) for key in ("threshold", "rest"))
    reset, update = (read_field(record, key, str) for key in ("reset", "update"))
    kept = read_field(record, "current_decay", float)
    return Neuron(tau, threshold, rest, reset, update, read_field(record, "strict", bool), kept)


def read_pool(record: Mapping[str, Any] | None) -> Pool | None:
    """Return a pooling."""
    if record is None:
        return None
    record = {**USUAL_POOL, **record}
    sizes = (read_field(record, key, int) for key in ("size", "stride", "padding"))
    return Pool(read_field(record, "kind", str), *sizes)


def read_field(record: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return a field of the JSON record; an integer is accepted as a float, a bool as neither."""
    value = record[key]
    if kind is float and type(value) is int:
        value = float(value)
    shown = value if len(repr(value)) < 40 else "a long value"
    check(type(value) is kind, key, shown, f"of type {kind.__name__}")
    return value


def read_numbers(record: Mapping[str, Any], key: str, kind: type) -> tuple[Any, ...]:
    """Return a field that is a list of numbers of one type."""
    values = read_field(record, key, list)
    return tuple(read_field({key: value}, key, kind) for value in values)
