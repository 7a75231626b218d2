"""Augmentations: parameters drawn on the CPU for a whole epoch, applied to a batch on its device.

`apply(images, parameters)` is pure; images are ``[batch, channels, height, width]`` before
normalisation, so what is shifted in or cut out is black.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from spikewire.errors import SpikewireError, check, unknown

Draw = Callable[[int, tuple[int, int], Generator], Tensor]
Apply = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Augmentation:
    """What a name in an `augment` list stands for; `draw` takes the magnitudes last."""

    draw: Callable[..., Tensor]
    apply: Apply
    defaults: tuple[float, ...]
    allowed: str
    accepts: Callable[..., bool]


def parse(spec: str) -> tuple[Draw, Apply]:
    """Turn ``name[:magnitude[/magnitude...]]`` into what draws its parameters and applies them.

    Magnitudes left out at the end are the defaults.
    """
    name, _, given = spec.partition(":")
    if name not in AUGMENTATIONS:
        raise unknown("augment", name, AUGMENTATIONS)
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
    """Rows and columns to move by, each in ``-pixels .. pixels``."""
    check(pixels < min(size), "augment", pixels, f"under {min(size)} pixels, the image's side")
    reach = int(pixels)
    return torch.randint(-reach, reach + 1, (count, 2), generator=generator)


def shift(images: Tensor, shifts: Tensor) -> Tensor:
    """Move each image down and right by whole pixels: ``out[y, x] = in[y - dy, x - dx]``.

    With moves in -n .. n this is also the crop at a random place of the image padded by n.
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
    """Top, left, bottom, right (the last two excluded) of a square hole in each image.

    Its centre is uniform over the image, so a part may fall outside (DeVries and Taylor, 2017).
    """
    centres = [torch.randint(0, extent, (count,), generator=generator) for extent in size]
    corner = torch.stack(centres, dim=1) - int(side) // 2
    return torch.cat([corner, corner + int(side)], dim=1)


def cutout(images: Tensor, boxes: Tensor) -> Tensor:
    """Blacken one box in each image."""
    return images * ~_within(images, boxes)


def _within(images: Tensor, boxes: Tensor) -> Tensor:
    """Mark the pixels inside each image's box, ``[batch, 1, height, width]``."""
    rows = torch.arange(images.shape[2], device=images.device)[:, None]
    columns = torch.arange(images.shape[3], device=images.device)
    top, left, bottom, right = boxes[:, :, None, None].unbind(1)
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return inside[:, None]


def draw_patches(
    count: int, size: tuple[int, int], generator: Generator, probability: float
) -> Tensor:
    """Top, left, bottom, right (excluded) of the part of each image that its partner replaces.

    Its area is uniform in 0 .. 1 of the image's, its centre uniform; what falls outside is cut off
    (Yun et al., 2019, https://arxiv.org/abs/1905.04899). An image left alone has an empty part.
    """
    side = torch.rand(count, generator=generator).sqrt()
    alone = torch.rand(count, generator=generator) >= probability
    ends = []
    for extent in size:
        centre = torch.randint(0, extent, (count,), generator=generator)
        half = (side * extent / 2).round().long().masked_fill(alone, 0)
        ends.append(torch.stack([centre - half, centre + half]).clamp(0, extent))
    (top, bottom), (left, right) = ends
    return torch.stack([top, left, bottom, right], dim=1)


def partners(values: Tensor) -> Tensor:
    """Return values with the first and second exchanged, the third and fourth, and so on."""
    index = torch.arange(len(values), device=values.device).bitwise_xor(1)
    return values[index.clamp(max=len(values) - 1)]


def cutmix(images: Tensor, patches: Tensor) -> Tensor:
    """Replace a part of each image by the same part of its partner; `mixed` goes with it."""
    return torch.where(_within(images, patches), partners(images), images)


def mixed(labels: Tensor, patches: Tensor, size: tuple[int, int], classes: int) -> Tensor:
    """Return the shares of the classes in images that `cutmix` has made."""
    top, left, bottom, right = patches.unbind(1)
    share = ((bottom - top) * (right - left) / (size[0] * size[1]))[:, None]
    one = F.one_hot(labels, classes).float() if labels.ndim == 1 else labels
    return torch.lerp(one, partners(one), share)


def draw_colours(count: int, size: tuple[int, int], generator: Generator, share: float) -> Tensor:
    """Factors of brightness, contrast and saturation, each uniform within `share` of 1."""
    return 1 + share * (2 * torch.rand(count, 3, generator=generator) - 1)


def colour(images: Tensor, factors: Tensor) -> Tensor:
    """Scale pixels, then their distance to the image's mean, then to their own grey; float32."""
    bright, contrast, saturation = factors[:, :, None, None, None].unbind(1)
    images = images.float() * bright
    images = torch.lerp(images.mean((1, 2, 3), keepdim=True), images, contrast)
    return torch.lerp(images.mean(1, keepdim=True), images, saturation).clamp(0, 255)


