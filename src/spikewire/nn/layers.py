"""Layers over time: `Spiking`, which runs a sequence of layers, and synapses.

An image has no time dimension. The layers before the first neuron are computed once, and their
current is fed at every time step. Input that varies over time is ``[time, batch, ...]``.
"""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from spikewire.errors import check
from spikewire.nn.neurons import Neuron
from spikewire.nn.sequence import Dropout, run, run_layers

__all__ = ["Dropout", "Layers", "NeuronFactory", "Spiking", "conv", "linear"]
Layers = dict[str, nn.Module]
NeuronFactory = Callable[[], Neuron]


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Return fully connected synapses without bias."""
    return nn.Linear(inputs, outputs, bias=False)


def conv(inputs: int, outputs: int, size: int, padding: int, stride: int = 1) -> nn.Conv2d:
    """Return convolutional synapses without bias, with `size` x `size` kernels."""
    return nn.Conv2d(inputs, outputs, size, stride, padding, bias=False)


class Spiking(nn.Sequential):
    """A spiking network: named layers in sequence, run over `time_steps`.

    BatchNorm2d, neurons and a 2x2 max-pool in a row run as one fused kernel on a GPU.

    Args:
        layers: synapses, neurons and any other torch layers, by name.
        time_steps: how many time steps to run; the attribute may be changed between calls.
        input_shape: shape of one image, or of the input at one time step; None: any.
        classes: number of classes, for information only.
        temporal: whether the input varies over time, ``[time, batch, *input_shape]``; its time
            steps are then those of the input, and `time_steps` is not used.

    Example:
        >>> layers = {"flatten": nn.Flatten(), "fc1": nn.Linear(64, 10), "lif1": LIF()}
        >>> Spiking(layers, time_steps=4)(torch.rand(2, 1, 8, 8)).shape
        torch.Size([4, 2, 10])
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        *,
        time_steps: int = 8,
        input_shape: tuple[int, ...] | None = None,
        classes: int | None = None,
        temporal: bool = False,
    ) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.time_steps, self.input_shape, self.classes = time_steps, input_shape, classes
        self.temporal = temporal

    def forward(self, images: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the output of the last layer for every time step.

        Args:
            images: ``[batch, *input_shape]``, without time; ``[time, batch, *input_shape]`` for a
                temporal network.

        Returns:
            Spikes, or currents where the last layer is synaptic: ``[time, batch, classes]``; time
            is that of the last steps only after `LastSteps`.

        Raises:
            SpikewireError: the images have another shape, or `time_steps` is below 1.
        """
        x = images if self.temporal else images.unsqueeze(0)
        steps = len(x) if self.temporal else self.time_steps
        check(steps >= 1, "time_steps", steps, "at least 1")
        if self.input_shape is not None:
            shape, batch = tuple(images.shape), "time, batch" if self.temporal else "batch"
            fits = tuple(x.shape[2:]) == self.input_shape
            sizes = ", ".join(map(str, self.input_shape))
            check(fits, "images", shape, f"[{batch}, {sizes}]")
        x = run_layers(self, x, steps)
        return x.expand(steps, *x.shape[1:]) if len(x) == 1 else x

    def advance(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Run one layer.

        Args:
            layer: one of the network's layers.
            x: its input ``[time, batch, ...]``, where time is 1 up to the first layer that sees
                all time steps, unless the network is temporal.

        Returns:
            Its output ``[time, batch, ...]``; time is `time_steps` from there on.
        """
        return run((layer,), x, len(x) if self.temporal else self.time_steps)
