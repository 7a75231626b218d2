"""Images for inference: a NumPy array, a PNG or JPEG picture, or the test part of a data set.

Samples over time, of a data set or of an array with one more dimension, are [batch, time, ...].
"""

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spikewire import data as datasets
from spikewire.data import Dataset
from spikewire.data.normalise import normalise
from spikewire.errors import SpikewireError, check, nearest
from spikewire.runtime.model import Runtime

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
PICTURES = (".png", ".jpg", ".jpeg")
GREY = ("1", "L", "LA")  # modes of Pillow
MAX_PIXELS = 2**26  # of a picture


def read_images(
    source: str,
    runtime: Runtime,
    data_dir: str | None = None,
    *,
    resize: bool = False,
    train_images: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Return normalised images, and their labels where a data set has them.

    Args:
        source: Path of a ``.npy`` array or a ``.png`` or ``.jpg`` picture, or the name of a data
            set. An array of uint8 holds pixels of 0..255; an array of floats is normalised already.
            Samples over time are used as they are; those of a data set are added up to the time
            steps of the network.
        runtime: The network that the images are for. If it stores no normalisation, as NIR files,
            a data set is normalised by its own mean and standard deviation.
        data_dir: Directory of the data sets; None for the default.
        resize: Whether to resize images as a whole to the height and width of the network's input.
            If False, an array must have that size, and a picture of another size is cropped to its
            middle first, with a warning that names the sizes.
        train_images: How many training images of a data set to read instead of its test part, the
            same ones every time (`Dataset.hold_out`), whether the network was trained on all of
            them or not; 0 for the test part.

    Returns:
        Images ``[batch, *input_shape]``, or samples over time ``[batch, time, *input_shape]``, and
        labels ``[batch]`` or None.

    Raises:
        SpikewireError: If the source is unknown, cannot be read, or has no image.
    """
    if source in datasets.DATASETS:
        data = datasets.load(source, data_dir)
        data = data.hold_out(train_images, "train_images") if train_images else data
        return read_test_part(data, runtime, resize=resize)
    check(not train_images, "train_images", train_images, "left out unless the input is a data set")
    path = Path(source)
    known = ", ".join(datasets.DATASETS)
    if path.suffix.lower() not in (".npy", *PICTURES):
        kinds = ", ".join((".npy", *PICTURES))
        meant = nearest(source, datasets.DATASETS)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise SpikewireError(f"input: {source!r} is neither {kinds} nor a data set ({known}){hint}")
    shape = runtime.network.input_shape
    sizes = ", ".join(map(str, shape))
    pixels = read_pixels(path, shape)
    images = fit_shape(pixels, shape)
    if is_over_time(images, runtime):
        check(images.shape[2:] == shape, "input", pixels.shape, f"[batch, time, {sizes}]")
        check(images.numel() > 0, "input", source, "at least one sample")
        return images.float(), None
    if resize and len(images) > 0:
        images = resize_images(images, shape)
    elif path.suffix.lower() in PICTURES:
        images = fit_picture(images, shape, path)
    fits = images.shape[1:] == shape
    check(fits, "input", pixels.shape, f"images of [{sizes}]{_resizable(shape)}")
    check(len(images) > 0, "input", source, "at least one image")
    return images.float() if images.is_floating_point() else runtime.normalise(images), None


def read_test_part(data: Dataset, runtime: Runtime, *, resize: bool) -> tuple[Tensor, Tensor]:
    """Return the test images of a data set, as `read_images` does, and their labels."""
    name, network = data.name, runtime.network
    sizes = ", ".join(map(str, network.input_shape))
    kind = "images" if len(network.input_shape) == 3 else "inputs"
    if data.temporal:
        frames = data.at(network.time_steps).test_images
        fits = frames.shape[2:] == network.input_shape
        check(fits, "input", name, f"a data set of {kind} of [{sizes}], as the network has")
        return frames.float(), data.test_labels
    images = resize_images(data.test_images, network.input_shape) if resize else data.test_images
    fits = images.shape[1:] == network.input_shape
    what = f"a data set of {kind} of [{sizes}]{_resizable(network.input_shape)}"
    check(fits, "input", name, what)
    constants = (network.mean, network.std) if network.mean else (data.mean, data.std)
    return normalise(images, *constants), data.test_labels


def _resizable(shape: tuple[int, ...]) -> str:
    """Return the way out of a wrong size, where inputs of this shape are images."""
    return ", or pass --resize" if len(shape) == 3 else ""


def is_over_time(images: Tensor, runtime: Runtime) -> bool:
    """Return whether images, as returned by `read_images`, have a dimension of time."""
    return images.ndim == len(runtime.network.input_shape) + 2


def read_pixels(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array or the picture in a file, for a network whose input has this shape."""
    if path.exists() and not path.is_file():
        raise SpikewireError(f"{path}: is a folder, device or pipe, not a file")
    try:
        with warnings.catch_warnings(action="ignore"):  # of large pictures, and old headers
            if path.suffix.lower() == ".npy":
                return read_array(path)
            check(len(shape) == 3, "input", str(path), "a .npy array for this network")
            return read_picture(path)
    except SpikewireError:
        raise
    except Exception as error:  # a damaged file fails anywhere inside numpy or Pillow
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise SpikewireError(f"{path}: cannot be read ({' '.join(text.split())[:80]})") from None


def read_array(path: Path) -> np.ndarray:
    """Return a .npy array as uint8 or float32; pickled objects are refused.

    The file is mapped first: a size in its header that the file does not have allocates nothing.
    """
    array = np.lib.format.open_memmap(path, mode="r")
    kinds = "uint8 pixels or floats"
    check(array.dtype == np.uint8 or array.dtype.kind == "f", "input", str(array.dtype), kinds)
    with np.errstate(over="ignore"):  # infinity is refused later
        return array.astype(np.uint8 if array.dtype == np.uint8 else np.float32, order="C")


def read_picture(path: Path) -> np.ndarray:
    """Return a picture as uint8 ``[1, channels, height, width]``, without its alpha channel.

    It is turned as its EXIF orientation says. Its size is compared with a limit before it is
    decoded: a small file may hold a very large picture.
    """
    from PIL import Image, ImageOps  # comes with matplotlib

    with Image.open(path, formats=("PNG", "JPEG")) as picture:
        width, height = picture.size
        few = width * height <= MAX_PIXELS
        check(few, "input", f"{width} x {height}", f"a picture of at most {MAX_PIXELS} pixels")
        turned = ImageOps.exif_transpose(picture)
        if turned.mode.startswith("I"):  # 16 bits per pixel
            pixels = np.rint(np.asarray(turned) / 257).astype(np.uint8)
        else:
            pixels = np.array(turned.convert("L" if turned.mode in GREY else "RGB"))
    return np.atleast_3d(pixels).transpose(2, 0, 1)[None]


def fit_shape(pixels: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    """Add a missing batch or channel axis, and convert between colours and grey."""
    images = torch.from_numpy(np.ascontiguousarray(pixels))
    if len(shape) == 3 and shape[0] == 1 and images.ndim in (2, 3):
        images = images.unsqueeze(-3)
    if images.ndim == len(shape):
        images = images.unsqueeze(0)
    if images.ndim == 4 and images.shape[1] == 3 and shape[0] == 1:
        grey = (images.float() * torch.tensor(LUMA).view(3, 1, 1)).sum(1, keepdim=True)
        images = grey if images.is_floating_point() else grey.round().to(torch.uint8)
    if images.ndim == 4 and images.shape[1] == 1 and shape[0] == 3:
        images = images.expand(-1, 3, -1, -1)
    return images


def resize_images(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return images of another height and width, by bilinear interpolation without aliasing."""
    fits = images.ndim == 4 and len(shape) == 3
    check(fits, "resize", tuple(images.shape), "for images of channels, height and width")
    resized = functional.interpolate(images.float(), shape[1:], mode="bilinear", antialias=True)
    if images.is_floating_point():
        return resized
    return resized.round().clamp(0, 255).to(torch.uint8)


def fit_picture(images: Tensor, shape: tuple[int, ...], path: Path) -> Tensor:
    """Return the middle part that has the network's aspect ratio, resized; warn of the change."""
    (height, width), (rows, columns) = images.shape[2:], shape[1:]
    if (height, width) == (rows, columns):
        return images
    high = min(height, max(1, round(width * rows / columns)))
    wide = min(width, max(1, round(height * columns / rows)))
    top, left = (height - high) // 2, (width - wide) // 2
    part = "" if (high, wide) == (height, width) else f"the middle {wide} x {high} "
    warnings.warn(
        f"{path}: {width} x {height} pixels; {part}resized to {columns} x {rows}", stacklevel=3
    )
    return resize_images(images[:, :, top : top + high, left : left + wide], shape)
