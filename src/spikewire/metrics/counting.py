"""What a network costs and how it fires: pure readers of model, masks and spikes.

synops = sum over layers, time and spikes of the surviving fan-out, per sample     (accumulates)
macs   = the same for inputs that are not 0 or 1, such as an image         (multiply-accumulates)
energy = 0.9 pJ * synops + 4.6 pJ * macs                        (45 nm; memory access is kept apart)
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError, check
from spikewire.metrics.links import (
    NORMS,
    activity_of,
    fan_out,
    first_tensor,
    is_spiking,
    living_links,
    operations,
    synaptic_layers,
)
from spikewire.nn.neurons import Neuron
from spikewire.pruning.allocation import turnover


@dataclass(frozen=True)
class Costs:
    """Energy of one operation in pJ: 45 nm, 32 bits; reads from an 8 kB SRAM (Horowitz 2014)."""

    accumulate: float = 0.9
    multiply_accumulate: float = 4.6
    weight_read: float = 5.0


@dataclass(frozen=True)
class Energy:
    """Energy of one sample in pJ; `memory` is one weight read for every operation."""

    compute: float
    memory: float


@dataclass(frozen=True)
class LayerMeasure:
    """One synaptic layer; operations are per sample.

    `unpruned`: the same spikes into all weights. `dense`: every input active, all weights.
    """

    name: str
    weights: int
    present: int
    synops: float
    macs: float
    unpruned: float
    dense: float
    links: int | None = None
    dense_links: int | None = None

    @property
    def connectivity(self) -> float:
        """Share of the weights that exist."""
        return self.present / self.weights


@dataclass(frozen=True)
class Firing:
    """One spiking layer: the mean spikes a time step of each neuron."""

    name: str
    rates: Tensor

    @property
    def rate(self) -> float:
        """Mean over neurons."""
        return float(self.rates.mean())

    @property
    def silent(self) -> float:
        """Share of neurons that never fire."""
        return float((self.rates == 0).double().mean())

    @property
    def saturated(self) -> float:
        """Share of neurons that fire at every time step."""
        return float((self.rates == 1).double().mean())


@dataclass(frozen=True)
class Measurement:
    """A network on some samples; `uncounted` names matrices outside conv and linear layers."""

    samples: int
    layers: list[LayerMeasure]
    firing: list[Firing]
    bytes_dense: int
    bytes_packed: int
    uncounted: list[str] = field(default_factory=list)

    @property
    def connectivity(self) -> float:
        """Share of all weights that exist."""
        return sum(x.present for x in self.layers) / sum(x.weights for x in self.layers)

    @property
    def synapse_connectivity(self) -> float | None:
        """Share of neuron-to-neuron links that exist and lie on a path from input to output."""
        if any(x.links is None for x in self.layers):
            return None
        return sum(x.links or 0 for x in self.layers) / sum(x.dense_links or 0 for x in self.layers)

    @property
    def synops(self) -> float:
        """Accumulates per sample."""
        return sum(x.synops for x in self.layers)

    @property
    def macs(self) -> float:
        """Multiply-accumulates per sample."""
        return sum(x.macs for x in self.layers)

    @property
    def unpruned(self) -> float:
        """Operations per sample that a counter blind to the wiring reports."""
        return sum(x.unpruned for x in self.layers)

    @property
    def dense(self) -> float:
        """Operations per sample of a dense network fed frame by frame."""
        return sum(x.dense for x in self.layers)

    def energy(self, costs: Costs = Costs()) -> Energy:  # noqa: B008 - frozen
        """Return the energy of one sample."""
        compute = costs.accumulate * self.synops + costs.multiply_accumulate * self.macs
        return Energy(compute, costs.weight_read * (self.synops + self.macs))

    def row(self) -> dict[str, Any]:
        """Return the figures of the whole network, flat, for a logger."""
        neurons = sum(x.rates.numel() for x in self.firing)

        def mean(values: Iterable[float]) -> float | None:
            sizes = [x.rates.numel() for x in self.firing]
            pairs = zip(values, sizes, strict=True)
            return sum(value * size for value, size in pairs) / neurons if neurons else None

        energy = self.energy()
        return {
            "synops": self.synops,
            "macs": self.macs,
            "unpruned": self.unpruned,
            "dense": self.dense,
            "compute_pj": energy.compute,
            "memory_pj": energy.memory,
            "synapse_connectivity": self.synapse_connectivity,
            "rate": mean(x.rate for x in self.firing),
            "silent": mean(x.silent for x in self.firing),
            "saturated": mean(x.saturated for x in self.firing),
            "bytes_dense": self.bytes_dense,
            "bytes_packed": self.bytes_packed,
        }


# ---------------------------------------------------------------------- measure


def measure(
    model: nn.Module,
    batch: Tensor | Iterable[Any],
    masks: Mapping[str, Tensor] | None = None,
    *,
    time_first: bool = False,
    spiking: Callable[[nn.Module], bool] = is_spiking,
    synapses: bool = True,
) -> Measurement:
    """Run `model` on a batch (or a loader of them) and count; the model is left as it was.

    Masks default to ``weight != 0``. `time_first`: inputs are ``[time, batch, ...]``. `spiking`
    tells which modules are neurons. An input of only 0 and 1 is spikes, any other is analogue.
    """
    layers = synaptic_layers(model)
    check(bool(layers), "model", type(model).__name__, "one with conv or linear layers")
    wiring = {name: _mask(name, module, masks) for name, module in layers.items()}
    counter = _Counter(layers, wiring)
    links: dict[str, tuple[int, int]] = {}
    with torch.no_grad(), undisturbed(model):
        counter.watch(model, spiking)
        example = None
        for x in _inputs(batch):
            counter.begin(x.shape[1] if time_first else len(x))
            model(x)
            example = x if example is None else example
            restart(model)
    if example is None:
        raise SpikewireError("batch: is empty; there is nothing to measure")
    if synapses:
        with undisturbed(model):
            one = example[:, :1] if time_first else example[:1]
            links = living_links(model, one, wiring, spiking)
    return counter.result(links, *parameter_bytes(model, wiring), uncounted(model))


def _inputs(batch: Tensor | Iterable[Any]) -> Iterator[Tensor]:
    for item in [batch] if isinstance(batch, Tensor) else batch:
        yield item if isinstance(item, Tensor) else item[0]


def _mask(name: str, module: nn.Module, masks: Mapping[str, Tensor] | None) -> Tensor:
    weight: Any = module.weight
    if masks is None or name not in masks:
        return weight.detach() != 0
    shape = tuple(masks[name].shape)
    check(
        shape == tuple(weight.shape), f"masks[{name!r}]", shape, f"of shape {tuple(weight.shape)}"
    )
    return masks[name].to(weight.device).bool()


class _Counter:
    """Hooks that add up operations and spikes."""

    def __init__(self, layers: Mapping[str, nn.Module], wiring: Mapping[str, Tensor]) -> None:
        self.layers, self.wiring = layers, wiring
        self.samples, self.batch = 0, 0
        self.fans = {n: fan_out(m, wiring[n]) for n, m in layers.items()}
        self.full = {n: fan_out(m, torch.ones_like(wiring[n])) for n, m in layers.items()}
        self.sums = {n: dict.fromkeys(("synops", "macs", "unpruned", "dense"), 0.0) for n in layers}
        self.spikes: dict[str, tuple[Tensor, int]] = {}

    def begin(self, samples: int) -> None:
        """Start a batch."""
        self.batch = samples
        self.samples += samples

    def watch(self, model: nn.Module, spiking: Callable[[nn.Module], bool]) -> None:
        """Put the hooks on; `undisturbed` takes them off."""
        for name, module in self.layers.items():
            module.register_forward_pre_hook(partial(self.count, name))
        for name, module in model.named_modules():
            if spiking(module):
                module.register_forward_hook(partial(self.listen, name))

    def count(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Add one call of a synaptic layer."""
        x = inputs[0]
        activity, frames = activity_of(module, x)
        sums = self.sums[name]
        sums["synops" if _binary(x) else "macs"] += operations(module, activity, self.fans[name])
        sums["unpruned"] += operations(module, activity, self.full[name])
        sums["dense"] += frames * operations(module, torch.ones_like(activity), self.full[name])

    def listen(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        """Add one call of a spiking layer; one that gives out voltages is passed over."""
        out = first_tensor(output)
        if not _binary(out):
            return
        lead = _leading(module, out, self.batch)
        counts = out.flatten(0, lead - 1).sum(0, dtype=torch.float64)
        before, events = self.spikes.get(name, (torch.zeros_like(counts), 0))
        self.spikes[name] = (before + counts, events + math.prod(out.shape[:lead]))

    def result(
        self,
        links: Mapping[str, tuple[int, int]],
        bytes_dense: int,
        bytes_packed: int,
        uncounted: list[str],
    ) -> Measurement:
        """Return the sums per sample."""
        layers = []
        for name, sums in self.sums.items():
            mask = self.wiring[name]
            each = {key: value / self.samples for key, value in sums.items()}
            living, dense = links.get(name, (None, None))
            layers.append(
                LayerMeasure(
                    name, mask.numel(), int(mask.sum()), **each, links=living, dense_links=dense
                )
            )
        firing = [Firing(n, (counts / events).cpu()) for n, (counts, events) in self.spikes.items()]
        return Measurement(self.samples, layers, firing, bytes_dense, bytes_packed, uncounted)


def _binary(x: Tensor) -> bool:
    return bool(((x == 0) | (x == 1)).all())


def _leading(module: nn.Module, out: Tensor, batch: int) -> int:
    """Return how many leading dimensions are time and batch, by what is known of the library."""
    mode = getattr(module, "step_mode", None)  # SpikingJelly
    if mode in ("s", "m"):
        return 2 if mode == "m" else 1
    if isinstance(module, Neuron):
        return 2
    sequences = ("SNN", "SNNRecurrent")  # Norse: over time, unlike its cells
    if any(kind.__name__ in sequences for kind in type(module).__mro__):
        return 2
    return 2 if out.dim() > 1 and out.shape[0] != batch and out.shape[1] == batch else 1


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate with fresh neurons inside; modes, state, buffers and hooks are put back."""
    live = [vars(module) for module in model.modules()]
    inner = [value for attributes in live for value in attributes.values()]
    # the same dict objects are filled again: handles of hooks point to them
    saved = [(d, dict(d)) for d in [*live, *inner] if isinstance(d, dict)]
    model.eval()
    restart(model)
    try:
        yield
    finally:
        for mapping, content in saved:
            mapping.clear()
            mapping.update(content)


def restart(model: nn.Module) -> None:
    """Let neurons that remember the last batch (SpikingJelly, snnTorch) forget it."""
    for module in model.modules():
        if hasattr(module, "_memories") and hasattr(module, "reset"):
            module.reset()  # pyright: ignore[reportCallIssue]
        elif getattr(module, "init_hidden", False) and hasattr(module, "reset_mem"):
            module.reset_mem()  # pyright: ignore[reportCallIssue]


# ---------------------------------------------------------------------- sizes, changes


def packed_bytes(mask: Tensor, value_bytes: int = 2) -> int:
    """Return the size of a layer as values and their places: the best of three layouts.

    8-bit gaps (255 = none here, go on), a bit mask, or every weight.
    """
    places = mask.flatten().nonzero().flatten()
    gaps = places.diff(prepend=places.new_full((1,), -1)) - 1
    present = len(places) * value_bytes
    by_gaps = len(places) + int((gaps // 255).sum()) + present
    return min(by_gaps, math.ceil(mask.numel() / 8) + present, mask.numel() * value_bytes)


def parameter_bytes(model: nn.Module, masks: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return (bytes as they are, bytes with masked weights packed at 16 bits)."""
    named = dict(model.named_parameters())
    size = {name: p.numel() * p.element_size() for name, p in named.items()}
    packed = sum(packed_bytes(masks[n]) if n in masks else s for n, s in size.items())
    return sum(size.values()), packed


def uncounted(model: nn.Module) -> list[str]:
    """Return matrices whose operations no hook sees: recurrent cells, attention, embeddings."""
    known = synaptic_layers(model)
    owners = {f"{n}.{p}" if n else p: m for n, m in model.named_modules() for p in m._parameters}
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() >= 2 and not isinstance(owners[name], NORMS) and name not in known
    ]


def changes(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Return for each layer what exists now, and what was pruned and regrown in between.

    ``turnover = (pruned + regrown) / (present before + present after)``.
    """
    rows = {}
    for name, mask in after.items():
        pruned, regrown = turnover(before[name], mask)
        present = int(mask.sum())
        both = int(before[name].sum()) + present
        rows[name] = {
            "present": present,
            "total": mask.numel(),
            "pruned": pruned,
            "regrown": regrown,
            "turnover": (pruned + regrown) / both if both else 0.0,
        }
    return rows
