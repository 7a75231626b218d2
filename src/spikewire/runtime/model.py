"""A packed network that answers: whole images, or one time step at a time."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spikewire.errors import check
from spikewire.formats import nir, packed
from spikewire.formats.network import Network
from spikewire.runtime.fallback import Torch
from spikewire.runtime.library import choose, installed
from spikewire.runtime.native import Native

MEMBRANES = 2**24  # neurons x images at once: 64 MB


def load(
    path: str | Path, *, threads: int = 1, kernels: str | None = None, exact: bool = False
) -> "Runtime":
    """Return the network in a packed file, ready to run; nothing in the file is executed."""
    return Runtime(packed.read(path), threads=threads, kernels=kernels, exact=exact)


def from_nir(source: Any, *, time_steps: int = 8, dt: float = nir.DT, **options: Any) -> "Runtime":
    """Return the network of a NIR graph or file, ready to run; `options` are those of `Runtime`."""
    return Runtime(nir.from_nir(source, time_steps=time_steps, dt=dt), **options)


class Runtime:
    """A network on the CPU; `kernels` are avx512, avx2, portable or torch.

    Stages go through dense torch where that is quicker, which adds in another order; `exact`
    forbids it, and then spikes depend neither on the batch nor on the kernels.
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
        check(1 <= threads <= 256, "threads", threads, "from 1 to 256")
        library = library or installed()
        self.network, self.threads = network, threads
        self.kernels = choose(kernels, library)
        if self.kernels == "torch":
            self.engine: Native | Torch = Torch(network, exact)
        else:
            self.engine = Native(network, library, self.kernels, threads, exact)

    def normalise(self, pixels: NDArray[np.uint8] | Tensor) -> Tensor:
        """Return ``(pixels / 255 - mean) / std`` of uint8 images, as in training."""
        images = torch.as_tensor(pixels).float()
        if not self.network.mean:
            return images / 255
        mean, std = (
            torch.tensor([255 * value for value in numbers]).view(-1, 1, 1)
            for numbers in (self.network.mean, self.network.std)
        )
        return images.sub(mean).div_(std)

    def __call__(self, images: Tensor) -> Tensor:
        """Map normalised images ``[batch, ...]`` to ``[time, batch, classes]``, as in training."""
        neurons = sum(math.prod(place.neurons) for place in self.network.geometry)
        parts = images.split(max(2, MEMBRANES // neurons)) if len(images) else [images]
        steps = self.network.time_steps
        return torch.cat([self.stream(len(part)).advance(part, steps) for part in parts], 1)

    def stream(self, batch: int = 1) -> "Stream":
        """Return neurons at rest that are fed one time step after the other."""
        check(batch >= 1, "batch", batch, "at least 1")
        return Stream(self, batch)

    def predict(self, images: Tensor, early_exit: float | None = None) -> Tensor:
        """Return the class of each image.

        With `early_exit` an image is done once its best class leads by more than `early_exit` x
        the steps left. At 1 no answer of a spiking readout can change; below, some may.
        """
        return self.decide(images, early_exit)[0]

    def decide(self, images: Tensor, early_exit: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the class of each image and the time steps that it took."""
        steps = self.network.time_steps
        if early_exit is None:
            return self(images).mean(0).argmax(1), torch.full((len(images),), steps)
        check(early_exit >= 0, "early_exit", early_exit, "at least 0")
        stream, scores = self.stream(len(images)), torch.zeros(len(images), self.classes)
        taken, open_ = torch.full((len(images),), steps), torch.arange(len(images))
        current = self.engine.current(as_input(self.network, images))
        for step in range(1, steps + 1):
            scores[open_] += stream.feed(current, 1)[0]
            best = scores[open_].topk(min(2, self.classes), 1).values
            undecided = best[:, 0] - best[:, -1] <= early_exit * (steps - step)
            taken[open_[~undecided]] = step
            open_, current = open_[undecided], current[undecided.numpy()]
            stream.keep(undecided)
            if not len(open_):
                break
        return scores.argmax(1), taken

    def trace(self, images: Tensor) -> dict[str, Tensor]:
        """Return the spikes ``[time, batch, ...]`` of every layer of neurons."""
        found: dict[str, Tensor] = {}

        def seen(number: int, spikes: NDArray[np.bool_]) -> None:
            found[self.network.stages[number].name] = torch.from_numpy(spikes.copy())

        current = self.engine.current(as_input(self.network, images))
        self.engine.run(current, self.network.time_steps, self.engine.rest(len(images)), seen)
        return found

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.network.classes)


class Stream:
    """Membranes that are kept between steps."""

    def __init__(self, model: Runtime, batch: int) -> None:
        self.model, self.batch = model, batch
        self.state = model.engine.rest(batch)

    def step(self, images: Tensor) -> Tensor:
        """Feed images ``[batch, ...]`` for one time step; return ``[batch, classes]``."""
        return self.advance(images, 1)[0]

    def advance(self, images: Tensor, steps: int) -> Tensor:
        """Feed the same images for some steps; return ``[steps, batch, classes]``."""
        check(len(images) == self.batch, "images", len(images), f"{self.batch}, as many as before")
        check(steps >= 1, "steps", steps, "at least 1")
        return self.feed(self.model.engine.current(as_input(self.model.network, images)), steps)

    def feed(self, current: Any, steps: int) -> Tensor:
        """Feed the current of the first layer itself."""
        outputs = self.model.engine.run(current, steps, self.state)
        network = self.model.network
        votes = torch.from_numpy(np.ascontiguousarray(outputs))
        return votes.unflatten(-1, (len(network.classes), network.vote)).mean(-1)

    def keep(self, chosen: Tensor) -> None:
        """Go on with some samples of the batch only."""
        self.state = [u[chosen.numpy()] for u in self.state]
        self.batch = int(chosen.sum())


def as_input(network: Network, images: Tensor) -> NDArray[np.float32]:
    """Return images as the engines take them, if they fit."""
    shape, sizes = tuple(images.shape), ", ".join(map(str, network.input_shape))
    check(shape[1:] == network.input_shape, "images", shape, f"[batch, {sizes}]")
    check(len(images) > 0, "images", shape, "at least one")
    array = np.ascontiguousarray(images.detach().cpu().float().numpy())
    check(bool(np.isfinite(array).all()), "images", "nan or infinity", "finite")
    return array
