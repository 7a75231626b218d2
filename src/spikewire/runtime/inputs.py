"""Images to look at: an array, a picture, or the test part of a data set."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spikewire import data as datasets
from spikewire.errors import SpikewireError, check
from spikewire.runtime.model import Runtime

LUMA = (0.299, 0.587, 0.114)


def read_images(
    source: str, runtime: Runtime, data_dir: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return normalised images, and labels where there are any.

    Whole numbers are pixels of 0..255; floats are taken as normalised already.
    """
    if source in datasets.DATASETS:
        data = datasets.load(source, data_dir)
        return runtime.normalise(data.test_images), data.test_labels
    path = Path(source)
    known = ", ".join(datasets.DATASETS)
    if path.suffix not in (".npy", ".png"):
        raise SpikewireError(f"input: {source!r} is no .npy, no .png and no data set ({known})")
    try:
        pixels = read_array(path) if path.suffix == ".npy" else read_picture(path)
    except (OSError, ValueError, SyntaxError) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())[:80]
        raise SpikewireError(f"{source}: cannot be read ({reason})") from None
    images = fit(pixels, runtime.network.input_shape)
    check(len(images) > 0, "input", source, "at least one image")
    return (runtime.normalise(images) if not images.is_floating_point() else images.float()), None


def read_array(path: Path) -> np.ndarray:
    """Return a .npy array; nothing pickled is accepted."""
    array = np.load(path, allow_pickle=False)
    kinds = "uint8 pixels or floats"
    check(array.dtype == np.uint8 or array.dtype.kind == "f", "input", str(array.dtype), kinds)
    return array


def read_picture(path: Path) -> np.ndarray:
    """Return a PNG as uint8 ``[1, channels, height, width]``, without its transparency."""
    from matplotlib.image import imread

    picture = np.asarray(imread(path))
    if picture.dtype != np.uint8:
        picture = np.rint(picture * 255).astype(np.uint8)
    picture = picture[:, :, None] if picture.ndim == 2 else picture
    channels = {2: 1, 4: 3}.get(picture.shape[2], picture.shape[2])
    return picture[:, :, :channels].transpose(2, 0, 1)[None]


def fit(pixels: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    """Add a missing batch or channel axis, and make grey of colours where one channel is needed."""
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    if len(shape) == 3 and shape[0] == 1 and images.ndim in (2, 3):
        images = images.unsqueeze(-3)
    if images.ndim == len(shape):
        images = images.unsqueeze(0)
    if images.ndim == 4 and images.shape[1] == 3 and shape[0] == 1:
        grey = (images.float() * torch.tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
        images = grey if images.is_floating_point() else grey.round().to(torch.uint8)
    return images