def draw_affine(
    count: int,
    size: tuple[int, int],
    generator: Generator,
    pixels: float,
    degrees: float,
    share: float,
    slant: float,
) -> Tensor:
    """Matrices ``[count, 2, 3]`` from output to input, in pixels about the image's centre.

    ``in = K R(-angle) (out - move) / zoom``, K adding ``slant * y`` to x; each of the five is
    uniform within its magnitude.
    """
    move_x, move_y, turn, zoom = (2 * torch.rand(count, 4, generator=generator) - 1).unbind(1)
    angle, zoom = turn * math.radians(degrees), 1 + zoom * share
    cosine, sine = angle.cos() / zoom, angle.sin() / zoom
    move_x, move_y = move_x * pixels, move_y * pixels
    top = torch.stack([cosine, sine, -cosine * move_x - sine * move_y], dim=1)
    bottom = torch.stack([-sine, cosine, sine * move_x - cosine * move_y], dim=1)
    if slant:  # without, what is drawn stays what it was
        top = top + bottom * slant * (2 * torch.rand(count, 1, generator=generator) - 1)
    return torch.stack([top, bottom], dim=1)


def affine(images: Tensor, matrices: Tensor) -> Tensor:
    """Resample each image bilinearly through its matrix; the result is float32."""
    x, y = _places(images)
    # written out rather than as a matrix product, which TF32 or autocast would round
    (xx, xy, x0), (yx, yy, y0) = (row.unbind(1) for row in matrices[..., None, None].unbind(1))
    return _look_up(images, xx * x + xy * y + x0, yx * x + yy * y + y0)


def _places(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pixels' x ``[width]`` and y ``[height, 1]`` about the image's centre."""
    y, x = (torch.arange(n, device=images.device) - (n - 1) / 2 for n in images.shape[-2:])
    return x, y[:, None]


def _look_up(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return each image between its pixels, at places about its centre; black outside."""
    height, width = images.shape[-2:]
    grid = torch.stack([x * (2 / width), y * (2 / height)], dim=-1)
    return F.grid_sample(images.float(), grid, mode="bilinear", align_corners=False)


def draw_knots(
    count: int, size: tuple[int, int], generator: Generator, pixels: float, meshes: float
) -> Tensor:
    """Draw moves (x, y) of the knots of a net over each image, ``[count, 2, knots, knots]``.

    They are normal, and so large that `elastic`, which smooths them, moves a pixel by a root mean
    square of `pixels` either way. Knots lie on the edges, one mesh beyond them, and between.
    """
    check(pixels < min(size), "augment", pixels, f"under {min(size)} pixels, the image's side")
    knots = int(meshes) + 3
    return torch.randn(count, 2, knots, knots, generator=generator) * (pixels / SPLINE_POWER)


def elastic(images: Tensor, knots: Tensor) -> Tensor:
    """Resample each image where a net of cubic B-splines moves its pixels; float32.

    Simard et al., 2003, smooth a random move of every pixel by a Gaussian of 4 pixels; splines of 4
    meshes over 28 pixels are as smooth, and need 49 knots instead of 784 moves.
    """
    down, across = (_splines(extent, knots) for extent in images.shape[-2:])
    moves = (down @ knots.double() @ across.T).float()  # TF32 would round a float32 product
    x, y = _places(images)
    return _look_up(images, x + moves[:, 0], y + moves[:, 1])


SPLINE_POWER = 151 / 315  # integral of the squared cubic B-spline: what smoothing leaves, each way


def _splines(extent: int, knots: Tensor) -> Tensor:
    """Return how much each knot counts at each pixel, ``[extent, knots]``."""
    count = knots.shape[-1]
    pixels = torch.arange(extent, device=knots.device, dtype=torch.float64)
    place = pixels[:, None] * ((count - 3) / max(extent - 1, 1)) + 1
    away = (place - torch.arange(count, device=knots.device)).abs()
    return torch.where(away < 1, 2 / 3 - away**2 + away**3 / 2, (2 - away).clamp(min=0) ** 3 / 6)


def _pixels(value: float) -> bool:
    return value >= 1 and value.is_integer()


AUGMENTATIONS: dict[str, Augmentation] = {
    "crop": Augmentation(draw_shifts, shift, (4.0,), "crop or crop:PIXELS", _pixels),
    "shift": Augmentation(draw_shifts, shift, (1.0,), "shift or shift:PIXELS", _pixels),
    "flip": Augmentation(draw_flips, flip, (), "flip, without a magnitude", lambda: True),
    "cutout": Augmentation(draw_boxes, cutout, (8.0,), "cutout or cutout:PIXELS", _pixels),
    "cutmix": Augmentation(
        draw_patches,
        cutmix,
        (0.5,),
        "cutmix or cutmix:PROBABILITY in 0..1",
        lambda probability: 0 <= probability <= 1,
    ),
    "colour": Augmentation(
        draw_colours,
        colour,
        (0.2,),
        "colour or colour:SHARE in 0..1",
        lambda share: 0 <= share <= 1,
    ),
    "affine": Augmentation(
        draw_affine,
        affine,
        (1.5, 8.0, 0.1, 0.0),
        "affine or affine:PIXELS/DEGREES/SHARE/SLANT (the last may be left out) with PIXELS "
        "0 or more, DEGREES 0..180, SHARE 0..0.9, SLANT 0..1",
        lambda pixels, degrees, share, slant: (
            0 <= pixels < math.inf and 0 <= degrees <= 180 and 0 <= share <= 0.9 and 0 <= slant <= 1
        ),
    ),
    "elastic": Augmentation(
        draw_knots,
        elastic,
        (1.0, 4.0),
        "elastic or elastic:PIXELS/MESHES with PIXELS 0 or more, MESHES 1, 2, .. 32",
        lambda pixels, meshes: 0 <= pixels < math.inf and _pixels(meshes) and meshes <= 32,
    ),
}
