"""Each augmentation against a slow version that handles one image at a time."""

import math

import pytest
import torch
import torch.nn.functional as F

from spikewire.data import augment


def slow_crop(image, drawn):
    """Cut the original size out of the image padded with black by 9."""
    padded = F.pad(image, (9, 9, 9, 9))
    top, left = 9 - int(drawn[0]), 9 - int(drawn[1])
    return padded[:, top : top + image.shape[1], left : left + image.shape[2]]


def slow_flip(image, drawn):
    return image[:, :, list(range(image.shape[2]))[::-1]] if drawn else image


def slow_cutout(image, drawn):
    top, left, bottom, right = drawn.tolist()
    image = image.clone()
    for y in range(max(top, 0), min(bottom, image.shape[1])):
        for x in range(max(left, 0), min(right, image.shape[2])):
            image[:, y, x] = 0
    return image


def slow_affine(image, drawn):
    """Bilinear look-up, pixel by pixel, in float64."""
    channels, height, width = image.shape
    out = torch.zeros(channels, height, width, dtype=torch.float64)
    matrix = drawn.double()
    for y in range(height):
        for x in range(width):
            position = torch.tensor([x - (width - 1) / 2, y - (height - 1) / 2, 1.0]).double()
            at_x, at_y = (matrix @ position).tolist()
            out[:, y, x] = look_up(image, at_x + (width - 1) / 2, at_y + (height - 1) / 2)
    return out.float()


def look_up(image, at_x, at_y):
    """Return the bilinear mean of the four pixels around a position; black outside."""
    found = torch.zeros(len(image), dtype=torch.float64)
    for j in (math.floor(at_y), math.floor(at_y) + 1):
        for i in (math.floor(at_x), math.floor(at_x) + 1):
            if 0 <= j < image.shape[1] and 0 <= i < image.shape[2]:
                found += (1 - abs(at_x - i)) * (1 - abs(at_y - j)) * image[:, j, i].double()
    return found


@pytest.mark.parametrize(
    ("spec", "slow"),
    [
        ("crop:4", slow_crop),
        ("shift:1", slow_crop),
        ("flip", slow_flip),
        ("cutout:5", slow_cutout),
        ("cutout:4", slow_cutout),
        ("affine:2/30/0.3", slow_affine),
        ("affine:2/30/0.3/0.5", slow_affine),
    ],
)
@pytest.mark.parametrize("size", [(9, 9), (7, 12)])
def test_an_augmentation_equals_its_slow_version(spec, slow, size):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (24, 3, *size), generator=generator, dtype=torch.uint8)
    draw, apply = augment.parse(spec)
    drawn = draw(len(images), size, generator)
    fast = apply(images, drawn)
    expected = torch.stack([slow(*pair) for pair in zip(images, drawn, strict=True)])
    torch.testing.assert_close(fast, expected, rtol=0, atol=2e-3 if fast.is_floating_point() else 0)
    assert not torch.equal(fast, images.to(fast.dtype))


def test_mixed_patches_cover_their_range():
    patches = augment.draw_patches(20_000, (8, 12), torch.Generator().manual_seed(0), 0.5)
    height, width = (patches[:, 2:] - patches[:, :2]).unbind(1)
    unchanged = height * width == 0
    assert abs(unchanged.float().mean() - 0.5) < 0.05
    assert (patches.amin(), patches[:, 2].amax(), patches[:, 3].amax()) == (0, 8, 12)


def test_draws_cover_their_range_and_no_more():
    generator = torch.Generator().manual_seed(4)
    shifts = augment.draw_shifts(20_000, (32, 32), generator, 4.0)
    counts = torch.stack([(shifts == value).sum(dim=0) for value in range(-4, 5)])
    assert int(counts.sum()) == 40_000
    assert (counts - 20_000 / 9).abs().max() < 250
    assert abs(augment.draw_flips(20_000, (1, 1), generator).float().mean() - 0.5) < 0.02
    boxes = augment.draw_boxes(20_000, (10, 6), generator, 4.0)
    assert (boxes[:, 2:] - boxes[:, :2] == 4).all()
    assert (boxes[:, :2] + 2).amin(dim=0).tolist() == [0, 0]
    assert (boxes[:, :2] + 2).amax(dim=0).tolist() == [9, 5]
