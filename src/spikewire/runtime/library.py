"""The compiled kernels, loaded with ctypes: where they are, their signatures, their records."""

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np

from spikewire.errors import check_word
from spikewire.formats.neuron import RESETS, Neuron, has_exact_inverse

SUFFIXES = (".so", ".pyd", ".dll", *EXTENSION_SUFFIXES)  # with and without the tag of a Python
PATHS = {"portable": 0, "avx2": 1, "avx512": 2}  # as numbered in kernels.c
LANES = 16
LEAKS = {"multiply": 1, "divide": 2, "multiply then add": 3, "divide then add": 4, "decay": 5}
GROUP = 8  # time steps that run together in a fully connected layer
pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class NeuronRecord(ctypes.Structure):
    """`neuron_t` of kernels.c."""

    _fields_ = (
        *((name, number) for name in ("leak", "reset")),
        *((name, ctypes.c_float) for name in ("factor", "threshold", "rest", "fall")),
    )


class WindowRecord(ctypes.Structure):
    """`window_t` of kernels.c."""

    _fields_ = tuple((name, size * 2) for name in ("size", "stride", "padding", "dilation"))


class LayerRecord(ctypes.Structure):
    """`layer_t` of kernels.c."""

    _fields_ = (
        *((name, size) for name in ("batch", "steps", "planes", "plane_words")),
        *((name, size) for name in ("channels", "vectors", "row_words")),
        ("tail", ctypes.c_uint32),
        ("path", number),
        ("neuron", NeuronRecord),
        ("synapse", NeuronRecord),
        *((name, pointer) for name in ("synaptic", "start", "offset", "post", "weight", "bias")),
    )


class CallRecord(ctypes.Structure):
    """`call_t` of kernels.c."""

    _fields_ = (("function", size), ("arguments", size * 12))


SIGNATURES: dict[str, list[Any]] = {
    "spikewire_fire": [pointer, pointer, number, pointer, pointer],
    "spikewire_conv": [*[pointer] * 6, size, size],
    "spikewire_conv_analogue": [pointer, pointer, *[size] * 4, pointer, size, size],
    "spikewire_linear": [pointer, pointer, *[size] * 5, *[pointer] * 5],
    "spikewire_linear_analogue": [pointer, pointer, size, size, size, pointer],
    "spikewire_spread": [pointer, pointer, *[size] * 3, pointer, size, size],
    "spikewire_pool": [*[pointer] * 2, *[size] * 4, pointer, size, size, ctypes.c_uint32, number],
    "spikewire_pool_currents": [*[pointer] * 2, *[size] * 4, pointer, *[size] * 3, number],
    "spikewire_copy": [pointer, pointer, *[size] * 7],
    "spikewire_read": [*[pointer] * 3, *[size] * 5],
    "spikewire_integrate": [pointer, pointer, number, pointer, pointer],
    "spikewire_add": [pointer, pointer, size],
}  # in the order of `spikewire_run` in kernels.c
Call = Callable[..., None]  # of a name and arguments


class Kernels:
    """Calls the kernels; arrays and records are passed by address.

    Args:
        library: As returned by `bind`.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function by its name."""
        self.bind(name, *arguments)()

    def bind(self, name: str, *arguments: Any) -> Callable[[], None]:
        """Return a call with fixed arguments; the caller keeps the arrays alive."""
        return partial(getattr(self.library, name), *map(to_argument, arguments))


def to_argument(value: Any) -> Any:
    """Return an array or a record as its address, and anything else as it is."""
    if isinstance(value, np.ndarray):
        return value.ctypes.data
    return ctypes.byref(value) if isinstance(value, ctypes.Structure) else value


def bind(path: str | Path) -> ctypes.CDLL:
    """Load a library of kernels and declare the arguments of its functions."""
    library = ctypes.CDLL(str(path))
    library.spikewire_best_path.restype = ctypes.c_int
    for name, arguments in {**SIGNATURES, "spikewire_run": [pointer, size]}.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


def find_library(folder: Path) -> Path | None:
    """Return the file of the compiled kernels in a folder, under any suffix of a library."""
    candidates = (folder / f"_kernels{suffix}" for suffix in SUFFIXES)
    return next((path for path in candidates if path.exists()), None)


def is_current(path: Path) -> bool:
    """Return whether a library has the records of this version."""
    measure = getattr(ctypes.CDLL(str(path)), "spikewire_record_size", None)
    if measure is None:
        return False
    measure.restype = size
    return measure() == ctypes.sizeof(LayerRecord)


@cache
def installed() -> ctypes.CDLL | None:
    """Return the compiled kernels of the installation; log a warning once if there are none."""
    path = find_library(Path(__file__).parent)
    if path is not None and is_current(path):
        return bind(path)
    found = "no compiled kernels" if path is None else f"{path.name} is of another version"
    message = "%s: inference runs on torch, slowly; install spikewire again with a C compiler"
    logging.getLogger("spikewire").warning(message, found)
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
    leak, factor = LEAKS[neuron.update], neuron.factor
    if neuron.tau is None:
        leak = 0
    elif neuron.update.startswith("divide") and has_exact_inverse(neuron.tau):
        leak, factor = leak - 1, 1 / factor
    limits = (neuron.fires_at, neuron.rest, neuron.fall)
    return NeuronRecord(leak, RESETS.index(neuron.reset), factor, *limits)


def make_window_record(*pairs: Sequence[int]) -> WindowRecord:
    """Return size, stride, padding and dilation of a window, each of rows and columns."""
    return WindowRecord(*((size * 2)(*pair) for pair in pairs))


def make_layer_record(fields: Mapping[str, Any]) -> LayerRecord:
    """Return the record; arrays become their addresses, so the caller keeps them alive."""
    plain = {k: v.ctypes.data if isinstance(v, np.ndarray) else v for k, v in fields.items()}
    return LayerRecord(**plain)
