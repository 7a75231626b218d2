"""Export of a finished run to a file, and its accuracy before and after."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

import torch
from torch import nn

from spikewire import __version__
from spikewire.config import Config
from spikewire.data import AnyDataset, Batches, Dataset
from spikewire.deploy.model import FORMATS, check_options, write_c, write_network
from spikewire.errors import check
from spikewire.formats import c, packed
from spikewire.formats.network import Network
from spikewire.formats.trace import trace_model
from spikewire.runs.environment import changed_files
from spikewire.runs.names import ENV
from spikewire.runs.rundir import RunDir
from spikewire.runtime.model import Runtime
from spikewire.train.build import forward_of, load_data, test_batches
from spikewire.train.pretrained import load_trained

BATCH = 100  # images at once


@dataclass(frozen=True)
class ExportedRun:
    """The result of `export_run`.

    Attributes:
        path: The file or folder that was written.
        size: Its size in bytes.
        dense_size: Size in bytes of all parameters of the trained model as fp32.
        connectivity: Fraction of weights that are not zero.
        checked_images: Number of test images on which the accuracies were measured.
        accuracy_before: Accuracy of the trained model; nan if no image was checked.
        accuracy_after: Accuracy of the exported network; nan if no image was checked.
        memory: Flash and RAM that a C file needs on a device; None for the other formats.
    """

    path: Path
    size: int
    dense_size: int
    connectivity: float
    checked_images: int
    accuracy_before: float
    accuracy_after: float
    memory: c.Memory | None = None


def export_run(
    run: str | Path,
    *,
    format: str = "packed",
    out: str | Path | None = None,
    values: str | None = None,
    check_images: int = 256,
    pooling: str = "conv",
    data_dir: str | None = None,
    model: str | None = None,
    dataset: str | None = None,
) -> ExportedRun:
    """Write the network of a finished run to a file, and compare its accuracy before and after.

    The exported network is measured on the CPU runtime, with weights rounded as in the file.

    Args:
        run: Run directory.
        format: ``"packed"`` (one safetensors file, which `spikewire.load` reads), ``"nir"`` (a NIR
            file), ``"coo"`` (a folder of connection lists) or ``"c"`` (one C99 file).
        out: Path to write to; None for the usual name in the run directory, see `FORMATS`.
        values: Type of the weights: ``"fp32"``, ``"fp16"`` or ``"int8"`` for a packed file, None
            for fp16; ``"fp32"`` or ``"int8"`` for C, None for int8.
        check_images: Number of test images to compare on; 0 for no comparison.
        pooling: How a NIR file writes pooling: ``"conv"``, ``"avg"`` or ``"sum"``.
        data_dir: Directory of the data sets; None for that of the run.
        model: ``FILE.py:FUNCTION`` of the run's network, where it has one: it is executed only if
            it is named here again.
        dataset: ``FILE.py:FUNCTION`` of the run's data, likewise.

    Returns:
        Path and size of the file, connectivity, and both accuracies.

    Raises:
        SpikewireError: If an argument is unknown, the run is not finished, the format cannot
            express the network, or the file cannot be written.

    Example:
        >>> exported = export_run("runs/mnist-1", values="int8")
        >>> exported.accuracy_after - exported.accuracy_before
        -0.0004
    """
    check_options(format, values, pooling, out)
    check(check_images >= 0, "check_images", check_images, "at least 0")
    flags = {"data_dir": data_dir, "model": model, "dataset": dataset}
    trained, config, data = _open_run(run, flags)
    about = _describe_run(config)
    batches = test_batches(replace(config, eval_batch_size=BATCH), data, torch.device("cpu"))
    fields = {"classes": data.classes, "mean": data.mean, "std": data.std, "about": about}
    example = next(batches.epoch(0))[0]  # the network is recorded from a forward pass
    network = trace_model(trained, example, **fields)
    path = Path(out) if out else Path(run) / FORMATS[format]
    count, memory = min(check_images, batches.count), None
    if format == "packed":  # written last: it stores the accuracies
        values = values or "fp16"
        before, after = _compare(trained, packed.quantise(network, values), batches, count)
        measured = {"accuracy": after, "accuracy_before": before, "accuracy_images": count}
        network = replace(network, about={**about, **measured} if count else about)
        size = write_network(network, path, format, values=values, pooling=pooling)
    elif format == "c":
        c.require_expressible(network)
        sample = example[:, 0] if batches.temporal else example[0]
        if isinstance(data, Dataset) and data.mean and not data.temporal:  # pixels
            sample = data.test_images[0]
        network, memory = write_c(network, path, values or "int8", sample)
        size = path.stat().st_size
        before, after = _compare(trained, network, batches, count)
    else:  # written first: these formats may refuse the network
        size = write_network(network, path, format, values="fp32", pooling=pooling)
        before, after = _compare(trained, network, batches, count)
    dense = sum(4 * parameter.numel() for parameter in trained.parameters())
    return ExportedRun(path, size, dense, network.connectivity, count, before, after, memory)


def _open_run(
    run: str | Path, flags: Mapping[str, str | None]
) -> tuple[nn.Module, Config, AnyDataset]:
    """Return the trained network of a run, its settings and its data."""
    given = {key: value for key, value in flags.items() if value is not None}
    config = RunDir.open(run).config(given)
    for change in changed_files(Path(run) / ENV, config):
        warnings.warn(change, stacklevel=3)
    data = load_data(config)
    model, _ = load_trained(run, config, data, torch.device("cpu"))
    return model, config, data


def _describe_run(config: Config) -> dict[str, object]:
    """Return what a packed file stores about the run."""
    versions = {"spikewire": __version__, "torch": str(torch.__version__)}
    return {
        **versions,
        "model": config.model,
        "dataset": config.dataset,
        "method": config.method,
    }


@torch.no_grad()
def _compare(
    model: nn.Module, network: Network, batches: Batches, count: int
) -> tuple[float, float]:
    """Return the accuracy of the model and of the exported network on the same test images."""
    if count == 0:
        return nan, nan
    runtime = Runtime(network, threads=torch.get_num_threads())
    correct = [0, 0]
    seen = 0
    run = runtime.run_frames if batches.temporal else runtime
    for images, labels in batches.epoch(0):
        left = count - seen
        images = images[:, :left] if batches.temporal else images[:left]
        labels = labels[:left]
        seen += len(labels)
        for number, forward in enumerate((forward_of(model), run)):
            correct[number] += int((forward(images).mean(0).argmax(1) == labels).sum())
        if seen == count:
            break
    return correct[0] / count, correct[1] / count
