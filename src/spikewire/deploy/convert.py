"""Conversion of a packed file into another format, and its accuracy before and after."""

from dataclasses import replace
from math import nan
from pathlib import Path

from torch import Tensor

from spikewire import data as datasets
from spikewire.deploy.model import FORMATS, check_options, write_c, write_network
from spikewire.deploy.run import ExportedRun
from spikewire.errors import check
from spikewire.formats import c, packed
from spikewire.formats.network import Network
from spikewire.runtime.model import Runtime


def convert(
    file: str | Path,
    *,
    format: str = "c",
    out: str | Path | None = None,
    values: str | None = None,
    check_images: int = 256,
    pooling: str = "conv",
    data_dir: str | None = None,
) -> ExportedRun:
    """Write the network of a packed file in another format, and compare its accuracy.

    Args:
        file: Path of a packed file, or ``zoo:NAME``.
        format: See `export_run`; ``"packed"`` with other `values` packs it again.
        out: Path to write to; None for the usual name in the current directory, see `FORMATS`.
        values: See `export_run`.
        check_images: Number of test images to compare on; 0 for no comparison. It needs the data
            set that the network was trained on, as does the test vector of a C file.
        pooling: How a NIR file writes pooling: ``"conv"``, ``"avg"`` or ``"sum"``.
        data_dir: Directory of the data sets; None for the default.

    Returns:
        Path and size of the file, connectivity, and both accuracies.

    Raises:
        SpikewireError: If an argument is unknown, the file is damaged, its data set is missing, the
            format cannot express the network, or the file cannot be written.

    Example:
        >>> convert("zoo:digits-5", format="c", out="digits.c").memory
        Memory(flash=5310, ram=3412)
    """
    check_options(format, values, pooling, out)
    check(check_images >= 0, "check_images", check_images, "at least 0")
    network, path = packed.read(file), Path(out or FORMATS[format])
    if format == "c":  # before its data are read
        c.require_expressible(network)
    pixels, labels = _test_images(network, check_images, data_dir)
    values = values or {"packed": "fp16", "c": "int8"}.get(format, "fp32")
    written, memory = packed.quantise(network, values), None
    before, after = (_accuracy(x, pixels, labels) for x in (network, written))
    if format == "c":
        memory = write_c(network, path, values, pixels[0] if len(pixels) else None)[1]
        size = path.stat().st_size
    else:
        if len(pixels):
            measured = {"accuracy": after, "accuracy_images": len(pixels)}
            network = replace(network, about={**network.about, **measured})
        size = write_network(network, path, format, values=values, pooling=pooling)
    counts = 4 * network.size, written.connectivity, len(pixels)
    return ExportedRun(path, size, *counts, before, after, memory)


def _test_images(network: Network, count: int, data_dir: str | None) -> tuple[Tensor, Tensor]:
    """Return the first test images of the network's data set, not normalised, and their labels.

    Pixels are uint8; samples over time, ``[samples, time, ...]``, are floats.
    """
    if count == 0:
        return Tensor(), Tensor()
    name = network.about.get("dataset")
    allowed = f"0 for the data set {name!r}, which has no test images by name"
    check(name in datasets.DATASETS, "check", count, allowed)
    data = datasets.load(str(name), data_dir).at(network.time_steps)
    check(data.temporal or bool(network.mean), "check", count, allowed)
    images = data.test_images[:count]
    return images.float() if data.temporal else images, data.test_labels[:count]


def _accuracy(network: Network, pixels: Tensor, labels: Tensor) -> float:
    """Return the accuracy on the CPU runtime; nan without images."""
    if not len(pixels):
        return nan
    runtime = Runtime(network)
    if pixels.ndim == len(network.input_shape) + 2:  # over time
        classes = runtime.predict(pixels.transpose(0, 1), frames=True)
    else:
        classes = runtime.predict(runtime.normalise(pixels))
    return float((classes == labels).double().mean())
