"""The compiled kernels, loaded with ctypes: where they are, their signatures, their records."""

import ctypes
import logging
from collections.abc import Mapping
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np

from spikewire.errors import check_word
from spikewire.formats.network import Neuron

SUFFIXES = (".so", ".pyd", ".dll", *EXTENSION_SUFFIXES)  # with and without the tag of a Python
PATHS = {"portable": 0, "avx2": 1, "avx512": 2}  # as numbered in kernels.c
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
    """Load a library of kernels and declare the arguments of its functions."""
    library = ctypes.CDLL(str(path))
    library.spikewire_best_path.restype = ctypes.c_int
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


def find_library(folder: Path) -> Path | None:
    """Return the file of the compiled kernels in a folder, under any suffix of a library."""
    candidates = (folder / f"_kernels{suffix}" for suffix in SUFFIXES)
    return next((path for path in candidates if path.exists()), None)


@cache
def installed() -> ctypes.CDLL | None:
    """Return the compiled kernels of the installation; log a warning once if there are none."""
    path = find_library(Path(__file__).parent)
    if path is not None:
        return bind(path)
    logging.getLogger("spikewire").warning("no compiled kernels: inference runs on torch, slowly")
    return None


def available_kernels(library: ctypes.CDLL | None) -> list[str]:
    """Return the names of the kernels that this machine can run, the fastest first.

    Args:
        library: The compiled kernels, or None.

    Returns:
        Some of "avx512", "avx2" and "portable", and always "torch" at the end.
    """
    best = -1 if library is None else library.spikewire_best_path()
    compiled = [name for name, code in PATHS.items() if code <= best]
    return [*reversed(compiled), "torch"]


def choose_kernels(name: str | None, library: ctypes.CDLL | None) -> str:
    """Return `name` if these kernels are available, and the fastest ones for None."""
    available = available_kernels(library)
    if name is None:
        return available[0]
    check_word("kernels", name, available)
    return name


def make_neuron_record(neuron: Neuron | None) -> NeuronRecord:
    """Return the constants of neurons; for None, a record that is not read."""
    if neuron is None:
        return NeuronRecord()
    tau = neuron.tau
    leak = 0 if tau is None else 1 if has_exact_inverse(tau) else 2
    fall = neuron.threshold - neuron.rest if neuron.reset == "soft" else 0.0
    return NeuronRecord(leak, 0.0 if tau is None else tau, neuron.threshold, neuron.rest, fall)


def has_exact_inverse(tau: float) -> bool:
    """Return whether multiplying by 1 / tau equals dividing by tau, as for a power of two."""
    return bool(np.frexp(np.float32(tau))[0] == 0.5)


def make_layer_record(fields: Mapping[str, Any]) -> LayerRecord:
    """Return the record; arrays become their addresses, so the caller keeps them alive."""
    plain = {k: v.ctypes.data if isinstance(v, np.ndarray) else v for k, v in fields.items()}
    return LayerRecord(**plain)
