"""Rotation, zoom, shear and shift of images: matrices drawn at random, and resampling by them.

`draw_*` returns matrices from output to input, ``[count, 2, 3]``, in pixels about the centre.
"""

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor


def draw_affine(
    count: int,
    size: tuple[int, int],
    generator: Generator,
    pixels: float,
    degrees: float,
    scale: float,
    shear: float,
) -> Tensor:
    """Draw matrices ``[count, 2, 3]`` from output to input, in pixels about the image's centre.

    ``in = K R(-angle) (out - move) / zoom``, where K adds ``shear * y`` to x; the two moves,
    angle, ``zoom - 1`` and shear are each uniform within plus or minus their magnitude.
    """
    move_x, move_y, turn, zoom = (2 * torch.rand(count, 4, generator=generator) - 1).unbind(1)
    angle, zoom = turn * math.radians(degrees), 1 + zoom * scale
    top, bottom = _inverse(move_x * pixels, move_y * pixels, angle, zoom)
    if shear:  # drawn last and only if needed, so that without it the other draws are the same
        top = top + bottom * shear * (2 * torch.rand(count, 1, generator=generator) - 1)
    return torch.stack([top, bottom], dim=1)


def draw_random_affine(
    count: int,
    size: tuple[int, int],
    generator: Generator,
    degrees: float,
    shift: float,
    low: float,
    high: float,
) -> Tensor:
    """Draw matrices as torchvision's ``RandomAffine(degrees, (shift, shift), (low, high))`` does.

    The angle is uniform within plus or minus `degrees`; each move is uniform within plus or minus
    `shift` of the side, rounded to whole pixels; the zoom is uniform in ``low .. high``.
    """
    turn, across, down, zoom = torch.rand(count, 4, generator=generator).unbind(1)
    move_x = ((2 * across - 1) * shift * size[1]).round()
    move_y = ((2 * down - 1) * shift * size[0]).round()
    angle = (2 * turn - 1) * math.radians(degrees)
    return torch.stack(_inverse(move_x, move_y, angle, low + zoom * (high - low)), dim=1)


def _inverse(move_x: Tensor, move_y: Tensor, angle: Tensor, zoom: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two rows of ``in = R(-angle) (out - move) / zoom``, ``[count, 3]`` each."""
    cosine, sine = angle.cos() / zoom, angle.sin() / zoom
    top = torch.stack([cosine, sine, -cosine * move_x - sine * move_y], dim=1)
    bottom = torch.stack([-sine, cosine, sine * move_x - cosine * move_y], dim=1)
    return top, bottom


def affine_nearest(images: Tensor, matrices: Tensor) -> Tensor:
    """As `affine`, but each pixel takes the value of the nearest one."""
    return affine(images, matrices, "nearest")


def affine(images: Tensor, matrices: Tensor, mode: str = "bilinear") -> Tensor:
    """Resample each image bilinearly through its matrix; black outside; the result is float32."""
    height, width = images.shape[-2:]
    y, x = (torch.arange(n, device=images.device) - (n - 1) / 2 for n in (height, width))
    y = y[:, None]
    # written out instead of a matrix product, which TF32 or autocast would round
    (xx, xy, x0), (yx, yy, y0) = (row.unbind(1) for row in matrices[..., None, None].unbind(1))
    at_x, at_y = xx * x + xy * y + x0, yx * x + yy * y + y0
    grid = torch.stack([at_x * (2 / width), at_y * (2 / height)], dim=-1)
    return F.grid_sample(images.float(), grid, mode=mode, align_corners=False)
