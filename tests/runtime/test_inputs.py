import numpy as np
from networks import conv_net
from refusal import refused

from spikewire.formats.trace import trace_model
from spikewire.runtime import Runtime
from spikewire.runtime.inputs import read_images


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
