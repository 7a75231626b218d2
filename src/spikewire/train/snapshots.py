"""What is kept of a network for the report's pictures: its input layer, its activity, its errors.

Reads model and masks; changes nothing and draws no random number.
"""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spikewire.distributed import Ranks
from spikewire.metrics.counting import preserve_state
from spikewire.nn.losses import predict
from spikewire.nn.membrane import fire_
from spikewire.nn.names import unwrap
from spikewire.nn.neurons import Neuron
from spikewire.nn.recurrent import Cell
from spikewire.nn.synapses import synaptic_layers
from spikewire.runs.snapshots import (
    FIELDS,
    MAX_CLASSES,
    MAX_PIXELS,
    SHOWN,
    Snapshots,
    even_indices,
)

MISMATCH = 1e-3  # fraction of spikes that rounding on another device may change

# ---------------------------------------------------------------------- the input layer


@torch.no_grad()
def keep_input_layer(
    snapshots: Snapshots, epoch: int, model: nn.Module, masks: Mapping[str, Tensor], shape: Any
) -> None:
    """Append how many synapses leave each pixel, and the weights of some neurons.

    Nothing is kept where the input is not an image, or where the first synaptic layer is neither
    fully connected to it nor a convolution over it.

    Args:
        snapshots: what the run keeps.
        epoch: the epoch, from 1.
        model: the network.
        masks: which weights exist.
        shape: shape of one input, ``(channels, height, width)`` for an image.
    """
    layers = synaptic_layers(unwrap(model))
    name = next(iter(layers), "")
    if len(shape) != 3 or name not in masks:
        return
    mask = masks[name]
    weight: Any = layers[name].weight
    present = weight.detach() * mask
    rows = torch.as_tensor(even_indices(len(mask), FIELDS), device=mask.device)
    if mask.ndim == 4 and mask.shape[1] == shape[0]:
        fan_out, fields = mask.new_zeros(0, 0, dtype=torch.int64), present[rows].sum(1)
    elif mask.ndim == 2 and mask.shape[1] == prod(shape) and prod(shape[1:]) <= MAX_PIXELS:
        fan_out = mask.sum(0).reshape(*shape).sum(0)
        fields = present[rows].reshape(len(rows), *shape).sum(1)
    else:
        return
    limit = torch.finfo(torch.float16).max
    small = fields.float().clamp(-limit, limit).half()
    snapshots.add_input_layer(epoch, name, fan_out.cpu().numpy(), small.cpu().numpy())


# ---------------------------------------------------------------------- errors


class Confusion:
    """The confusion matrix, summed over batches: ``matrix[label, predicted]``."""

    def __init__(self) -> None:
        self.matrix: Tensor | None = None

    def add(self, output: Tensor, labels: Tensor) -> None:
        """Add a batch: its output ``[time, batch, classes]`` and its labels."""
        classes = output.shape[-1]
        if self.matrix is None:
            self.matrix = output.new_zeros(classes, classes, dtype=torch.float64)
        ones = torch.ones_like(labels, dtype=torch.float64)
        self.matrix.index_put_((labels, predict(output)), ones, accumulate=True)

    def sum_(self, ranks: Ranks) -> None:
        """Sum the matrix over all ranks, which each have tested a part."""
        if self.matrix is not None:
            ranks.sum_(self.matrix)

    def keep(self, snapshots: Snapshots) -> None:
        """Keep the matrix, unless it has too many classes to be shown."""
        if self.matrix is not None and len(self.matrix) <= MAX_CLASSES:
            snapshots.confusion = self.matrix.cpu().numpy().astype(np.int64)


# ---------------------------------------------------------------------- activity


@torch.no_grad()
def keep_activity(
    snapshots: Snapshots, model: nn.Module, images: Tensor, label: int, temporal: bool = False
) -> None:
    """Keep spikes and membrane potentials of the first image in a batch.

    Only neurons of spikewire are kept: those of other libraries do not show their potentials in
    one way.

    Args:
        snapshots: what the run keeps.
        model: the network.
        images: a batch of inputs.
        label: the label of the first one.
        temporal: whether the batch is ``[time, batch, ...]``.
    """
    model = unwrap(model)
    one = images[:, :1] if temporal else images[:1]
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
    neurons = {
        name: module for name, module in model.named_modules() if isinstance(module, Neuron | Cell)
    }
    with preserve_state(model):
        for name, module in neurons.items():
            module.register_forward_hook(partial(_record, calls.setdefault(name, [])))
        model(one)
    found = {name: _trace(seen, neurons[name]) for name, seen in calls.items() if seen}
    traces = {name: trace for name, trace in found.items() if trace is not None}
    if not traces or len({len(spikes) for spikes, _ in traces.values()}) > 1:
        return
    snapshots.image, snapshots.label = _picture(one[:, 0] if temporal else one), np.array([label])
    snapshots.neurons = np.array(list(traces))
    snapshots.sizes = np.array([spikes.shape[1] for spikes, _ in traces.values()])
    thresholds = [neurons[name].constants.threshold for name in traces]
    snapshots.thresholds = np.array(thresholds, np.float32)
    snapshots.spikes = _stack([spikes for spikes, _ in traces.values()], np.uint8)
    snapshots.membrane = _stack([membrane for _, membrane in traces.values()], np.float32)


def _record(calls: list[Any], module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
    """Note the currents of one call of a layer of neurons, and its spikes."""
    spikes = output[0] if isinstance(output, tuple) else output
    steps = 1 if isinstance(module, Cell) else len(spikes)
    calls.append((inputs[0].reshape(steps, -1), spikes.reshape(steps, -1)))


def _trace(
    calls: list[tuple[Tensor, Tensor]], module: Neuron | Cell
) -> tuple[Tensor, Tensor] | None:
    """Return spikes and membrane potentials ``[time, neuron]``, from the currents of all steps.

    None if the equations of `fire_` do not give the recorded spikes: other neurons.
    """
    current = torch.cat([current for current, _ in calls]).float()
    recorded = torch.cat([spikes for _, spikes in calls]).float()
    membrane, spikes = torch.empty_like(current), torch.empty_like(current)
    constants, rate = module.constants, module.rate if isinstance(module, Neuron) else None
    u = torch.full_like(current[0], constants.rest)
    for t in range(len(current)):
        fire_(current[t], u, membrane[t], spikes[t], constants, rate)
    same = bool((spikes != recorded).float().mean() <= MISMATCH)
    return (recorded, membrane) if same else None


def _stack(layers: list[Tensor], dtype: Any) -> np.ndarray:
    """Return evenly spaced neurons of each layer ``[layer, time, neuron]``, filled up with 0."""
    picked = [x[:, torch.as_tensor(even_indices(x.shape[1], SHOWN))].cpu().numpy() for x in layers]
    shape = (len(picked), len(picked[0]), max(x.shape[1] for x in picked))
    result = np.zeros(shape, dtype)
    for row, x in zip(result, picked, strict=True):
        row[:, : x.shape[1]] = np.clip(x, -1e30, 1e30)
    return result


def _picture(image: Tensor) -> np.ndarray:
    """Return an image ``[steps or 1, channels, height, width]`` from 0 to 255, else nothing."""
    if image.ndim != 4 or image.shape[-1] * image.shape[-2] > MAX_PIXELS:
        return Snapshots().image
    mean = image.float().mean(0)
    mean = mean if len(mean) == 3 else mean.mean(0, keepdim=True)
    low, high = mean.min(), mean.max()
    scaled = 255 * (mean - low) / (high - low).clamp(min=1e-12)
    return scaled.permute(1, 2, 0).round().byte().cpu().numpy()
