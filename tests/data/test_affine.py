"""Affine maps against torch's grid and Pillow; the slow version is in test_augment.py."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from spikewire.data import augment
from spikewire.data.affine import affine, draw_affine


def test_affine_rotates_and_moves_in_the_documented_direction(digits):
    image = digits.train_images[:1]
    quarter = torch.tensor([[[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]])
    rotated = image.float().rot90(-1, (2, 3))
    torch.testing.assert_close(affine(image, quarter), rotated, rtol=0, atol=1e-2)
    moved = affine(image, torch.tensor([[[1.0, 0.0, -2.0], [0.0, 1.0, 1.0]]]))
    expected = augment.shift(image, torch.tensor([[-1, 2]])).float()
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-2)


def test_affine_agrees_with_the_grid_of_torch():
    generator = torch.Generator().manual_seed(2)
    images = torch.rand(16, 1, 20, 20, generator=generator) * 255
    matrices = draw_affine(16, (20, 20), generator, 1.5, 8.0, 0.1, 0.0)
    scaled = matrices * torch.tensor([1.0, 1.0, 2 / 20])
    grid = F.affine_grid(scaled, [16, 1, 20, 20], align_corners=False)
    expected = F.grid_sample(images, grid, align_corners=False)
    torch.testing.assert_close(affine(images, matrices), expected, rtol=0, atol=2e-3)


def test_matrices_cover_their_range_and_no_more():
    generator = torch.Generator().manual_seed(4)
    linear = draw_affine(20_000, (28, 28), generator, 1.5, 8.0, 0.1, 0.0)[:, :, :2]
    zoom = linear.det().rsqrt()
    angle = torch.atan2(linear[:, 0, 1], linear[:, 0, 0]).rad2deg()
    assert zoom.min() == pytest.approx(0.9, abs=1e-3)
    assert zoom.max() == pytest.approx(1.1, abs=1e-3)
    assert angle.abs().max() == pytest.approx(8, abs=1e-2)
    sheared = draw_affine(20_000, (28, 28), generator, 0.0, 0.0, 0.0, 0.2)
    assert sheared[:, 0, 1].abs().max() == pytest.approx(0.2, abs=1e-3)
    assert sheared[:, 0, 1].mean().abs() < 0.005
    sheared[:, 0, 1] = 0
    assert sheared.equal(torch.eye(2, 3).expand_as(sheared))


def test_random_affine_is_the_one_of_torchvision():
    """``RandomAffine(30, (0.15, 0.15), (0.85, 1.11))``; it resamples with Pillow, nearest pixel."""
    generator = torch.Generator().manual_seed(5)
    draw, apply = augment.parse("random-affine:30/0.15/0.85/1.11")
    matrices = draw(20_000, (28, 28), generator)
    linear = matrices[:, :, :2]
    zoom = linear.det().rsqrt()
    angle = torch.atan2(linear[:, 0, 1], linear[:, 0, 0]).rad2deg()
    assert (zoom.min(), zoom.max()) == (
        pytest.approx(0.85, abs=1e-3),
        pytest.approx(1.11, abs=1e-3),
    )
    assert zoom.mean() == pytest.approx(0.98, abs=5e-3)
    assert angle.abs().max() == pytest.approx(30, abs=0.05)
    moves = -torch.linalg.solve(linear, matrices[:, :, 2])
    assert (moves - moves.round()).abs().max() < 1e-4
    assert sorted(set(moves.round().int().flatten().tolist())) == list(range(-4, 5))  # 0.15 * 28
    images = torch.randint(0, 256, (40, 1, 28, 28), generator=generator, dtype=torch.uint8)
    expected = torch.stack([pillow(*pair) for pair in zip(images, matrices, strict=False)])
    same = (apply(images, matrices[:40]) == expected).float().mean()
    assert same > 0.998  # a position halfway between two pixels may round to either


def pillow(image, matrix):
    """Resample with Pillow, whose coordinates are at the corners of pixels."""
    (a, b, c), (d, e, f) = matrix.double().tolist()
    half = 14.0
    coefficients = (a, b, c + half - (a + b) * half, d, e, f + half - (d + e) * half)
    picture = Image.fromarray(image[0].numpy())
    turned = picture.transform((28, 28), Image.Transform.AFFINE, coefficients, Image.NEAREST)
    return torch.from_numpy(np.array(turned))[None].float()
