"""Batches, and each augmentation against one image at a time."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from refusal import refused

from spikewire import data
from spikewire.data import augment

EVERY = ("affine", "elastic", "crop:2", "flip", "cutout:3", "shift:1", "colour")


@pytest.fixture(scope="module")
def mnist():
    return data.load("mnist")


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


def batches(dataset, **options) -> data.Batches:
    options = {"batch_size": 100, "mean": dataset.mean, "std": dataset.std} | options
    return data.Batches(dataset.train_images, dataset.train_labels, **options)


def numbered(count: int, **options) -> data.Batches:
    """Batches of images whose label is their own number, written in their pixels too."""
    labels = torch.arange(count)
    images = torch.stack([labels % 256, labels // 256], dim=1).to(torch.uint8)[:, :, None, None]
    options = {"mean": (0.0, 0.0), "std": (1.0, 1.0)} | options
    return data.Batches(images.expand(-1, -1, 4, 4), labels, **options)


def same(left, right) -> bool:
    pairs = list(zip(left, right, strict=True))
    return bool(pairs) and all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)


@given(st.integers(1, 300), st.integers(1, 64), st.integers(0, 9), st.booleans())
@settings(deadline=None, max_examples=40)
def test_each_sample_comes_exactly_once_an_epoch(count, batch_size, epoch, drop_last):
    drop_last = drop_last and batch_size <= count
    feed = numbered(count, batch_size=batch_size, drop_last=drop_last)
    seen = list(feed.epoch(epoch))
    assert len(seen) == len(feed) == (count // batch_size if drop_last else -(-count // batch_size))
    labels = torch.cat([own for _, own in seen])
    assert len(labels) == (len(feed) * batch_size if drop_last else count)
    assert len(labels.unique()) == len(labels)
    for images, own in seen:
        pixels = (images[:, :, 0, 0] * 255).round().long()
        assert torch.equal(pixels[:, 0] + 256 * pixels[:, 1], own)


@pytest.mark.parametrize("start", [0, 1, 7, 14])
def test_a_start_in_mid_epoch_gives_the_same_rest(digits, start):
    whole = list(batches(digits, augment=EVERY, seed=3).epoch(5))
    rest = list(batches(digits, augment=EVERY, seed=3).epoch(5, start=start))
    assert len(rest) == len(whole) - start
    assert not rest or same(rest, whole[start:])


def test_batches_depend_on_seed_and_epoch_and_nothing_else(digits):
    feed = batches(digits, augment=EVERY)
    first = list(feed.epoch(0))
    torch.manual_seed(99)
    state = torch.get_rng_state()
    list(feed.epoch(1))
    assert same(first, feed.epoch(0))
    assert torch.equal(state, torch.get_rng_state())
    for other in (feed.epoch(1), batches(digits, augment=EVERY, seed=1).epoch(0)):
        assert not same(first, other)
    # epoch 1 of seed 0 is not epoch 0 of seed 1
    assert not same(feed.epoch(1), batches(digits, augment=EVERY, seed=1).epoch(0))


def test_order_does_not_change_with_augmentation_or_threads(digits):
    plain = [labels for _, labels in batches(digits).epoch(2)]
    augmented = list(batches(digits, augment=EVERY).epoch(2))
    assert all(torch.equal(a, b) for a, (_, b) in zip(plain, augmented, strict=True))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert same(augmented, batches(digits, augment=EVERY).epoch(2))
    finally:
        torch.set_num_threads(threads)


def test_normalisation_layout_and_dtype(mnist):
    images = mnist.test_images[:50].expand(-1, 3, -1, -1)
    options = {"mean": (0.5, 0.25, 0.0), "std": (0.5, 2.0, 1.0), "shuffle": False}
    feed = data.Batches(images, mnist.test_labels[:50], batch_size=50, **options)
    batch, labels = next(feed.epoch(0))
    pixels = images.double() / 255
    for channel, (mean, std) in enumerate(zip(options["mean"], options["std"], strict=True)):
        expected = ((pixels[:, channel] - mean) / std).float()
        torch.testing.assert_close(batch[:, channel], expected, rtol=0, atol=1e-6)
    assert torch.equal(labels, mnist.test_labels[:50])
    assert batch.dtype == torch.float32
    options |= {"dtype": torch.bfloat16, "channels_last": True}
    last, _ = next(data.Batches(images, mnist.test_labels[:50], batch_size=50, **options).epoch(0))
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, batch.bfloat16())


def test_evaluation_keeps_order_and_the_partial_batch(digits):
    feed = batches(digits, shuffle=False, drop_last=False)
    seen = list(feed.epoch(0))
    assert len(seen[-1][1]) == 37
    assert torch.equal(torch.cat([labels for _, labels in seen]), digits.train_labels)
    assert torch.equal(torch.cat([images for images, _ in seen]), digits.train_images / 255)


def test_the_resident_images_are_never_written(digits):
    before = digits.train_images.clone()
    for images, _ in batches(digits, augment=EVERY).epoch(0):
        images.zero_()
    assert torch.equal(digits.train_images, before)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size: 0"),
        ({"batch_size": 2000}, "batch_size: 2000"),
        ({"mean": (0.0, 0.0)}, "mean"),
        ({"std": (0.0,)}, "std"),
        ({"augment": ("clop:4",)}, "did you mean 'crop'"),
        ({"augment": ("crop:4.5",)}, "crop:PIXELS"),
        ({"augment": ("crop:0",)}, "'crop:0'"),
        ({"augment": ("crop:",)}, "'crop:'"),
        ({"augment": ("shift:nan",)}, "'shift:nan'"),
        ({"augment": ("flip:1",)}, "without a magnitude"),
        ({"augment": ("cutout:x",)}, "'cutout:x'"),
        ({"augment": ("affine:1/2/0.1/0/0",)}, "PIXELS/DEGREES/SHARE/SLANT"),
        ({"augment": ("affine:1//0.1",)}, "PIXELS/DEGREES/SHARE/SLANT"),
        ({"augment": ("affine:1/2/0.1/1.5",)}, "SLANT 0..1"),
        ({"augment": ("affine:1/2/1.5",)}, "SHARE 0..0.9"),
        ({"augment": ("cutmix:2",)}, "cutmix:PROBABILITY"),
        ({"augment": ("colour:-1",)}, "colour:SHARE"),
        ({"augment": ("elastic:1/2/3",)}, "elastic:PIXELS/MESHES"),
        ({"augment": ("elastic:1/0",)}, "MESHES 1, 2, .. 32"),
    ],
)
def test_wrong_options_are_refused(digits, options, words):
    refused(lambda: batches(digits, **options), words)


def test_a_wrong_start_and_a_shift_past_the_image_are_refused(digits):
    refused(lambda: batches(digits).epoch(0, start=15), "start: 15", "14")
    refused(lambda: next(batches(digits, augment=("shift:8",)).epoch(0)), "augment: 8", "under 8")


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
            place = torch.tensor([x - (width - 1) / 2, y - (height - 1) / 2, 1.0]).double()
            at_x, at_y = (matrix @ place).tolist()
            out[:, y, x] = look_up(image, at_x + (width - 1) / 2, at_y + (height - 1) / 2)
    return out.float()


def look_up(image, at_x, at_y):
    """Return the bilinear mean of the four pixels around a place; black outside."""
    found = torch.zeros(len(image), dtype=torch.float64)
    for j in (math.floor(at_y), math.floor(at_y) + 1):
        for i in (math.floor(at_x), math.floor(at_x) + 1):
            if 0 <= j < image.shape[1] and 0 <= i < image.shape[2]:
                found += (1 - abs(at_x - i)) * (1 - abs(at_y - j)) * image[:, j, i].double()
    return found


def spline(x):
    """The cubic B-spline as a sum of truncated powers."""
    return sum((-1) ** k * math.comb(4, k) * max(x + 2 - k, 0) ** 3 for k in range(5)) / 6


def slow_elastic(image, drawn):
    """Each pixel looks up where its 16 nearest knots, and all others with weight 0, move it."""
    channels, height, width = image.shape
    out = torch.zeros(channels, height, width, dtype=torch.float64)
    count = drawn.shape[1]
    for y in range(height):
        for x in range(width):
            u, v = (count - 3) * x / (width - 1), (count - 3) * y / (height - 1)
            dx, dy = (
                sum(
                    spline(v + 1 - j) * spline(u + 1 - i) * float(moves[j, i])
                    for j in range(count)
                    for i in range(count)
                )
                for moves in drawn.double()
            )
            out[:, y, x] = look_up(image, x + dx, y + dy)
    return out.float()


def slow_colour(image, drawn):
    """Scale about black, then about the image's mean, then each pixel about its own."""
    bright, contrast, saturation = drawn.tolist()
    image = image.double() * bright
    image = image.mean() + contrast * (image - image.mean())
    out = torch.empty_like(image)
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            grey = image[:, y, x].mean()
            out[:, y, x] = (grey + saturation * (image[:, y, x] - grey)).clamp(0, 255)
    return out.float()


