"""TrivialAugment against Pillow, which the authors' own code calls, one image at a time."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from spikewire.data import Batches, augment
from spikewire.data.trivial import OPERATIONS, draw_operations, trivial
from spikewire.errors import SpikewireError

SIDE = 32
# image, strength -> image; the strengths are those of torchvision's TrivialAugmentWide
PILLOW = {
    "identity": lambda image, v: image,
    "shear-x": lambda image, v: transformed(image, (1, v, 0, 0, 1, 0)),
    "shear-y": lambda image, v: transformed(image, (1, 0, 0, v, 1, 0)),
    "translate-x": lambda image, v: transformed(image, (1, 0, v, 0, 1, 0)),
    "translate-y": lambda image, v: transformed(image, (1, 0, 0, 0, 1, v)),
    "rotate": lambda image, v: image.rotate(math.degrees(v)),
    "brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(1 + v),
    "colour": lambda image, v: ImageEnhance.Color(image).enhance(1 + v),
    "contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(1 + v),
    "sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(1 + v),
    "posterize": lambda image, v: ImageOps.posterize(image, 8 - int(v)),
    "solarize": lambda image, v: ImageOps.solarize(image, 255 - v),
    "autocontrast": lambda image, v: ImageOps.autocontrast(image),
    "equalize": lambda image, v: ImageOps.equalize(image),
}
LARGEST = {
    **dict.fromkeys(("shear-x", "shear-y"), 0.99),
    **dict.fromkeys(("translate-x", "translate-y"), 32),
    "rotate": math.radians(135),
    **dict.fromkeys(("brightness", "colour", "contrast", "sharpness"), 0.99),
    "posterize": 6,
    "solarize": 255,
}
EXACT = {"identity", "translate-x", "translate-y", "posterize", "solarize", "equalize"}


def transformed(image, coefficients):
    return image.transform(image.size, Image.Transform.AFFINE, coefficients, Image.NEAREST)


def photos(count, channels=3):
    """Smooth pictures, whose channels do not use all values, with noise; one is of one colour."""
    generator = torch.Generator().manual_seed(3)
    coarse = torch.rand(count, channels, 4, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=SIDE, mode="bicubic")
    noise = torch.rand(count, channels, SIDE, SIDE, generator=generator)
    images = (20 + 180 * smooth + 30 * noise).clamp(0, 255).to(torch.uint8)
    images[0] = 77
    return images


def of_pillow(name, image, strength):
    picture = Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy())
    found = np.array(PILLOW[name](picture, strength))
    return torch.from_numpy(found).view(SIDE, SIDE, -1).permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_that_of_pillow(name, channels):
    images = photos(40, channels)
    drawn = draw_operations(4000, (SIDE, SIDE), torch.Generator().manual_seed(1))
    drawn = drawn[drawn[:, 0] == OPERATIONS.index(name)][: len(images)]
    assert len(drawn) == len(images)
    fast = trivial(images, drawn)
    assert fast.dtype == torch.uint8
    pairs = zip(images, drawn[:, 1].tolist(), strict=True)
    slow = torch.stack([of_pillow(name, image, strength) for image, strength in pairs])
    difference = (fast.int() - slow.int()).abs()
    if name in EXACT:
        assert difference.max() == 0
    elif name in ("rotate", "shear-x", "shear-y"):  # positions halfway between two pixels
        assert (difference > 0).float().mean() < 0.01
    else:
        assert difference.max() <= 1  # Pillow computes in float32 and truncates
    if name != "identity" and (name, channels) != ("colour", 1):
        assert not fast.equal(images)


def test_pillow_smooths_as_the_twin_of_sharpness_does():
    image = Image.fromarray(photos(2)[1].permute(1, 2, 0).numpy())
    smooth = np.array(image.filter(ImageFilter.SMOOTH))
    blurred = np.array(ImageEnhance.Sharpness(image).enhance(0.0))
    assert (smooth == blurred).all()


def test_operations_and_strengths_cover_their_range():
    drawn = draw_operations(140_000, (SIDE, SIDE), torch.Generator().manual_seed(0))
    numbers = drawn[:, 0].long()
    counts = numbers.bincount(minlength=len(OPERATIONS))
    assert set(OPERATIONS) == set(PILLOW)
    assert (counts - 10_000).abs().max() < 500
    for i, name in enumerate(OPERATIONS):
        strengths = drawn[numbers == i, 1]
        largest = LARGEST.get(name, 0)
        assert strengths.max() == pytest.approx(largest)
        signed = largest > 0 and name not in ("posterize", "solarize")
        assert strengths.min() == pytest.approx(-largest if signed else 0)
        if largest and name != "posterize":
            levels = {round(31 * x) for x in strengths.abs().tolist()}
            assert len(levels) == 31
    bits = drawn[numbers == OPERATIONS.index("posterize"), 1]
    assert set(bits.tolist()) == {0, 1, 2, 3, 4, 5, 6}


def test_a_batch_of_mixed_operations_equals_one_image_at_a_time():
    images = photos(64)
    drawn = draw_operations(64, (SIDE, SIDE), torch.Generator().manual_seed(2))
    together = trivial(images, drawn)
    alone = [trivial(images[i : i + 1], drawn[i : i + 1]) for i in range(64)]
    assert together.equal(torch.cat(alone))
    assert trivial(images.float() + 0.25, drawn).equal(together.float())


def test_batches_take_it_by_name_and_refuse_a_magnitude_and_odd_channels():
    images, labels = photos(8), torch.arange(8)
    options = {"batch_size": 8, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    plain = Batches(images, labels, **options, augment=("flip",))
    batches = Batches(images, labels, **options, augment=("flip", "trivial", "cutmix"))
    (first, mixed), (same, _) = next(batches.epoch(0)), next(batches.epoch(0))
    assert first.equal(same)
    assert first.dtype == torch.float32
    assert not first.equal(next(plain.epoch(0))[0])
    assert mixed.shape == (8, 8)
    with pytest.raises(SpikewireError, match="trivial, without a magnitude"):
        augment.parse("trivial:3")
    with pytest.raises(SpikewireError, match="1 or 3 channels"):
        trivial(torch.zeros(1, 2, 4, 4), torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((8, 3, 8, 8), {"mean": (), "std": ()}),  # floats of any range
        ((8, 2, 8, 8), {"mean": (0.5,) * 2, "std": (0.5,) * 2}),
        ((8, 3, 1, 8, 8), {"mean": (), "std": (), "temporal": True}),
    ],
)
def test_data_that_are_not_images_of_pixels_are_refused(shape, options):
    options |= {"batch_size": 8, "augment": ("trivial",)}
    with pytest.raises(SpikewireError, match=r"left out for data that are no single images"):
        Batches(torch.rand(shape), torch.arange(8), **options)


def test_tiny_images_have_only_a_border_and_autocast_changes_nothing():
    drawn = draw_operations(200, (SIDE, SIDE), torch.Generator().manual_seed(5))
    for side in (1, 2):
        assert trivial(photos(200)[..., :side, :side], drawn).shape == (200, 3, side, side)
    images = photos(200)
    with torch.autocast("cpu", torch.bfloat16):
        found = trivial(images, drawn)
    assert found.equal(trivial(images, drawn))
