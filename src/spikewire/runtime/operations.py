"""What a network costs on some images: operations per image, counted from its spikes.

A spike costs one accumulate per weight that it reaches. An image, or another input that is not 0 or
1, costs one multiply-accumulate per weight and value other than 0; an image that does not change
is computed once. `spikewire.measure` counts models in the same way.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from spikewire.formats.network import IMAGE, Network, Pool, Source, Stage
from spikewire.formats.stage import Shape


class Operations(NamedTuple):
    """Operations per image.

    Args:
        synops: accumulates that spikes cause.
        macs: multiply-accumulates of inputs that are not spikes.
    """

    synops: float
    macs: float


def count_operations(
    network: Network, images: Tensor, spikes: Mapping[str, Tensor], frames: bool
) -> Operations:
    """Return the operations per image.

    Args:
        network: the network.
        images: its input, ``[batch, ...]``, or ``[time, batch, ...]`` with `frames`.
        spikes: those of every layer of neurons, ``[time, batch, ...]`` by name.
        frames: whether `images` change over time.
    """
    count = images.shape[1] if frames else len(images)
    binary = bool(((images == 0) | (images == 1)).all())
    synops = macs = 0.0
    for number, stage in enumerate(network.stages):
        shape = network.geometry[number].inputs
        fan = count_targets(stage, shape).flatten()
        for source in network.sources[number]:
            if source.stage == IMAGE:
                values = (images != 0).flatten(0, int(frames)).flatten(1)
            else:
                values = arriving(network, number, source, spikes).flatten(0, 1).flatten(1)
            total = float(values.sum(0, dtype=torch.float64) @ fan)
            if source.stage == IMAGE and not binary:
                macs += total
            else:
                synops += total
    return Operations(synops / count, macs / count)


def arriving(network: Network, number: int, source: Source, spikes: Mapping[str, Tensor]) -> Tensor:
    """Return the spikes, or numbers of spikes after a pooling, that a stage reads."""
    stage = network.stages[source.stage]
    found = spikes[stage.name]
    if source.stage == number:
        return found[:-1]  # its own, one time step later
    return pooled(found, stage.pool) if source.pooled and stage.pool else found


def pooled(spikes: Tensor, pool: Pool) -> Tensor:
    """Return spikes after a pooling; a sum counts them."""
    x, window = spikes.flatten(0, 1).float(), (pool.size, pool.step, pool.padding)
    if pool.kind == "max":
        x = functional.max_pool2d(x, *window)
    else:
        x = (functional.avg_pool2d(x, *window) * pool.size**2).round()
    return x.unflatten(0, spikes.shape[:2])


def count_targets(stage: Stage, inputs: Shape) -> Tensor:
    """Return to how many neurons each input of a stage has a synapse, float64 of shape `inputs`."""
    index = torch.from_numpy(stage.index)
    if not stage.is_conv:
        return torch.bincount(index % stage.shape[1], minlength=stage.shape[1]).double()
    options = stage.stride, stage.padding, stage.dilation, stage.groups
    # the gradient of the sum of all currents is what each input reaches
    with torch.inference_mode(False), torch.enable_grad():
        present = torch.zeros(stage.size, dtype=torch.float64)
        present[index] = 1.0
        x = torch.zeros(1, *inputs, dtype=torch.float64, requires_grad=True)
        total = functional.conv2d(x, present.view(stage.shape), None, *options).sum()
        return torch.autograd.grad(total, x)[0][0].round()
