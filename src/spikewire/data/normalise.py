"""Normalisation of pixels: the one definition that training and inference share."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Normalisation:
    """Map pixels of 0..255 to ``(pixels / 255 - mean) / std``, with the constants kept on a device.

    Args:
        mean: One number per channel, for pixels scaled to 0..1; empty for pixels that are only
            scaled to 0..1.
        std: One number per channel, for pixels scaled to 0..1; empty where `mean` is.
        device: Where the images are.

    Example:
        >>> to_input = Normalisation((0.5,), (0.25,))
        >>> to_input(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-2.,  2.]]]])
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], device: str | torch.device = "cpu"
    ):
        # in units of pixels and as tensors: CUDA multiplies by the reciprocal of a Python number
        self.mean = _per_channel(mean or (0.0,), device)
        self.std = _per_channel(std or (1.0,), device)

    def __call__(self, images: Tensor) -> Tensor:
        """Return `images` ``[..., channels, height, width]`` normalised, as new float32."""
        return images.float().sub(self.mean).div_(self.std)


def _per_channel(values: Sequence[float], device: str | torch.device) -> Tensor:
    return torch.tensor([255 * value for value in values], device=device).view(-1, 1, 1)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return ``(images / 255 - mean) / std`` in float32, as `Batches` does in training.

    Args:
        images: Pixels of 0..255, ``[..., channels, height, width]``, of any dtype.
        mean: One number per channel, for pixels scaled to 0..1; empty for images / 255.
        std: One number per channel, for pixels scaled to 0..1; empty where `mean` is.

    Returns:
        A new float32 tensor of the same shape on the same device.

    Example:
        >>> normalise(torch.tensor([[[0, 255]]], dtype=torch.uint8), (0.5,), (0.25,))
        tensor([[[-2.,  2.]]])
    """
    return Normalisation(mean, std, images.device)(images)
