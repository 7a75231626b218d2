"""TrivialAugment: one random operation of random strength per image.

Müller and Hutter, 2021, https://arxiv.org/abs/2103.10158, with the operations and the wide range
of strengths of torchvision's ``TrivialAugmentWide``; pixels that are moved in are black.

Every operation is computed for the whole batch and selected per image, so no kernel depends on
what was drawn and no GPU is waited for.
"""

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import avg_pool2d

from spikewire.data.affine import affine_nearest
from spikewire.errors import check

BINS = 31
MOVES = ("shear-x", "shear-y", "translate-x", "translate-y", "rotate")
BLENDS = ("brightness", "colour", "contrast", "sharpness")
TONES = ("posterize", "solarize", "autocontrast", "equalize")
OPERATIONS = ("identity", *MOVES, *BLENDS, *TONES)
LARGEST = {  # 0 is no change; posterize takes away bits, solarize lowers its threshold from 255
    "shear-x": 0.99,
    "shear-y": 0.99,
    "translate-x": 32.0,
    "translate-y": 32.0,
    "rotate": math.radians(135),
    **dict.fromkeys(BLENDS, 0.99),
    "posterize": 6.0,
    "solarize": 255.0,
}
WHOLE = ("translate-x", "translate-y", "posterize")  # pixels, bits
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2


def draw_operations(count: int, size: tuple[int, int], generator: Generator) -> Tensor:
    """Draw the number of an operation and its signed strength for each image, ``[count, 2]``."""
    operations = torch.randint(len(OPERATIONS), (count,), generator=generator)
    bins = torch.randint(BINS, (count,), generator=generator)
    signs = 1 - 2 * torch.randint(2, (count,), generator=generator)
    largest = torch.tensor([LARGEST.get(name, 0.0) for name in OPERATIONS])
    strength = largest[operations] * bins / (BINS - 1)
    strength = torch.where(_is(operations, "posterize"), strength.round(), strength)
    strength = torch.where(_is(operations, *WHOLE), strength.trunc(), strength)
    signed = _is(operations, *MOVES, *BLENDS)
    return torch.stack([operations.float(), torch.where(signed, strength * signs, strength)], dim=1)


def trivial(images: Tensor, drawn: Tensor) -> Tensor:
    """Apply one operation to each image; the result has whole pixel values from 0 to 255.

    Args:
        images: ``[batch, channels, height, width]`` of 1 or 3 channels.
        drawn: what `draw_operations` returned.

    Raises:
        SpikewireError: if the images have another number of channels.
    """
    channels = images.shape[1]
    check(channels in (1, 3), "augment", f"trivial of {channels} channels", "for 1 or 3 channels")
    operations, strength = drawn.unbind(1)
    pixels = images.float().round().clamp(0, 255)
    changed = affine_nearest(pixels, _matrices(operations, strength, images.shape[-2:]))
    for names, function in ((BLENDS, _blend), (TONES, _tone)):
        chosen = _is(operations, *names)[:, None, None, None]
        changed = torch.where(chosen, function(pixels, operations, strength), changed)
    return changed.to(images.dtype)


def _is(operations: Tensor, *names: str) -> Tensor:
    """Mark the images whose operation is one of these, which are neighbours in OPERATIONS."""
    found = [operations == OPERATIONS.index(name) for name in names]
    return torch.stack(found).any(dim=0)


def _matrices(operations: Tensor, strength: Tensor, size: torch.Size) -> Tensor:
    """Return the matrix of each image for `affine`; that of an image that does not move is 1."""

    def value(name: str) -> Tensor:
        return torch.where(_is(operations, name), strength, 0.0)

    height, width = size
    angle, shear_x, shear_y = value("rotate"), value("shear-x"), value("shear-y")
    top = [angle.cos(), shear_x - angle.sin(), value("translate-x") + shear_x * height / 2]
    bottom = [shear_y + angle.sin(), angle.cos(), value("translate-y") + shear_y * width / 2]
    return torch.stack([torch.stack(top, dim=1), torch.stack(bottom, dim=1)], dim=1)


def _blend(pixels: Tensor, operations: Tensor, strength: Tensor) -> Tensor:
    """Return ``d + (1 + strength) (pixels - d)``, where d lacks what the operation is named for."""
    grey = _grey(pixels)
    mean = grey.mean(dim=(1, 2, 3), keepdim=True).add(0.5).floor()
    lacking = torch.zeros_like(pixels)
    others = {"colour": grey, "contrast": mean, "sharpness": _smooth(pixels)}
    for name, other in others.items():
        lacking = torch.where(_is(operations, name)[:, None, None, None], other, lacking)
    factor = 1 + strength[:, None, None, None]
    return torch.lerp(lacking, pixels, factor).clamp(0, 255).floor()


def _grey(pixels: Tensor) -> Tensor:
    """Return the luma, one channel."""
    if pixels.shape[1] == 1:
        return pixels
    luma = torch.tensor(LUMA, device=pixels.device)[:, None, None]
    return (pixels * luma).sum(dim=1, keepdim=True).add(0.5).floor()


def _smooth(pixels: Tensor) -> Tensor:
    """Return means over 3 x 3 pixels, the middle weighted 5 times; the border stays as it is."""
    if min(pixels.shape[-2:]) < 3:
        return pixels
    inner = pixels[..., 1:-1, 1:-1]
    sums = avg_pool2d(pixels, 3, 1, divisor_override=1)  # no convolution: TF32 would round it
    smooth = pixels.clone()
    smooth[..., 1:-1, 1:-1] = (sums + 4 * inner).div(13).add(0.5).floor()
    return smooth


def _tone(pixels: Tensor, operations: Tensor, strength: Tensor) -> Tensor:
    """Return images whose pixel values are replaced by a table, one per image and channel."""
    levels = torch.arange(256.0, device=pixels.device)
    strength = strength[:, None, None]
    step = 2.0**strength
    tables = (levels / step).floor() * step  # posterize
    solarized = torch.where(levels < 255 - strength, levels, 255 - levels)
    tables = torch.where(_is(operations, "solarize")[:, None, None], solarized, tables)
    stretched = _stretch(pixels.flatten(2), levels)
    tables = torch.where(_is(operations, "autocontrast")[:, None, None], stretched, tables)
    equalized = _equalize(pixels.flatten(2), levels)
    tables = torch.where(_is(operations, "equalize")[:, None, None], equalized, tables)
    return tables.gather(2, pixels.flatten(2).long()).view_as(pixels)


def _stretch(pixels: Tensor, levels: Tensor) -> Tensor:
    """Return tables that stretch each channel to 0..255; one of a single value stays as it is."""
    low, high = pixels.aminmax(dim=2, keepdim=True)
    scale = 255 / (high - low).clamp(min=1)
    table = (levels * scale - low * scale).clamp(0, 255).floor()
    return torch.where(high > low, table, levels)


def _equalize(pixels: Tensor, levels: Tensor) -> Tensor:
    """Return tables that make the values of each channel equally frequent, as Pillow does."""
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int64, device=pixels.device)
    counts.scatter_add_(2, pixels.long(), torch.ones_like(pixels, dtype=torch.int64))
    highest = pixels.amax(dim=2, keepdim=True).long()
    last = counts.gather(2, highest)
    step = (pixels.shape[2] - last) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.to(levels.dtype), levels)
