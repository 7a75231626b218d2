import numpy as np
import pytest
import torch
from networks import conv_net
from refusal import refused

from spikewire.formats.trace import trace_model
from spikewire.runtime import Runtime
from spikewire.runtime.inputs import read_images, read_picture


def test_an_array_without_images_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((0, 2, 9, 21), np.uint8))
    runtime = Runtime(trace_model(conv_net()))
    refused(lambda: read_images(str(tmp_path / "x.npy"), runtime), "at least one image")


def test_floats_are_taken_as_normalised_images(tmp_path):
    images = np.random.default_rng(0).random((2, 2, 9, 21)).astype(np.float32)
    np.save(tmp_path / "x.npy", images)
    found, labels = read_images(str(tmp_path / "x.npy"), Runtime(trace_model(conv_net())))
    assert np.array_equal(found.numpy(), images)
    assert labels is None


def make_picture(path, shape=(18, 42), channels=3):
    """Write a smooth picture, which JPEG keeps up to a few levels; return its pixels."""
    from matplotlib.image import imsave

    rows, columns = np.mgrid[: shape[0], : shape[1]]
    pixels = np.stack([8 * rows, 5 * columns, 100 + 0 * rows], -1).astype(np.uint8)[..., :channels]
    imsave(path, pixels)
    return pixels


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".JPG"])
def test_jpeg_pictures(suffix, tmp_path):
    wanted = make_picture(tmp_path / f"x{suffix}")
    found = read_picture(tmp_path / f"x{suffix}")
    assert found.shape == (1, 3, 18, 42)
    assert np.abs(found[0].transpose(1, 2, 0).astype(int) - wanted).mean() < 4


def test_pictures_are_resized_on_request_only(tmp_path):
    runtime = Runtime(trace_model(conv_net(channels=(3, 5, 4))))  # 9 x 21
    wanted = make_picture(tmp_path / "x.png")
    images, _ = read_images(str(tmp_path / "x.png"), runtime, resize=True)
    assert images.shape == (1, 3, 9, 21)
    halved = wanted.reshape(9, 2, 21, 2, 3).mean((1, 3))  # the mean over 2 x 2 pixels
    found = 255 * images[0].permute(1, 2, 0).numpy()
    assert np.abs(found - halved)[1:-1, 1:-1].max() <= 1
    assert runtime.predict(images).shape == (1,)
    refused(lambda: read_images(str(tmp_path / "x.png"), runtime), "42 x 18", "--resize")


def test_grey_pictures_for_a_network_of_colours(tmp_path):
    np.save(tmp_path / "x.npy", np.full((1, 9, 21), 51, np.uint8))
    runtime = Runtime(trace_model(conv_net(channels=(3, 5, 4))))
    images, _ = read_images(str(tmp_path / "x.npy"), runtime)
    assert torch.equal(images, torch.full((1, 3, 9, 21), 0.2))


def test_other_files_are_refused(tmp_path):
    runtime = Runtime(trace_model(conv_net()))
    refused(lambda: read_images("x.gif", runtime), ".npy, .png, .jpg, .jpeg nor a data set")
    (tmp_path / "x.jpg").write_bytes(b"not a picture")
    refused(lambda: read_images(str(tmp_path / "x.jpg"), runtime), "cannot be read")
