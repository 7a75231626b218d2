"""Stream: a batch of samples fed step by step; and the checks of images."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spikewire.errors import check
from spikewire.formats.arrays import check_array
from spikewire.formats.network import Network, check_steps, is_whole
from spikewire.runtime.layer import State

if TYPE_CHECKING:
    from spikewire.runtime.model import Runtime


class Stream:
    """A batch of samples that is fed step by step; the state of the neurons is kept between steps.

    Args:
        model: The network.
        batch: Number of samples, at least 1.

    Raises:
        SpikewireError: If `batch` is below 1.

    Example:
        >>> stream = model.stream(batch=1)
        >>> for frame in frames:
        ...     output = stream.step(frame)  # [batch, classes]
    """

    def __init__(self, model: "Runtime", batch: int) -> None:
        check(is_whole(batch) and batch >= 1, "batch", batch, "at least 1")
        self.model, self.batch = model, batch
        self.state: list[State] = model.engine.make_state(batch)

    def step(self, images: Tensor) -> Tensor:
        """Feed normalised images ``[batch, ...]`` for one time step; return ``[batch, classes]``.

        Raises:
            SpikewireError: If the images do not fit.
        """
        return self.advance(images, 1)[0]

    def advance(self, images: Tensor, steps: int) -> Tensor:
        """Feed the same images at several time steps.

        Args:
            images: Normalised images ``[batch, *input_shape]``.
            steps: Number of time steps, from 1 to 10,000.

        Returns:
            Outputs ``[steps, batch, classes]``.

        Raises:
            SpikewireError: If the images do not fit, or `steps` is out of range.
        """
        array = check_images(self.model.network, images)
        expected = f"{self.batch}, the batch size of the stream"
        check(len(images) == self.batch, "images", len(images), expected)
        return self.feed(self.model.engine.compute_current(array), steps)

    def feed(self, current: NDArray[np.float32], steps: int) -> Tensor:
        """Feed the current of the first layer, as `compute_current` of the engine returns it.

        Args:
            current: One row per sample of the stream.
            steps: Number of time steps, from 1 to 10,000.

        Returns:
            Outputs ``[steps, batch, classes]``.

        Raises:
            SpikewireError: If `current` or `steps` does not fit, or no sample is left.
        """
        check(self.batch > 0, "stream", "no sample", "a stream with samples left")
        check_steps(steps)
        check_array("current", current, np.float32, self.state[0]["voltage"].shape)
        outputs = self.model.engine.run_(current, steps, self.state)
        return count_votes(self.model.network, outputs)

    def keep(self, chosen: Tensor) -> None:
        """Continue with some samples of the batch only.

        Args:
            chosen: Boolean tensor ``[batch]``: True for each sample to continue with.

        Raises:
            SpikewireError: If `chosen` is of another type or shape.
        """
        fits = isinstance(chosen, Tensor) and chosen.dtype == torch.bool
        found = f"{chosen.dtype}{list(chosen.shape)}" if isinstance(chosen, Tensor) else chosen
        fits = fits and chosen.shape == (self.batch,)
        check(fits, "chosen", found, f"a boolean tensor of {self.batch} samples")
        index = chosen.numpy()
        self.state = [{key: u[index] for key, u in own.items()} for own in self.state]
        self.batch = int(chosen.sum())


def count_votes(network: Network, outputs: NDArray[np.float32]) -> Tensor:
    """Return ``[steps, batch, classes]`` of outputs that vote for the classes."""
    votes = torch.from_numpy(outputs)
    if network.vote == 1:
        return votes
    return votes.unflatten(-1, (len(network.classes), network.vote)).mean(-1)


def check_tensor(network: Network, images: Tensor) -> None:
    """Raise unless `images` are a dense tensor of real numbers ``[batch, *input_shape]``.

    A network that stores how pixels are normalised refuses pixels that are not.
    """
    if not isinstance(images, Tensor):
        check(False, "images", type(images).__name__, "a tensor")
    plain = images.layout == torch.strided and not images.is_meta and not images.is_complex()
    if not plain:
        kind = f"{images.dtype} on {images.device} ({images.layout})"
        check(False, "images", kind, "a dense tensor of real numbers")
    shape = images.shape
    if shape[1:] != network.input_shape:
        sizes = ", ".join(map(str, network.input_shape))
        check(False, "images", tuple(shape), f"[batch, {sizes}]")
    check(shape[0] > 0, "images", shape[0], "at least one")
    pixels = images.dtype == torch.uint8 and bool(network.mean)
    check(not pixels, "images", "uint8", "normalised: pass runtime.normalise(pixels)")


def check_frames(network: Network, frames: Tensor) -> None:
    """Raise unless `frames` are a dense tensor of real numbers ``[time, batch, *input_shape]``."""
    fits = isinstance(frames, Tensor) and frames.ndim > 1 and len(frames) > 0
    found = tuple(frames.shape) if isinstance(frames, Tensor) else type(frames).__name__
    check(fits, "frames", found, "[time, batch, ...]")
    check_tensor(network, frames[0])


def check_images(network: Network, images: Tensor) -> NDArray[np.float32]:
    """Return images as the engines expect them; refuse those that do not fit."""
    check_tensor(network, images)
    return to_array(images)


def to_array(images: Tensor) -> NDArray[np.float32]:
    """Return images that fit as a contiguous array; refuse nan and infinity."""
    images = images.detach()
    if images.dtype != torch.float32 or images.device.type != "cpu":
        images = images.cpu().float()
    array = np.ascontiguousarray(images.numpy())
    check(bool(np.isfinite(array).all()), "images", "nan or infinity", "finite")
    return array
