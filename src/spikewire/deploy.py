"""A finished run as a file for other places, and what the rounding of its weights costs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import spikewire
from spikewire.config import Config
from spikewire.data import Dataset
from spikewire.errors import check, unknown
from spikewire.formats import coo, nir, packed
from spikewire.formats.network import Network, describe
from spikewire.nn.models import Spiking
from spikewire.runs.rundir import RunDir
from spikewire.runtime.model import Runtime
from spikewire.train.build import load_data
from spikewire.train.trained import trained

FORMATS = {"packed": "model.packed.safetensors", "nir": "model.nir", "coo": "connections"}


@dataclass(frozen=True)
class Exported:
    """What was written; accuracies are of `checked` test images, before and after."""

    path: Path
    size: int
    dense_size: int
    connectivity: float
    checked: int
    before: float
    after: float


def open_run(run: str | Path, data_dir: str | None = None) -> tuple[Spiking, Config, Dataset]:
    """Return the trained network of a run, its settings and its data."""
    config = RunDir.open(run).config({"data_dir": data_dir} if data_dir else None)
    data = load_data(config)
    model, _ = trained(run, config, data, torch.device("cpu"))
    return model, config, data


def export(
    run: str | Path,
    *,
    format: str = "packed",
    out: str | Path | None = None,
    values: str = "fp16",
    check_images: int = 256,
    pooling: str = "conv",
    licence: str = "",
    data_dir: str | None = None,
) -> Exported:
    """Write the network of a run; `check_images` test images show what the rounding costs."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    model, config, data = open_run(run, data_dir)
    about = {
        "spikewire": spikewire.__version__,
        "torch": str(torch.__version__),
        "licence": licence,
    }
    about |= {"model": config.model, "dataset": config.dataset, "method": config.method}
    names = {"classes": data.classes, "mean": data.mean, "std": data.std, "about": about}
    network = describe(model, **names)
    path = Path(out) if out else Path(run) / FORMATS[format]
    final, size = network, 0
    if format == "packed":
        final = packed.quantised(network, values)
    else:  # these may refuse the network, and say nothing of its accuracy
        size = write(network, path, format, values, pooling)
    count = min(check_images, len(data.test_labels))
    before, after = accuracies(model, final, data, count) if count else (np.nan, np.nan)
    if format == "packed":
        measured = {"accuracy": after, "accuracy_before": before, "accuracy_images": count}
        about |= measured if count else {}
        size = write(network, path, format, values, pooling)
    dense = sum(4 * parameter.numel() for parameter in model.parameters())
    return Exported(path, size, dense, connectivity(network), count, before, after)


def write(network: Network, path: Path, format: str, values: str, pooling: str) -> int:
    """Write in one of the formats; return the bytes on the disk."""
    if format == "packed":
        return packed.write(network, path, values)
    if format == "nir":
        return nir.write(network, path, pooling)
    coo.write(network, path)
    return sum(file.stat().st_size for file in path.iterdir())


def connectivity(network: Network) -> float:
    """Return the share of weights that are not zero."""
    total = sum(int(np.prod(stage.shape)) for stage in network.stages)
    return sum(len(stage.index) for stage in network.stages) / total


@torch.no_grad()
def accuracies(model: Spiking, network: Network, data: Dataset, count: int) -> tuple[float, float]:
    """Return the accuracy of the trained model and of the exported network, on the same images."""
    check(count >= 0, "check", count, "at least 0")
    runtime = Runtime(network, threads=torch.get_num_threads())
    right = np.zeros(2, int)
    for begin in range(0, count, 100):
        here = slice(begin, min(begin + 100, count))
        images, labels = runtime.normalise(data.test_images[here]), data.test_labels[here]
        for number, forward in enumerate((model, runtime)):
            right[number] += int((forward(images).mean(0).argmax(1) == labels).sum())
    return float(right[0] / count), float(right[1] / count)
