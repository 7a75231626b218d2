"""Initial weights from which the neurons of every layer fire."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn

from spikewire.errors import SpikewireError, check
from spikewire.nn.layers import Dropout, Spiking
from spikewire.nn.neurons import Neuron
from spikewire.nn.recurrent import Recurrent
from spikewire.nn.synapses import SYNAPTIC


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    """Use batch statistics and no dropout inside; restore modes and buffers afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        for module, _ in modes:
            module.training = not isinstance(module, Dropout)
        yield
    finally:
        for module, training in modes:
            module.training = training
        for buffer, saved in buffers:
            buffer.copy_(saved)


@torch.no_grad()
def scale_to_fire_(model: Spiking, images: Tensor) -> None:
    """Rescale, in order, every synaptic layer that feeds neurons directly, so that they fire.

    ``W <- W * (threshold - rest) / std(I)``, with the std of the layer's current over batch, units
    and time. PyTorch's default initialisation leaves fully connected neurons silent; a layer
    followed by BatchNorm is not rescaled, as BatchNorm sets the scale of its current. Weights
    within a recurrent layer stay as they are.

    Args:
        model: the network, rescaled in place; modes and running statistics stay as they are.
        images: a batch of typical images, as the network takes them, on its device.

    Raises:
        SpikewireError: the current of a layer is constant over the batch, for example because all
            images are black.

    Example:
        >>> model = spikewire.build("digits-mlp")
        >>> scale_to_fire_(model, torch.rand(64, 1, 8, 8))
    """
    check(isinstance(model, Spiking), "model", type(model).__name__, "a network of spikewire")
    x = images if model.temporal else images.unsqueeze(0)
    with _batch_statistics(model):
        for (name, layer), (_, neuron) in pairwise(model.named_children()):
            x = model.advance(layer, x)
            if isinstance(layer, SYNAPTIC) and isinstance(neuron, Neuron | Recurrent):
                spread = x.std(correction=0)
                if not bool(spread > 0):
                    raise SpikewireError(
                        f"{name}: gets the same current from all images, so its weights cannot be "
                        "scaled to fire; the images are constant, or too few synapses are left: "
                        "use a higher connectivity or another init"
                    )
                scale = (neuron.constants.threshold - neuron.constants.rest) / spread
                for parameter in layer.parameters():
                    parameter.mul_(scale)
                x = x * scale
