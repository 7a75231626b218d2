"""Which path runs: fused Triton kernels or plain torch.

The choice is read from plain module variables, which `torch.compile` can guard on: a model compiles
without graph breaks, and nothing of dynamo is imported here.
"""

import logging
import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from spikewire.errors import SpikewireError, check_word

log = logging.getLogger("spikewire.kernels")
PATHS = ("auto", "torch", "triton")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_TIME_STEPS = 32  # more do not fit the registers, nor the winners of pooling an int64
MAX_ROW = 512  # inputs or outputs of synapses with delays: a program has all of them
MAX_SPAN = 31  # different delays
INSTALLED = find_spec("triton") is not None
_path = "auto"
_interpreted = False


def use(path: str) -> str:
    """Choose the path for neurons, selection and weight updates; log the path when it first runs.

    A compiled model is compiled again when the path has changed.

    Args:
        path: "triton", "torch" or "auto" (Triton on CUDA if it is installed, torch elsewhere).
            "triton" on CPU tensors needs Triton's interpreter: TRITON_INTERPRET=1 set beforehand.

    Returns:
        The previous choice.

    Raises:
        SpikewireError: the path is unknown, or "triton" is not installed.

    Example:
        >>> before = spikewire.kernels.use("torch")
        >>> spikewire.kernels.use(before)
        'torch'
    """
    global _path, _interpreted
    check_word("kernels", path, PATHS)
    if path == "triton" and not INSTALLED:
        raise SpikewireError("kernels: 'triton' is not installed; allowed here: auto, torch")
    previous, _path = _path, path
    _interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return previous


def fusible(x: Tensor, time_steps: int) -> bool:
    """Return whether neurons run on the fused kernels for this tensor.

    Args:
        x: currents or images, of any shape.
        time_steps: how many time steps the neurons run.

    Returns:
        True if the kernels support the tensor and are the chosen path for its device.

    Raises:
        SpikewireError: "triton" was chosen, but the tensor is on the CPU and not interpreted.
    """
    fits = x.dtype in DTYPES and x.numel() > 0 and time_steps <= MAX_TIME_STEPS
    return fits and fused(x.device.type)


def event_driven(x: Tensor, weight: Tensor, span: int) -> bool:
    """Return whether synapses with delays run on the kernels that skip inputs of 0.

    Args:
        x: inputs or currents, ``[time, batch, features]``.
        weight: ``[outputs, inputs]``.
        span: number of different delays.

    Returns:
        True if the kernels support the layer and are the chosen path for its device.

    Raises:
        SpikewireError: "triton" was chosen, but the tensor is on the CPU and not interpreted.
    """
    fits = x.ndim == 3 and max(weight.shape) <= MAX_ROW and span <= MAX_SPAN
    return (
        fits
        and x.numel() > 0
        and x.dtype in DTYPES
        and weight.dtype in DTYPES
        and fused(x.device.type)
    )


def same_layout(*weights: Tensor) -> bool:
    """Return whether the fused kernels may run element by element over the memory of these weights.

    Args:
        *weights: tensors of one shape.

    Returns:
        True if all are float32 with the same dense strides, and the kernels are the chosen path.

    Raises:
        SpikewireError: "triton" was chosen, but the tensors are on the CPU and not interpreted.
    """
    first = weights[0]
    dense = first.is_contiguous() or (
        first.ndim == 4 and first.is_contiguous(memory_format=torch.channels_last)
    )
    same = all(x.dtype == torch.float32 and x.stride() == first.stride() for x in weights)
    return dense and same and first.numel() > 0 and fused(first.device.type)


def fused(device: str) -> bool:
    """Return whether the fused kernels run on this type of device, and log it the first time."""
    if _path == "triton" and device == "cpu" and not _interpreted:
        raise SpikewireError("kernels: 'triton' needs CUDA tensors or TRITON_INTERPRET=1, not cpu")
    on = (device == "cuda" and INSTALLED) if _path == "auto" else _path == "triton"
    if not torch.compiler.is_compiling():  # a logger would break the graph
        _log_once(on, f"chosen for {device}" if _path == "auto" else "requested")
    return on


@cache
def _log_once(on: bool, why: str) -> None:
    path = "fused Triton kernels" if on else "plain torch"
    log.info("neurons and updates run as %s (%s)", path, why)
