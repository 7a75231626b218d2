"""Telemetry: what is collected about a network between epochs, for metrics, traces, TensorBoard.

Reads model, pruner and masks; changes nothing and draws no random number.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.metrics import Measurement, measure
from spikewire.nn.layers import Spiking
from spikewire.nn.names import unwrap
from spikewire.pruning import Pruner
from spikewire.pruning.costs.filesize import file_bytes
from spikewire.runs.rundir import RunDir
from spikewire.runs.snapshots import MOST, Snapshots, even_indices
from spikewire.runs.traces import BINS, RATE_BINS, Traces
from spikewire.train.snapshots import Confusion, keep_activity, keep_input_layer

SAMPLE = 65_536  # values of a layer that make its histogram, evenly spaced
TRACES = 20  # per run, where the config does not say
PROBE = 128  # images measured between the first and the last epoch


class Telemetry:
    """Adds to each epoch's line of the metrics, and keeps traces at an interval.

    Args:
        every: epochs between traces; 0: about 20 traces per run.
        epochs: epochs of the run.
        traces: those of a run that is resumed.
        snapshots: those of a run that is resumed.
    """

    def __init__(
        self,
        every: int,
        epochs: int,
        traces: Traces | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.every, self.epochs = every or math.ceil(epochs / TRACES), epochs
        self.traces, self.snapshots = traces or Traces(), snapshots or Snapshots()
        self.confusion = Confusion()
        due = [epoch for epoch in range(1, epochs + 1) if self.due(epoch)]
        self.pictured = {due[i] for i in even_indices(len(due), MOST)}

    def due(self, epoch: int) -> bool:
        """Return whether this epoch is traced: the first, the last and every n-th."""
        return epoch in (1, self.epochs) or epoch % self.every == 0

    def trace(self, epoch: int, pruner: Pruner) -> None:
        """Keep the distributions of latents and weights, if due; before `Pruner.finish`."""
        if not self.due(epoch):
            return
        thetas, masks, traces = trained_tensors(pruner), pruner.masks(), self.traces
        weights = {x.name: x.weight.detach()[masks[x.name]] for x in pruner.layers}
        traces.layers = list(thetas)
        traces.epochs.append(epoch)
        for name, values in (("theta", thetas), ("weight", weights)):
            pairs = [histogram(values[layer]) for layer in traces.layers]
            getattr(traces, name).append(np.stack([counts for counts, _ in pairs]))
            getattr(traces, f"{name}_range").append(np.stack([ends for _, ends in pairs]))

    def picture(
        self,
        epoch: int,
        model: nn.Module,
        masks: Mapping[str, Tensor],
        batches: Iterable[tuple[Tensor, Tensor]],
        temporal: bool = False,
    ) -> None:
        """Keep pictures of the network where due: its input layer, at the end its activity.

        Args:
            epoch: the epoch, from 1.
            model: the network.
            masks: which weights exist.
            batches: test images and their labels; the first batch is used.
            temporal: whether images are ``[time, batch, ...]``.
        """
        if epoch not in self.pictured:
            return
        images, labels = next(iter(batches))
        keep_input_layer(self.snapshots, epoch, model, masks, images.shape[1 + temporal :])
        if epoch == self.epochs:
            self.confusion.keep(self.snapshots)
            keep_activity(self.snapshots, model, images, int(labels[0]), temporal)

    def measure(
        self,
        epoch: int,
        model: nn.Module,
        masks: Mapping[str, Tensor],
        images: Iterable[Tensor],
        temporal: bool = False,
    ) -> dict[str, Any]:
        """Return the cost and firing of the network where due, else nothing.

        Between the first and the last epoch a few images are enough. The synapses on a path from
        input to output are left out for a network of your own whose paths cannot be followed.

        Args:
            epoch: the epoch, from 1.
            model: the network.
            masks: which weights exist.
            images: batches of the test images.
            temporal: whether they are ``[time, batch, ...]``.
        """
        if not self.due(epoch):
            return {}
        rest = iter(images)
        first = next(rest)
        few = first[:, :PROBE] if temporal else first[:PROBE]
        batches = chain([first], rest) if epoch == self.epochs else [few]
        paths = has_paths(model, few, masks, temporal)
        found = measure(model, batches, masks, time_first=temporal, time_steps=1, synapses=paths)
        self.traces.neurons = [firing.name for firing in found.firing]
        self.traces.rates.append(_rate_counts(found))
        size = file_bytes(unwrap(model), masks)
        return {"measured": {**found.row(), "bytes_file": size, "firing": _firing(found)}}


def has_paths(
    model: nn.Module, images: Tensor, masks: Mapping[str, Tensor], temporal: bool
) -> bool:
    """Return whether `measure` can follow the paths from input to output of a network."""
    if isinstance(model, Spiking):
        return True
    one = images[:, :1] if temporal else images[:1]
    try:
        measure(model, one, masks, time_first=temporal, time_steps=1)
    except SpikewireError:
        return False
    return True


def trained_tensors(pruner: Pruner) -> dict[str, Tensor]:
    """Return what the optimizer moves: theta where it has a sign, the latent, else the weight."""
    found = {}
    for layer in pruner.layers:
        value = layer.state.get("latent", layer.weight.detach())
        found[layer.name] = value * layer.state["sign"] if "sign" in layer.state else value
    return found


def histogram(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return counts over the central 99.8 % of the values, the rest in the end bins; its ends."""
    flat = values.detach().flatten()
    flat = flat[:: max(1, flat.numel() // SAMPLE)].float().cpu()
    if not flat.numel():
        return np.zeros(BINS, np.int32), np.zeros(2, np.float32)
    low, high = torch.quantile(flat, torch.tensor([0.001, 0.999])).tolist()
    counts = torch.histc(flat.clamp(low, high), BINS, low, high)
    return counts.numpy().astype(np.int32), np.array([low, high], np.float32)


def _rate_counts(found: Measurement) -> np.ndarray:
    counts = [np.histogram(x.rates.numpy(), RATE_BINS, (0, 1))[0] for x in found.firing]
    return np.array(counts, np.int32).reshape(len(counts), RATE_BINS)


def _firing(found: Measurement) -> dict[str, dict[str, float]]:
    return {
        x.name: {"rate": x.rate, "silent": x.silent, "saturated": x.saturated} for x in found.firing
    }


@contextmanager
def tensorboard(folder: RunDir | None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that writes an epoch to TensorBoard; without a folder it does nothing."""
    if folder is None:
        yield lambda row: None
        return
    with folder.summary_writer() as writer:

        def write(row: Mapping[str, Any]) -> None:
            for key, value in {**row, **row["stats"], **row.get("measured", {})}.items():
                if isinstance(value, float):
                    writer.add_scalar(key, value, row["epoch"])

        yield write
