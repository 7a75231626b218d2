"""What is collected while a network trains: figures for its metrics, distributions for its plots.

Reads model, method and masks between epochs; changes nothing and draws no random number.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spikewire.pruning.method import Method
from spikewire.metrics.counting import Measurement, changes, measure

BINS, RATE_BINS = 60, 50
SAMPLE = 65_536  # values of a layer that make its histogram, evenly spaced
TRACES = 20  # of a run, where the config does not say
PROBE = 128  # images that are enough between the first and the last epoch


@dataclass
class Traces:
    """Distributions over traced epochs: theta and weights of each layer, rates of its neurons."""

    layers: list[str] = field(default_factory=list)
    neurons: list[str] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    theta: list[np.ndarray] = field(default_factory=list)  # each [layer, BINS]
    theta_range: list[np.ndarray] = field(default_factory=list)  # each [layer, 2]
    weight: list[np.ndarray] = field(default_factory=list)
    weight_range: list[np.ndarray] = field(default_factory=list)
    rates: list[np.ndarray] = field(default_factory=list)  # each [neurons, RATE_BINS]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all of it as plain arrays, the epoch first."""
        return {key: np.array(value) for key, value in vars(self).items()}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Traces":
        """Return traces from `arrays`."""
        names = {key: [str(name) for name in arrays[key]] for key in ("layers", "neurons")}
        rest = {key: list(arrays[key]) for key in vars(cls()) if key not in names}
        return cls(**names, **{**rest, "epochs": [int(epoch) for epoch in arrays["epochs"]]})

    def cut(self, epochs: int) -> None:
        """Drop what lies beyond `epochs`; a resumed run will trace it again."""
        keep = sum(epoch <= epochs for epoch in self.epochs)
        for value in list(vars(self).values())[2:]:
            del value[keep:]


def histogram(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return counts over the central 99.8 % of the values, the rest in the end bins; its ends."""
    flat = values.detach().flatten()
    flat = flat[:: max(1, flat.numel() // SAMPLE)].float().cpu()
    if not flat.numel():
        return np.zeros(BINS, np.int32), np.zeros(2, np.float32)
    low, high = torch.quantile(flat, torch.tensor([0.001, 0.999])).tolist()
    counts = torch.histc(flat.clamp(low, high), BINS, low, high)
    return counts.numpy().astype(np.int32), np.array([low, high], np.float32)


def hidden(method: Method) -> dict[str, Tensor]:
    """Return what the optimizer moves: theta where it has a sign, the latent, else the weight."""
    found = {}
    for layer in method._layers:
        value = layer.state.get("latent", layer.weight.detach())
        found[layer.name] = value * layer.state["sign"] if "sign" in layer.state else value
    return found


class Collector:
    """Adds to each epoch's line of the metrics, and keeps traces at an interval."""

    def __init__(self, every: int, epochs: int, method: Method) -> None:
        self.every, self.epochs = every or math.ceil(epochs / TRACES), epochs
        self.traces = Traces()
        self.seen = method.masks()

    def due(self, epoch: int) -> bool:
        """Tell whether this epoch is traced: the first, the last and every so many."""
        return epoch in (1, self.epochs) or epoch % self.every == 0

    def look(self, epoch: int, method: Method) -> None:
        """Keep the distributions of a method that has not finished yet."""
        if not self.due(epoch):
            return
        thetas, masks, traces = hidden(method), method.masks(), self.traces
        weights = {layer.name: layer.weight.detach() for layer in method._layers}
        traces.layers = list(thetas)
        traces.epochs.append(epoch)
        for name, values in (
            ("theta", thetas),
            ("weight", {n: w[masks[n]] for n, w in weights.items()}),
        ):
            pairs = [histogram(values[layer]) for layer in traces.layers]
            getattr(traces, name).append(np.stack([counts for counts, _ in pairs]))
            getattr(traces, f"{name}_range").append(np.stack([ends for _, ends in pairs]))

    def row(
        self,
        epoch: int,
        model: nn.Module,
        masks: Mapping[str, Tensor],
        images: Iterable[Tensor],
    ) -> dict[str, Any]:
        """Return the epoch's wiring by layer and, where due, the network's cost and firing.

        Between the first and the last epoch a few images are enough.
        """
        extra: dict[str, Any] = {"layers": changes(self.seen, masks)}
        self.seen = dict(masks)
        if not self.due(epoch):
            return extra
        batches = images if epoch == self.epochs else [next(iter(images))[:PROBE]]
        found = measure(model, batches, masks)
        self.traces.neurons = [firing.name for firing in found.firing]
        self.traces.rates.append(_rate_counts(found))
        return extra | {"measured": {**found.row(), "firing": _firing(found)}}


def _rate_counts(found: Measurement) -> np.ndarray:
    counts = [np.histogram(x.rates.numpy(), RATE_BINS, (0, 1))[0] for x in found.firing]
    return np.array(counts, np.int32).reshape(len(counts), RATE_BINS)


def _firing(found: Measurement) -> dict[str, dict[str, float]]:
    return {
        x.name: {"rate": x.rate, "silent": x.silent, "saturated": x.saturated} for x in found.firing
    }


def rate_edges() -> Sequence[float]:
    """Return the edges of the bins of `Traces.rates`."""
    return np.linspace(0, 1, RATE_BINS + 1).tolist()