@pytest.mark.parametrize(
    ("spec", "slow"),
    [
        ("colour:0.5", slow_colour),
        ("crop:4", slow_crop),
        ("shift:1", slow_crop),
        ("flip", slow_flip),
        ("cutout:5", slow_cutout),
        ("cutout:4", slow_cutout),
        ("affine:2/30/0.3", slow_affine),
        ("affine:2/30/0.3/0.5", slow_affine),
        ("elastic:0.8/3", slow_elastic),
    ],
)
@pytest.mark.parametrize("size", [(9, 9), (7, 12)])
def test_an_augmentation_equals_its_slow_twin(spec, slow, size):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (24, 3, *size), generator=generator, dtype=torch.uint8)
    draw, apply = augment.parse(spec)
    drawn = draw(len(images), size, generator)
    fast = apply(images, drawn)
    expected = torch.stack([slow(*pair) for pair in zip(images, drawn, strict=True)])
    torch.testing.assert_close(fast, expected, rtol=0, atol=2e-3 if fast.is_floating_point() else 0)
    assert not torch.equal(fast, images.to(fast.dtype))


def test_a_mixed_label_is_the_share_of_pixels():
    """Images are their number everywhere, so the pixels tell what the labels should say."""
    feed = numbered(10, batch_size=5, shuffle=False, drop_last=False, augment=("cutmix:0.8",))
    seen = set()
    for epoch in range(20):
        for (images, shares), first in zip(feed.epoch(epoch), (0, 5), strict=True):
            pixels = (images[:, 0] * 255).round().long()
            assert set(pixels.unique().tolist()) <= set(range(first, first + 5))
            told = torch.stack([(pixels == label).float().mean((1, 2)) for label in range(10)], 1)
            torch.testing.assert_close(shares, told)
            assert shares[4].max() == 1, "the fifth of five has no partner"
            seen |= set(shares[0].tolist())
    assert len(seen) > 6, "parts of many sizes"


