"""Augmentations: parameters drawn on the CPU for a whole epoch, applied to a batch on its device.

`apply(images, parameters)` is pure; images are ``[batch, channels, height, width]`` before
normalisation, so pixels that are shifted in or cut out are black.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from spikewire.data.affine import affine, affine_nearest, draw_affine, draw_random_affine
from spikewire.data.time_shift import draw_steps, time_shift
from spikewire.data.trivial import draw_operations, trivial
from spikewire.errors import SpikewireError, check, check_word

Draw = Callable[[int, tuple[int, int], Generator], Tensor]
Apply = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Augmentation:
    """One entry of `AUGMENTATIONS`.

    Args:
        draw: ``draw(count, (height, width), generator, *magnitudes)`` returns the parameters of
            `count` images, one row per image.
        apply: ``apply(images, parameters)`` returns the augmented images.
        defaults: The magnitudes, where the user gives none.
        allowed: The forms that the user may write, for error messages.
        accepts: ``accepts(*magnitudes)`` returns whether the magnitudes are valid.
    """

    draw: Callable[..., Tensor]
    apply: Apply
    defaults: tuple[float, ...]
    allowed: str
    accepts: Callable[..., bool]


def parse(spec: str) -> tuple[Draw, Apply]:
    """Return the two functions that draw and apply the augmentation that `spec` names.

    Args:
        spec: ``name`` or ``name:magnitude/magnitude...`` with a name from `AUGMENTATIONS`;
            magnitudes omitted at the end take their defaults.

    Returns:
        ``draw(count, (height, width), generator)`` and ``apply(images, parameters)``.

    Raises:
        SpikewireError: If the name is unknown or a magnitude is out of range.

    Example:
        >>> draw, apply = parse("shift:2")
        >>> parameters = draw(len(images), (28, 28), torch.Generator().manual_seed(0))
        >>> shifted = apply(images, parameters)
    """
    name, _, given = spec.partition(":")
    check_word("augment", name, AUGMENTATIONS)
    kind = AUGMENTATIONS[name]
    try:
        known = tuple(map(float, given.split("/"))) if ":" in spec else ()
        magnitudes = known + kind.defaults[len(known) :]
    except ValueError:
        magnitudes = ()
    if len(magnitudes) != len(kind.defaults) or not kind.accepts(*magnitudes):
        raise SpikewireError(f"augment: {spec!r} is not allowed; it must be {kind.allowed}")
    return lambda count, size, generator: kind.draw(count, size, generator, *magnitudes), kind.apply


def draw_shifts(count: int, size: tuple[int, int], generator: Generator, pixels: float) -> Tensor:
    """Draw rows and columns to move by, each in ``-pixels .. pixels``."""
    check(pixels < min(size), "augment", pixels, f"under {min(size)} pixels, the image's side")
    largest = int(pixels)
    return torch.randint(-largest, largest + 1, (count, 2), generator=generator)


def shift(images: Tensor, shifts: Tensor) -> Tensor:
    """Move each image down and right by whole pixels: ``out[y, x] = in[y - dy, x - dx]``.

    With moves in -n .. n this is also the crop at a random position of the image padded by n.
    """
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device)[:, None] - shifts[:, 0, None, None]
    columns = torch.arange(width, device=images.device) - shifts[:, 1, None, None]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    source = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    index = source.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, index).view(images.shape) * inside[:, None]


def draw_flips(count: int, size: tuple[int, int], generator: Generator) -> Tensor:
    """Mark each image with probability one half."""
    return torch.rand(count, generator=generator) < 0.5


def flip(images: Tensor, flips: Tensor) -> Tensor:
    """Mirror the marked images left to right."""
    return torch.where(flips[:, None, None, None], images.flip(-1), images)


def draw_boxes(count: int, size: tuple[int, int], generator: Generator, side: float) -> Tensor:
    """Draw top, left, bottom, right (the last two exclusive) of a square hole in each image.

    Its centre is uniform over the image, so it may be partly outside (DeVries and Taylor, 2017,
    https://arxiv.org/abs/1708.04552).
    """
    centres = [torch.randint(0, extent, (count,), generator=generator) for extent in size]
    corner = torch.stack(centres, dim=1) - int(side) // 2
    return torch.cat([corner, corner + int(side)], dim=1)


def cutout(images: Tensor, boxes: Tensor) -> Tensor:
    """Set one box in each image to black."""
    return images * ~_mark_inside(images, boxes)


def _mark_inside(images: Tensor, boxes: Tensor) -> Tensor:
    """Mark the pixels inside each image's box, ``[batch, 1, height, width]``."""
    rows = torch.arange(images.shape[2], device=images.device)[:, None]
    columns = torch.arange(images.shape[3], device=images.device)
    top, left, bottom, right = boxes[:, :, None, None].unbind(1)
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return inside[:, None]


def draw_patches(
    count: int, size: tuple[int, int], generator: Generator, probability: float
) -> Tensor:
    """Draw top, left, bottom, right (exclusive) of the patch that each image takes from another.

    The patch covers a uniform fraction of the image around a uniform centre, clipped at the edges
    (Yun et al., 2019, https://arxiv.org/abs/1905.04899). An unchanged image has an empty patch.
    """
    side = torch.rand(count, generator=generator).sqrt()
    unchanged = torch.rand(count, generator=generator) >= probability
    ends = []
    for extent in size:
        centre = torch.randint(0, extent, (count,), generator=generator)
        half = (side * extent / 2).round().long().masked_fill(unchanged, 0)
        ends.append(torch.stack([centre - half, centre + half]).clamp(0, extent))
    (top, bottom), (left, right) = ends
    return torch.stack([top, left, bottom, right], dim=1)


def swap_partners(values: Tensor) -> Tensor:
    """Return values with the first and second exchanged, the third and fourth, and so on."""
    index = torch.arange(len(values), device=values.device).bitwise_xor(1)
    return values[index.clamp(max=len(values) - 1)]


def cutmix(images: Tensor, patches: Tensor) -> Tensor:
    """Replace a patch of each image by that of its partner; see `mix_labels` for the labels."""
    return torch.where(_mark_inside(images, patches), swap_partners(images), images)


def mix_labels(labels: Tensor, patches: Tensor, size: tuple[int, int], classes: int) -> Tensor:
    """Return the fraction of pixels per class ``[batch, classes]`` of images after `cutmix`."""
    top, left, bottom, right = patches.unbind(1)
    fraction = ((bottom - top) * (right - left) / (size[0] * size[1]))[:, None]
    one_hot = F.one_hot(labels, classes).float() if labels.ndim == 1 else labels
    return torch.lerp(one_hot, swap_partners(one_hot), fraction)


def _is_pixel_count(value: float) -> bool:
    return value >= 1 and value.is_integer()


AUGMENTATIONS: dict[str, Augmentation] = {
    "time-shift": Augmentation(
        draw_steps, time_shift, (1.0,), "time-shift or time-shift:STEPS", _is_pixel_count
    ),
    "crop": Augmentation(draw_shifts, shift, (4.0,), "crop or crop:PIXELS", _is_pixel_count),
    "shift": Augmentation(draw_shifts, shift, (1.0,), "shift or shift:PIXELS", _is_pixel_count),
    "flip": Augmentation(draw_flips, flip, (), "flip, without a magnitude", lambda: True),
    "trivial": Augmentation(
        draw_operations, trivial, (), "trivial, without a magnitude", lambda: True
    ),
    "cutout": Augmentation(draw_boxes, cutout, (8.0,), "cutout or cutout:PIXELS", _is_pixel_count),
    "cutmix": Augmentation(
        draw_patches,
        cutmix,
        (0.5,),
        "cutmix or cutmix:PROBABILITY in 0..1",
        lambda probability: 0 <= probability <= 1,
    ),
    "affine": Augmentation(
        draw_affine,
        affine,
        (1.5, 8.0, 0.1, 0.0),
        "affine or affine:PIXELS/DEGREES/SCALE/SHEAR (those at the end may be omitted) with "
        "PIXELS 0 or more, DEGREES 0..180, SCALE 0..0.9, SHEAR 0..1",
        lambda pixels, degrees, scale, shear: (
            0 <= pixels < math.inf and 0 <= degrees <= 180 and 0 <= scale <= 0.9 and 0 <= shear <= 1
        ),
    ),
    "random-affine": Augmentation(
        draw_random_affine,
        affine_nearest,
        (30.0, 0.15, 0.85, 1.11),
        "random-affine or random-affine:DEGREES/SHIFT/LOW/HIGH (those at the end may be omitted) "
        "with DEGREES 0..180, SHIFT 0..1 of the side, 0.1 <= LOW <= HIGH <= 10",
        lambda degrees, shift, low, high: (
            0 <= degrees <= 180 and 0 <= shift <= 1 and 0.1 <= low <= high <= 10
        ),
    ),
}
