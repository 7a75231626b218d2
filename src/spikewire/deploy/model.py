"""Export of a torch model to a file, and a torch model on the CPU runtime.

Both run the recorded network on the example and compare the spikes of all layers with those of the
model itself, so that a model which was recorded wrongly is refused.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikewire import __version__
from spikewire.errors import SpikewireError, check, check_word
from spikewire.formats import c, coo, nir, packed
from spikewire.formats.network import Network
from spikewire.formats.trace import Trace, trace
from spikewire.runtime.model import Runtime

FORMATS = {
    "packed": "model.packed.safetensors",
    "nir": "model.nir",
    "coo": "connections",
    "c": "network.c",
}
SUFFIXES = {".safetensors": "packed", ".nir": "nir", ".c": "c"}
VALUES = {"packed": packed.VALUES, "c": c.VALUES}  # the other formats have fp32 only
MAX_DIFFERENT = 0.05  # rounding at the threshold is far below, another network far above


@dataclass(frozen=True)
class Exported:
    """The result of `export`.

    Attributes:
        path: The file or folder that was written.
        size: Its size in bytes.
        dense_size: Size in bytes of all parameters of the model as fp32.
        connectivity: Fraction of weights that are not zero.
        different_spikes: Spikes on the example that differ between the model and the exported
            network with fp32 weights, as a fraction of the spikes of the model. It is 0 unless a
            membrane potential is within rounding error of the threshold.
    """

    path: Path
    size: int
    dense_size: int
    connectivity: float
    different_spikes: float


def export(
    model: nn.Module,
    example: Tensor,
    path: str | Path,
    *,
    format: str = "packed",
    values: str = "fp32",
    pooling: str = "conv",
    time_steps: int | None = None,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
) -> Exported:
    """Write a torch model to a file, its zeros left out.

    The model may be built of torch layers and the neurons of spikewire, SpikingJelly, snnTorch and
    Norse. It runs on the example in evaluation mode; the states of its neurons are reset.

    Args:
        model: The model.
        example: Input of the model, as in training: images ``[batch, ...]``, or frames
            ``[time, batch, ...]``. Use real data: the spikes are compared on it.
        path: Path of the file, or of the folder for ``"coo"``.
        format: ``"packed"`` (one safetensors file, which `spikewire.load` reads), ``"nir"`` (a NIR
            file), ``"coo"`` (a folder of connection lists) or ``"c"`` (one C99 file).
        values: Type of the weights: ``"fp32"``, ``"fp16"`` or ``"int8"`` for a packed file,
            ``"fp32"`` or ``"int8"`` for C.
        pooling: How a NIR file writes pooling: ``"conv"``, ``"avg"`` or ``"sum"``.
        time_steps: Time steps per image of a model that runs one per call; None for those that the
            model runs.
        classes: Names of the classes; None for numbers from 0.
        mean: Mean per channel that was subtracted from pixels in [0, 1]; empty for none.
        std: Standard deviation per channel by which pixels were divided; empty for none.

    Returns:
        Path and size of the file, connectivity, and the fraction of spikes that differ.

    Raises:
        SpikewireError: If a module is not supported (the message names it and the reason), the
            format cannot express the network, or the file cannot be written.

    Example:
        >>> exported = spikewire.export(model, images, "net.packed.safetensors")
        >>> spikewire.load(exported.path).predict(images)
        tensor([7, 2, 1])
    """
    check_options(format, values, pooling, path)
    fields = _collect_fields(classes, mean, std)
    traced = trace(model, example, time_steps=time_steps, **fields)
    different = compare_spikes(traced, Runtime(traced.network, exact=True))
    if format == "c":
        sample = traced.frames[0] if traced.is_static else traced.frames[:, 0]
        write_c(traced.network, Path(path), values, sample)
        size = Path(path).stat().st_size
    else:
        size = write_network(traced.network, Path(path), format, values=values, pooling=pooling)
    dense = sum(4 * parameter.numel() for parameter in model.parameters())
    return Exported(Path(path), size, dense, traced.network.connectivity, different)


def check_options(
    format: str, values: str | None, pooling: str, path: str | Path | None = None
) -> None:
    """Raise for an unknown format, or for an option or a file name that the format does not have.

    Raises:
        SpikewireError: naming the option and what is allowed.
    """
    check_word("format", format, FORMATS)
    if values is not None and format in VALUES:
        check_word("values", values, VALUES[format])
    check(values in (None, "fp32") or format in VALUES, "values", values, f"fp32 for {format}")
    check(pooling == "conv" or format == "nir", "pooling", pooling, f"omitted for {format}")
    other = SUFFIXES.get(Path(path or "").suffix, format)
    check(other == format, "format", format, f"{other!r} for a file named {path}")


def compile(
    model: nn.Module,
    example: Tensor,
    *,
    time_steps: int | None = None,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    **options: Any,
) -> Runtime:
    """Return a torch model on the CPU runtime, where only arriving spikes cost work.

    Args:
        model: The model; see `export`.
        example: Input of the model, as in training; the spikes are compared on it.
        time_steps: Time steps per image of a model that runs one per call; None for those that the
            model runs.
        classes: Names of the classes; None for numbers from 0.
        mean: Mean per channel that was subtracted from pixels in [0, 1]; empty for none.
        std: Standard deviation per channel by which pixels were divided; empty for none.
        **options: `threads`, `kernels` and `exact` of `Runtime`.

    Returns:
        The network as a `Runtime`.

    Raises:
        SpikewireError: If a module is not supported; the message names it and the reason.

    Example:
        >>> runtime = spikewire.compile(model, images)
        >>> runtime(images).shape  # [time, batch, classes]
        torch.Size([8, 32, 10])
    """
    fields = _collect_fields(classes, mean, std)
    traced = trace(model, example, time_steps=time_steps, **fields)
    compare_spikes(traced, Runtime(traced.network, exact=True))
    return Runtime(traced.network, **options)


def compare_spikes(traced: Trace, runtime: Runtime) -> float:
    """Return the spikes that differ, as a fraction of the spikes of the model.

    A layer that does not fire on the example is logged as a warning.

    Raises:
        SpikewireError: If more differ than rounding explains.
    """
    silent = [name for name, spikes in traced.spikes.items() if not spikes.any()]
    if silent:
        message = "no spike on the example in %s: the recorded network could not be compared there"
        logging.getLogger("spikewire").warning(message, ", ".join(silent))
    found = runtime.record_spikes(traced.frames, frames=not traced.is_static)
    different = total = 0
    for name, spikes in traced.spikes.items():
        own = found[name][: len(spikes)].reshape(spikes.shape)
        count, wrong = int(spikes.sum()), int((own != spikes).sum())
        if wrong > MAX_DIFFERENT * max(count, 20):
            raise SpikewireError(
                f"{name}: the recorded network fires differently from the model on the example "
                f"({wrong} of {count} spikes), so the model does something that was not recorded"
            )
        different, total = different + wrong, total + count
    return different / max(total, 1)


def write_network(network: Network, path: Path, format: str, *, values: str, pooling: str) -> int:
    """Write a network in one of `FORMATS` but C; return the size in bytes."""
    if format == "packed":
        return packed.write(network, path, values)
    if format == "nir":
        return nir.write(network, path, pooling)
    coo.write(network, path)
    return sum(file.stat().st_size for file in path.iterdir())


def write_c(
    network: Network, path: Path, values: str, example: Tensor | None
) -> tuple[Network, c.Memory]:
    """Write a C file whose test vector is an input and the class that the CPU runtime gives it.

    Args:
        network: The network to write.
        path: Path of the file.
        values: Type of the weights: ``"int8"`` or ``"fp32"``.
        example: Pixels (uint8), inputs as in training, or a sample over time ``[time, ...]``;
            None for a file without test vector.

    Returns:
        The network with rounded weights, and the memory that it needs on a device.
    """
    check_word("values", values, c.VALUES)
    rounded = packed.quantise(network, values)
    if example is None:
        return rounded, c.write(network, path, values)
    runtime = Runtime(rounded, exact=True)
    if example.ndim > len(network.input_shape):
        label = int(runtime.predict(example[:, None], frames=True))
    else:
        pixels = example.dtype == torch.uint8
        inputs = runtime.normalise(example[None]) if pixels else example[None]
        label = int(runtime.predict(inputs))
    return rounded, c.write(network, path, values, (example.numpy(), label))


def _collect_fields(
    classes: Sequence[str] | None, mean: Sequence[float], std: Sequence[float]
) -> dict[str, Any]:
    """Return the fields of `Network` that are not in the model."""
    for name, value in (("mean", mean), ("std", std)):
        check(isinstance(value, Iterable), name, value, "one number per channel, as in (0.5,)")
    versions = {"spikewire": __version__, "torch": str(torch.__version__)}
    fields: dict[str, Any] = {"about": versions, "mean": tuple(mean), "std": tuple(std)}
    return fields if classes is None else {**fields, "classes": tuple(classes)}
