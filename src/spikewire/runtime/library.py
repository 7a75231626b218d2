"""The compiled kernels, if the install could build them."""

import ctypes
import logging
from collections.abc import Mapping
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np

from spikewire.errors import unknown
from spikewire.formats.network import Neuron

PATHS = {"portable": 0, "avx2": 1, "avx512": 2}
LANES = 16
GROUP = 8  # time steps that run together in a fully connected layer
pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class NeuronRecord(ctypes.Structure):
    """`neuron_t` of kernels.c."""

    _fields_ = (
        ("leak", number),
        ("tau", ctypes.c_float),
        ("threshold", ctypes.c_float),
        ("rest", ctypes.c_float),
        ("fall", ctypes.c_float),
    )


class LayerRecord(ctypes.Structure):
    """`layer_t` of kernels.c."""

    _fields_ = (
        *((name, size) for name in ("batch", "steps", "planes", "plane_words")),
        *((name, size) for name in ("channels", "vectors", "row_words")),
        ("tail", ctypes.c_uint32),
        ("path", number),
        ("neuron", NeuronRecord),
        *((name, pointer) for name in ("start", "offset", "post", "weight", "bias")),
    )


SIGNATURES = {
    "spikewire_fire": [pointer] * 4,
    "spikewire_conv": [*[pointer] * 6, size, size],
    "spikewire_conv_analogue": [pointer, pointer, size, size, pointer, size, size],
    "spikewire_linear": [pointer, pointer, *[size] * 5, *[pointer] * 5],
    "spikewire_linear_analogue": [pointer, pointer, size, size, size, pointer],
    "spikewire_spread": [pointer, pointer, *[size] * 6],
    "spikewire_pool": [pointer, pointer, *[size] * 7, ctypes.c_uint32, number],
}


def bind(path: str | Path) -> ctypes.CDLL:
    """Load a library of kernels and tell ctypes what its functions take."""
    library = ctypes.CDLL(str(path))
    library.spikewire_best_path.restype = ctypes.c_int
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


@cache
def installed() -> ctypes.CDLL | None:
    """Return the library built by the install; say once in the log if there is none."""
    here = Path(__file__).parent
    for suffix in EXTENSION_SUFFIXES:
        path = here / f"_kernels{suffix}"
        if path.exists():
            return bind(path)
    logging.getLogger("spikewire").warning("no compiled kernels: inference runs on torch, slowly")
    return None


def paths(library: ctypes.CDLL | None) -> list[str]:
    """Return the ways to compute that this machine has, the quickest first; "torch" always."""
    best = -1 if library is None else library.spikewire_best_path()
    compiled = [name for name, code in PATHS.items() if code <= best]
    return [*reversed(compiled), "torch"]


def choose(path: str | None, library: ctypes.CDLL | None) -> str:
    """Return `path` if it is there, or the quickest one."""
    present = paths(library)
    if path is not None and path not in present:
        raise unknown("kernels", path, present)
    return path or present[0]


def neuron_record(neuron: Neuron | None) -> NeuronRecord:
    """Return the constants; without neurons they are not read."""
    if neuron is None:
        return NeuronRecord()
    tau = neuron.tau
    leak = 0 if tau is None else 1 if exact_inverse(tau) else 2
    fall = neuron.threshold - neuron.rest if neuron.reset == "soft" else 0.0
    return NeuronRecord(leak, 0.0 if tau is None else tau, neuron.threshold, neuron.rest, fall)


def exact_inverse(tau: float) -> bool:
    """Whether multiplying with 1 / tau is the same as dividing by tau: a power of two is."""
    return bool(np.frexp(np.float32(tau))[0] == 0.5)


def layer_record(fields: Mapping[str, Any]) -> LayerRecord:
    """Return the record; arrays become their addresses, so the caller keeps them alive."""
    plain = {k: v.ctypes.data if isinstance(v, np.ndarray) else v for k, v in fields.items()}
    return LayerRecord(**plain)
