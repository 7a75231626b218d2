"""Which path runs: fused Triton kernels or plain torch."""

import logging
import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from spikewire.errors import SpikewireError, unknown

log = logging.getLogger("spikewire.kernels")
PATHS = ("auto", "torch", "triton")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_TIME_STEPS = 16  # more would not fit the registers, nor the winners of pooling an int32
_asked = "auto"


def use(path: str) -> str:
    """Choose "triton", "torch" or "auto" (Triton on CUDA where installed); return the last choice.

    "triton" on a CPU needs Triton's interpreter. A compiled model keeps the path it has.
    """
    global _asked
    if path not in PATHS:
        raise unknown("kernels", path, PATHS)
    if path == "triton" and not installed():
        raise SpikewireError("kernels: 'triton' is not installed; allowed here: auto, torch")
    before, _asked = _asked, path
    return before


def installed() -> bool:
    """Return whether Triton can be imported."""
    return find_spec("triton") is not None


def fusible(x: Tensor, time_steps: int) -> bool:
    """Return whether the kernels take this tensor and are the chosen path for it."""
    fits = x.dtype in DTYPES and x.numel() > 0 and time_steps <= MOST_TIME_STEPS
    return fits and fused(x.device.type)


def same_layout(*weights: Tensor) -> bool:
    """Return whether the kernels may run over these weights' memory, place by place."""
    first = weights[0]
    dense = first.is_contiguous() or (
        first.ndim == 4 and first.is_contiguous(memory_format=torch.channels_last)
    )
    same = all(x.dtype == torch.float32 and x.stride() == first.stride() for x in weights)
    return dense and same and first.numel() > 0 and fused(first.device.type)


@torch.compiler.assume_constant_result
def fused(device: str) -> bool:
    """Return whether the fused kernels run on this type of device, and log it the first time."""
    if _asked == "auto":
        on, why = device == "cuda" and installed(), f"chosen for {device}"
    else:
        on, why = _asked == "triton", "asked for"
    if on and device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise SpikewireError("kernels: 'triton' needs CUDA tensors or TRITON_INTERPRET=1, not cpu")
    _tell("fused Triton kernels" if on else "plain torch", why)
    return on


@cache
def _tell(what: str, why: str) -> None:
    log.info("neurons and updates run as %s (%s)", what, why)
