"""The normalisation that training and inference share."""

import pytest
import torch

from spikewire.data import Batches, normalise

PIXELS = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)


def test_pixels_are_scaled_centred_and_divided_per_channel():
    images = PIXELS.expand(2, 3, 16, 16)
    mean, std = (0.5, 0.25, 0.0), (0.5, 2.0, 1.0)
    found = normalise(images, mean, std)
    expected = [(PIXELS.double() / 255 - m) / s for m, s in zip(mean, std, strict=True)]
    expected = torch.cat(expected, dim=1).float().expand(2, -1, -1, -1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert found.dtype == torch.float32


def test_without_constants_pixels_are_divided_by_255():
    assert torch.equal(normalise(PIXELS, (), ()), PIXELS.float() / 255)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_given_images_are_not_modified(dtype):
    images = PIXELS.to(dtype)
    normalise(images, (0.5,), (0.5,))
    assert torch.equal(images, PIXELS.to(dtype))


def test_batches_give_the_same_bits():
    images, mean, std = PIXELS.expand(5, 1, 16, 16), (0.1307,), (0.3081,)
    labels = torch.zeros(5, dtype=torch.int64)
    batches = Batches(images, labels, batch_size=5, mean=mean, std=std)
    assert torch.equal(next(batches.epoch(0))[0], normalise(images, mean, std))