@pytest.mark.parametrize("parts", [2, 3, 4, 7])
def test_parts_of_a_batch_are_mixed_as_the_whole(parts):
    feed = numbered(35, batch_size=20, drop_last=False, augment=("cutmix:1",))
    for number, whole in enumerate(feed.epoch(0)):
        found = []
        for i in range(parts):
            part = feed.epoch(0, number, lambda n, i=i: slice(n * i // parts, n * (i + 1) // parts))
            found.append(next(part))
        assert all(map(torch.equal, whole, map(torch.cat, zip(*found, strict=True))))


def test_mixed_patches_cover_their_range():
    patches = augment.draw_patches(20_000, (8, 12), torch.Generator().manual_seed(0), 0.5)
    height, width = (patches[:, 2:] - patches[:, :2]).unbind(1)
    alone = height * width == 0
    assert abs(alone.float().mean() - 0.5) < 0.05
    assert (patches.amin(), patches[:, 2].amax(), patches[:, 3].amax()) == (0, 8, 12)


def test_affine_turns_and_moves_the_way_it_says(mnist):
    image = mnist.train_images[:1]
    quarter = torch.tensor([[[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]])
    turned = image.float().rot90(-1, (2, 3))
    torch.testing.assert_close(augment.affine(image, quarter), turned, rtol=0, atol=1e-2)
    moved = augment.affine(image, torch.tensor([[[1.0, 0.0, -2.0], [0.0, 1.0, 1.0]]]))
    expected = augment.shift(image, torch.tensor([[-1, 2]])).float()
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-2)


def test_affine_agrees_with_the_grid_of_torch():
    generator = torch.Generator().manual_seed(2)
    images = torch.rand(16, 1, 20, 20, generator=generator) * 255
    matrices = augment.draw_affine(16, (20, 20), generator, 1.5, 8.0, 0.1, 0.0)
    scaled = matrices * torch.tensor([1.0, 1.0, 2 / 20])
    grid = F.affine_grid(scaled, [16, 1, 20, 20], align_corners=False)
    expected = F.grid_sample(images, grid, align_corners=False)
    torch.testing.assert_close(augment.affine(images, matrices), expected, rtol=0, atol=2e-3)


def test_elastic_moves_pixels_as_far_as_it_says():
    """A ramp shows the moves: where each pixel's value is its place, what is looked up is too."""
    generator = torch.Generator().manual_seed(3)
    knots = augment.draw_knots(2_000, (28, 28), generator, 0.7, 4.0)
    ramp = torch.arange(28.0).expand(2_000, 1, 28, 28)
    seen = (augment.elastic(ramp, knots) - ramp)[..., 7:-7, 7:-7]  # far from the black outside
    assert float(seen.square().mean().sqrt()) == pytest.approx(0.7, rel=0.03)
    still = augment.elastic(ramp, torch.zeros_like(knots))
    torch.testing.assert_close(still, ramp, rtol=0, atol=1e-3)


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
    linear = augment.draw_affine(20_000, (28, 28), generator, 1.5, 8.0, 0.1, 0.0)[:, :, :2]
    zoom = linear.det().rsqrt()
    angle = torch.atan2(linear[:, 0, 1], linear[:, 0, 0]).rad2deg()
    assert zoom.min() == pytest.approx(0.9, abs=1e-3)
    assert zoom.max() == pytest.approx(1.1, abs=1e-3)
    assert angle.abs().max() == pytest.approx(8, abs=1e-2)
    leaning = augment.draw_affine(20_000, (28, 28), generator, 0.0, 0.0, 0.0, 0.2)
    assert leaning[:, 0, 1].abs().max() == pytest.approx(0.2, abs=1e-3)
    assert leaning[:, 0, 1].mean().abs() < 0.005
    leaning[:, 0, 1] = 0
    assert leaning.equal(torch.eye(2, 3).expand_as(leaning))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cpu_and_gpu_agree(digits):
    exact = ("crop:2", "flip", "cutout:3")
    on_gpu = [
        tuple(t.cpu() for t in pair)
        for pair in batches(digits, augment=exact, device="cuda").epoch(1)
    ]
    assert same(batches(digits, augment=exact).epoch(1), on_gpu)
    ours = batches(digits, augment=EVERY).epoch(1)
    theirs = batches(digits, augment=EVERY, device="cuda").epoch(1)
    for (a, b), (c, d) in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, c.cpu(), rtol=0, atol=1e-4)
        assert torch.equal(b, d.cpu())
