"""Batches: order, resumption, normalisation, mixed labels and wrong options."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusal import refused

from spikewire import data
from spikewire.data.batches import GROUP_VALUES

EVERY = ("affine", "crop:2", "flip", "cutout:3", "shift:1")


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
def test_each_sample_appears_exactly_once_per_epoch(count, batch_size, epoch, drop_last):
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
def test_an_epoch_resumed_in_the_middle_has_the_same_remaining_batches(digits, start):
    whole = list(batches(digits, augment=EVERY, seed=3).epoch(5))
    rest = list(batches(digits, augment=EVERY, seed=3).epoch(5, start=start))
    assert len(rest) == len(whole) - start
    assert not rest or same(rest, whole[start:])


@given(
    batch_size=st.integers(1, 40),
    start=st.integers(0, 3),
    together=st.integers(2, 9),
    ranks=st.integers(1, 3),
    drop_last=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_batches_that_are_augmented_together_are_those_augmented_alone(
    batch_size, start, together, ranks, drop_last, digits
):
    """As on a GPU; here on the CPU."""
    options = {"batch_size": batch_size, "drop_last": drop_last}
    feed = batches(few_digits(digits), augment=(*EVERY, "trivial", "cutmix"), **options)

    def part(length, rank=ranks - 1):
        return slice(length * rank // ranks, length * (rank + 1) // ranks)

    alone = list(feed.epoch(1, start, part))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GROUP_VALUES, "cpu", together * batch_size * 64)
        assert same(alone, feed.epoch(1, start, part)) or not alone


def few_digits(digits) -> data.Dataset:
    return replace(
        digits, train_images=digits.train_images[:150], train_labels=digits.train_labels[:150]
    )


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


def test_normalisation_layout_and_dtype(digits):
    images = digits.test_images[:50].expand(-1, 3, -1, -1)
    options = {"mean": (0.5, 0.25, 0.0), "std": (0.5, 2.0, 1.0), "shuffle": False}
    feed = data.Batches(images, digits.test_labels[:50], batch_size=50, **options)
    batch, labels = next(feed.epoch(0))
    pixels = images.double() / 255
    for channel, (mean, std) in enumerate(zip(options["mean"], options["std"], strict=True)):
        expected = ((pixels[:, channel] - mean) / std).float()
        torch.testing.assert_close(batch[:, channel], expected, rtol=0, atol=1e-6)
    assert torch.equal(labels, digits.test_labels[:50])
    assert batch.dtype == torch.float32
    options |= {"dtype": torch.bfloat16, "channels_last": True}
    last, _ = next(data.Batches(images, digits.test_labels[:50], batch_size=50, **options).epoch(0))
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, batch.bfloat16())


def test_evaluation_keeps_order_and_the_partial_batch(digits):
    feed = batches(digits, shuffle=False, drop_last=False)
    seen = list(feed.epoch(0))
    assert len(seen[-1][1]) == 37
    assert torch.equal(torch.cat([labels for _, labels in seen]), digits.train_labels)
    assert torch.equal(torch.cat([images for images, _ in seen]), digits.train_images / 255)


def test_the_images_on_the_device_are_never_modified(digits):
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
        ({"augment": ("affine:1/2/0.1/0/0",)}, "PIXELS/DEGREES/SCALE/SHEAR"),
        ({"augment": ("affine:1//0.1",)}, "PIXELS/DEGREES/SCALE/SHEAR"),
        ({"augment": ("affine:1/2/0.1/1.5",)}, "SHEAR 0..1"),
        ({"augment": ("affine:1/2/1.5",)}, "SCALE 0..0.9"),
        ({"augment": ("cutmix:2",)}, "cutmix:PROBABILITY"),
    ],
)
def test_wrong_options_are_refused(digits, options, words):
    refused(lambda: batches(digits, **options), words)


def test_a_wrong_start_and_a_shift_past_the_image_are_refused(digits):
    refused(lambda: batches(digits).epoch(0, start=15), "start: 15", "14")
    refused(lambda: next(batches(digits, augment=("shift:8",)).epoch(0)), "augment: 8", "under 8")


def test_a_mixed_label_is_the_fraction_of_pixels_per_class():
    """Every pixel of an image is its number, so the pixels determine the expected labels."""
    feed = numbered(10, batch_size=5, shuffle=False, drop_last=False, augment=("cutmix:0.8",))
    seen = set()
    for epoch in range(20):
        for (images, fractions), first in zip(feed.epoch(epoch), (0, 5), strict=True):
            pixels = (images[:, 0] * 255).round().long()
            assert set(pixels.unique().tolist()) <= set(range(first, first + 5))
            expected = torch.stack(
                [(pixels == label).float().mean((1, 2)) for label in range(10)], 1
            )
            torch.testing.assert_close(fractions, expected)
            assert fractions[4].max() == 1, "the fifth of five has no partner"
            seen |= set(fractions[0].tolist())
    assert len(seen) > 6, "patches of many sizes"


@pytest.mark.parametrize("parts", [2, 3, 4, 7])
def test_parts_of_a_batch_are_mixed_as_the_whole(parts):
    feed = numbered(35, batch_size=20, drop_last=False, augment=("cutmix:1",))
    for number, whole in enumerate(feed.epoch(0)):
        found = []
        for i in range(parts):
            part = feed.epoch(0, number, lambda n, i=i: slice(n * i // parts, n * (i + 1) // parts))
            found.append(next(part))
        assert all(map(torch.equal, whole, map(torch.cat, zip(*found, strict=True))))


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
