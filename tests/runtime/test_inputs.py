import numpy as np
import pytest
import torch
from networks import conv_net
from PIL import Image
from refusal import refused

from spikewire import data as datasets
from spikewire.formats.trace import trace_model
from spikewire.runtime import Runtime, load
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


def make_file(path, pixels):
    Image.fromarray(pixels).save(path, "PNG" if path.suffix == ".png" else "JPEG")


def make_picture(path, shape=(18, 42), channels=3):
    """Write a smooth picture, which JPEG keeps up to a few levels; return its pixels."""
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    pixels = np.stack([8 * rows, 5 * columns, 100 + 0 * rows], -1).astype(np.uint8)[..., :channels]
    make_file(path, pixels)
    return pixels


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".JPG"])
def test_jpeg_pictures(suffix, tmp_path):
    wanted = make_picture(tmp_path / f"x{suffix}")
    found = read_picture(tmp_path / f"x{suffix}")
    assert found.shape == (1, 3, 18, 42)
    assert np.abs(found[0].transpose(1, 2, 0).astype(int) - wanted).mean() < 4


def test_a_picture_of_another_size_is_resized_with_a_warning(tmp_path):
    runtime = Runtime(trace_model(conv_net(channels=(3, 5, 4))))  # 9 x 21
    wanted = make_picture(tmp_path / "x.png")
    with pytest.warns(UserWarning, match="x.png: 42 x 18 pixels; resized to 21 x 9$"):
        images, _ = read_images(str(tmp_path / "x.png"), runtime)
    halved = wanted.reshape(9, 2, 21, 2, 3).mean((1, 3))  # the mean over 2 x 2 pixels
    found = 255 * images[0].permute(1, 2, 0).numpy()
    assert np.abs(found - halved)[1:-1, 1:-1].max() <= 1
    assert torch.equal(images, read_images(str(tmp_path / "x.png"), runtime, resize=True)[0])
    assert runtime.predict(images).shape == (1,)


@pytest.mark.parametrize(
    ("shape", "words", "part"),
    [
        ((18, 82), "82 x 18 pixels; the middle 42 x 18 resized to 21 x 9", np.s_[:, 20:62]),
        ((58, 42), "42 x 58 pixels; the middle 42 x 18 resized to 21 x 9", np.s_[20:38]),
    ],
)
def test_a_picture_of_another_aspect_ratio_is_cropped_to_its_middle(shape, words, part, tmp_path):
    runtime = Runtime(trace_model(conv_net(channels=(3, 5, 4))))  # 9 x 21
    wanted = make_picture(tmp_path / "x.png", shape)[part]
    make_file(tmp_path / "part.png", wanted)
    with pytest.warns(UserWarning, match=words):
        images, _ = read_images(str(tmp_path / "x.png"), runtime)
    assert torch.equal(images, read_images(str(tmp_path / "part.png"), runtime, resize=True)[0])
    whole, _ = read_images(str(tmp_path / "x.png"), runtime, resize=True)
    assert not torch.equal(images, whole), "--resize takes the whole picture"


def test_an_array_of_another_size_is_resized_on_request_only(tmp_path):
    runtime = Runtime(trace_model(conv_net(channels=(3, 5, 4))))
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 18, 42), np.uint8))
    refused(lambda: read_images(str(tmp_path / "x.npy"), runtime), "18, 42", "--resize")
    assert read_images(str(tmp_path / "x.npy"), runtime, resize=True)[0].shape == (2, 3, 9, 21)


def test_a_photo_is_turned_as_its_exif_orientation_says(tmp_path):
    upright = make_picture(tmp_path / "x.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: the top row is the right column
    Image.fromarray(np.rot90(upright)).save(tmp_path / "x.jpg", exif=exif)
    found = read_picture(tmp_path / "x.jpg")[0].transpose(1, 2, 0)
    assert found.shape == upright.shape
    assert np.abs(found.astype(int) - upright).mean() < 4


def test_pictures_of_16_bits_and_of_two_colours(tmp_path):
    grey = np.linspace(0, 65535, 9 * 21).reshape(9, 21).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "x.png")
    assert np.array_equal(read_picture(tmp_path / "x.png")[0, 0], np.rint(grey / 257))
    Image.fromarray(grey > 30000).save(tmp_path / "x.png")
    assert np.array_equal(read_picture(tmp_path / "x.png")[0, 0], 255 * (grey > 30000))


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


def test_pixels_that_are_not_normalised_are_refused():
    model, pixels = load("zoo:digits-5"), datasets.load("digits").test_images[:2]
    for call in (model, model.predict, model.record_spikes, model.compute_current):
        refused(lambda call=call: call(pixels), "images: 'uint8'", "runtime.normalise(pixels)")
    refused(lambda: model.normalise(pixels / 255), "pixels", "0..1", "multiply by 255")
    assert torch.equal(model.normalise(pixels.float()), model.normalise(pixels))


def test_a_network_of_events_accepts_counts_as_uint8():
    model = load("zoo:braille-10")
    frames = datasets.load("braille").at(32).test_images[:2].transpose(0, 1)
    assert torch.equal(model.run_frames(frames.byte()), model.run_frames(frames.float()))


def test_a_data_set_of_another_shape_is_refused_or_resized():
    model = load("zoo:mnist-2.25")
    words = ("input: 'digits'", "images of [1, 28, 28], or pass --resize")
    refused(lambda: read_images("digits", model), *words)
    images, labels = read_images("digits", model, resize=True)
    assert images.shape == (len(labels), 1, 28, 28)
    refused(lambda: read_images("braille", model), "input: 'braille'", "images of [1, 28, 28]")
