"""Runtime: a network on the CPU, for whole images or, as a stream, one time step at a time."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spikewire.data.normalise import normalise
from spikewire.errors import check
from spikewire.formats import nir, packed
from spikewire.formats.network import Network, is_whole
from spikewire.runtime.fallback import TorchEngine
from spikewire.runtime.library import choose_kernels, installed
from spikewire.runtime.native import NativeEngine
from spikewire.runtime.operations import Operations, count_operations
from spikewire.runtime.stream import (
    Stream,
    check_frames,
    check_images,
    check_tensor,
    count_votes,
    to_array,
)

MAX_MEMBRANES = 2**24  # neurons x images computed at once: 64 MB


def load(
    path: str | Path,
    *,
    time_steps: int | None = None,
    threads: int = 1,
    kernels: str | None = None,
    exact: bool = False,
) -> "Runtime":
    """Load a packed file, ready to run; nothing in the file is executed.

    Args:
        path: Path of a packed file, as written by ``spikewire export``, or a network of the zoo,
            such as ``"zoo:digits-5"``.
        time_steps: Time steps per image; None for those of the file. Fewer need fewer operations
            and are less accurate.
        threads: Number of threads, from 1 to 256.
        kernels: ``"avx512"``, ``"avx2"``, ``"portable"`` or ``"torch"``; None for the fastest that
            this machine has.
        exact: Whether spikes must not depend on the batch size and the kernels; see `Runtime`.

    Returns:
        The network as a `Runtime`.

    Raises:
        SpikewireError: If the file is missing or damaged, or an argument is out of range.

    Example:
        >>> model = spikewire.load("model.packed.safetensors", threads=2)
        >>> model.predict(model.normalise(pixels))
        tensor([7, 2, 1])
    """
    network = packed.read(path)
    if time_steps is not None:
        check(isinstance(time_steps, Integral), "time_steps", time_steps, "a whole number")
        network = replace(network, time_steps=int(time_steps))
    return Runtime(network, threads=threads, kernels=kernels, exact=exact)


def from_nir(source: Any, *, time_steps: int = 8, dt: float = nir.DT, **options: Any) -> "Runtime":
    """Load a NIR graph or file, ready to run.

    Args:
        source: A `nir.NIRGraph`, or the path of a NIR file, of Conv2d, Affine, Linear, LIF, IF,
            AvgPool2d, SumPool2d and Flatten; see `spikewire.formats.nir.from_nir` for loops.
        time_steps: Time steps per image; NIR does not store them.
        dt: Length of a time step in seconds that the file was written for.
        **options: `threads`, `kernels` and `exact` of `Runtime`.

    Returns:
        The network as a `Runtime`. It expects normalised images: NIR stores no mean and std.

    Raises:
        SpikewireError: If the file is damaged, or the graph has nodes that are not supported.

    Example:
        >>> model = spikewire.from_nir("model.nir", time_steps=8)
        >>> model.predict(images)
        tensor([7, 2, 1])
    """
    return Runtime(nir.from_nir(source, time_steps=time_steps, dt=dt), **options)


class Runtime:
    """A network that runs on the CPU, where only arriving spikes cost work.

    A stage is computed by dense torch where that is expected to be faster. Dense torch adds in
    another order, so a membrane potential within rounding error of the threshold may fire or not.
    `exact` turns this off: spikes then depend neither on the batch size nor on the kernels.

    A runtime can be pickled and copied, and used in a forked process. The copy chooses its kernels
    again, because another machine may have others.

    Args:
        network: The network to run.
        threads: Number of threads, from 1 to 256.
        kernels: ``"avx512"``, ``"avx2"``, ``"portable"`` or ``"torch"``; None for the fastest that
            this machine has.
        exact: Whether to compute every stage with the sparse kernels.
        library: The compiled kernels as returned by `spikewire.runtime.library.bind`; None for
            those of the installation.

    Attributes:
        network: The network.
        kernels: The kernels in use.

    Raises:
        SpikewireError: If `threads` is out of range, or this machine does not have `kernels`.

    Example:
        >>> model = Runtime(trace_model(trained))
        >>> model(images).shape  # [time, batch, classes]
        torch.Size([8, 32, 10])
    """

    def __init__(
        self,
        network: Network,
        *,
        threads: int = 1,
        kernels: str | None = None,
        exact: bool = False,
        library: Any = None,
    ) -> None:
        check(isinstance(network, Network), "network", type(network).__name__, "a Network")
        fits = is_whole(threads) and 1 <= threads <= 256
        check(fits, "threads", threads, "from 1 to 256")
        self._copy = partial(Runtime, network, threads=threads, kernels=kernels, exact=exact)
        library = library or installed()
        network = replace(network)  # checked again: its arrays may have changed since
        self.network, self._neuron_count = network, network.neuron_count
        self.kernels = choose_kernels(kernels, library)
        if self.kernels == "torch":
            self.engine: NativeEngine | TorchEngine = TorchEngine(network, exact)
        else:
            self.engine = NativeEngine(network, library, self.kernels, threads, exact)

    def __repr__(self) -> str:
        net = self.network
        image = "x".join(map(str, net.input_shape))
        return (
            f"Runtime({image} image -> {len(net.classes)} classes, {len(net.stages)} stages, "
            f"{net.time_steps} time steps, connectivity {net.connectivity:.4g}, {self.kernels})"
        )

    def __reduce__(self) -> tuple[Callable[[], "Runtime"], tuple[()]]:
        """Pickle the network and the options, not threads and compiled code."""
        return self._copy, ()

    def normalise(self, pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        """Return ``(pixels / 255 - mean) / std``, as in training.

        Args:
            pixels: Images ``[batch, channels, height, width]`` of 0..255.

        Returns:
            float32 images of the same shape.

        Raises:
            SpikewireError: If the pixels are floats of 0..1.
        """
        images = torch.as_tensor(pixels)
        if images.is_floating_point() and images.numel():
            scaled = 0 < float(images.max()) <= 1
            check(not scaled, "pixels", "a range of 0..1", "0..255: multiply by 255 first")
        return normalise(images, self.network.mean, self.network.std)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the outputs of the network, as in training.

        Args:
            images: Normalised images ``[batch, *input_shape]``.

        Returns:
            Spikes, or currents where the last layer has no neurons, or membrane potentials:
            ``[time, batch, classes]``.

        Raises:
            SpikewireError: If the images have another shape or are not finite.
        """
        check_tensor(self.network, images)
        size = max(2, MAX_MEMBRANES // self._neuron_count)
        if len(images) <= size:
            return self._run(images)
        return torch.cat([self._run(part) for part in images.split(size)], 1)

    def _run(self, images: Tensor) -> Tensor:
        network = self.network
        outputs = self.engine.run_images(to_array(images), network.time_steps)
        return count_votes(network, outputs)

    def run_frames(self, frames: Tensor) -> Tensor:
        """Return the outputs for an input that changes over time, as event data do.

        Args:
            frames: Normalised frames ``[time, batch, *input_shape]``, for any number of time steps.

        Returns:
            Spikes, or currents where the last layer has no neurons: ``[time, batch, classes]``.

        Raises:
            SpikewireError: If the frames have another shape or are not finite.
        """
        check_frames(self.network, frames)
        stream = self.stream(frames.shape[1])
        return torch.stack([stream.step(frame) for frame in frames])

    def stream(self, batch: int = 1) -> Stream:
        """Return a stream of `batch` samples whose neurons are at rest.

        Raises:
            SpikewireError: If `batch` is below 1.
        """
        return Stream(self, batch)

    def predict(
        self, images: Tensor, early_exit: float | None = None, *, frames: bool = False
    ) -> Tensor:
        """Return the class of each image.

        Args:
            images: Normalised images ``[batch, *input_shape]``.
            early_exit: Stop an image once its best class leads by more than `early_exit` times the
                remaining time steps. At 1, no prediction of a spiking readout can change; below,
                some may. None computes all time steps.
            frames: Whether `images` change over time: ``[time, batch, *input_shape]``.

        Returns:
            Indices of classes ``[batch]``.

        Raises:
            SpikewireError: If the images do not fit, or `early_exit` is negative.
        """
        return self.decide(images, early_exit, frames=frames)[0]

    def decide(
        self, images: Tensor, early_exit: float | None = None, *, frames: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the class of each image, and the number of time steps it took.

        Args:
            images: Normalised images ``[batch, *input_shape]``.
            early_exit: See `predict`.
            frames: See `predict`.

        Returns:
            Indices of classes and numbers of time steps, both ``[batch]``.

        Raises:
            SpikewireError: If the images do not fit, or `early_exit` is negative.
        """
        (check_frames if frames else check_tensor)(self.network, images)
        if early_exit is None:
            outputs = self.run_frames(images) if frames else self(images)
            return outputs.mean(0).argmax(1), torch.full(outputs.shape[1:2], len(outputs))
        check(early_exit >= 0, "early_exit", early_exit, "at least 0")
        steps, count = images.shape[:2] if frames else (self.network.time_steps, len(images))
        stream, classes = self.stream(count), len(self.network.classes)
        scores, taken = torch.zeros(count, classes), torch.full((count,), steps)
        active = torch.arange(count)  # images that are not decided yet
        current = self.compute_current(images[0] if frames else images)
        for step in range(1, steps + 1):
            if frames:
                current = self.compute_current(images[step - 1, active])
            scores[active] += stream.feed(current, 1)[0]
            best = scores[active].topk(min(2, classes), 1).values
            undecided = best[:, 0] - best[:, -1] <= early_exit * (steps - step)
            taken[active[~undecided]] = step
            active, current = active[undecided], current[undecided.numpy()]
            stream.keep(undecided)
            if not len(active):
                break
        return scores.argmax(1), taken

    def compute_current(self, images: Tensor) -> NDArray[np.float32]:
        """Return the current of the first layer, as `Stream.feed` takes it."""
        return self.engine.compute_current(check_images(self.network, images))

    def record_spikes(self, images: Tensor, *, frames: bool = False) -> dict[str, Tensor]:
        """Return the spikes of every layer of neurons.

        Args:
            images: Normalised images ``[batch, *input_shape]``.
            frames: Whether `images` change over time: ``[time, batch, *input_shape]``.

        Returns:
            Boolean spikes ``[time, batch, ...]`` by the name of the stage.

        Raises:
            SpikewireError: If the images have another shape or are not finite.
        """
        recorded: dict[str, list[Tensor]] = {}

        def on_spikes(number: int, spikes: NDArray[np.bool_]) -> None:
            name = self.network.stages[number].name
            recorded.setdefault(name, []).append(torch.from_numpy(spikes.copy()))

        if frames:
            check_frames(self.network, images)
        parts = list(images) if frames else [images]
        state = None
        for part in parts:
            current = self.compute_current(part)
            state = state or self.engine.make_state(len(part))
            steps = 1 if frames else self.network.time_steps
            self.engine.run_(current, steps, state, on_spikes)
        return {name: torch.cat(spikes) for name, spikes in recorded.items()}

    def count_operations(self, images: Tensor, *, frames: bool = False) -> Operations:
        """Return what the network costs on these images, counted from its spikes.

        Args:
            images: Normalised images ``[batch, *input_shape]``.
            frames: Whether `images` change over time: ``[time, batch, *input_shape]``.

        Returns:
            Accumulates (`synops`) and multiply-accumulates (`macs`) per image, as
            `spikewire.measure` counts them.

        Raises:
            SpikewireError: If the images have another shape or are not finite.

        Example:
            >>> spikewire.load("zoo:digits-5", time_steps=4).count_operations(images).synops
        """
        spikes = self.record_spikes(images, frames=frames)
        return count_operations(self.network, images, spikes, frames)
