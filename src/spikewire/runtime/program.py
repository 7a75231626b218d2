"""A recorded sequence of calls of the kernels, repeated as a single call into C.

For one image of a small network, Python between the calls takes longer than the calls. The same
Python code runs once with a `Recorder` in place of the kernels; the recorded calls, with the arrays
they work on, are a `Program`.
"""

import ctypes
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spikewire.runtime.library import SIGNATURES, CallRecord, Kernels

Floats = NDArray[np.float32]
MAX_BYTES = 2**25  # of the arrays of one program
MAX_PROGRAMS = 4  # that are kept per thread, for different batch sizes
FUNCTIONS = {name: number for number, name in enumerate(SIGNATURES)}  # as numbered in kernels.c


class Recorder:
    """Takes calls of the kernels like `Kernels`, and keeps them with their arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __call__(self, name: str, *arguments: Any) -> None:
        """Keep a call."""
        self.calls.append((name, arguments))

    def finish(self, call: Kernels, source: Floats, outputs: Floats) -> "Program":
        """Return the calls as a program that reads `source` and writes `outputs`."""
        return Program(call, self.calls, source, outputs)


class Program:
    """Recorded calls, and the arrays that they work on.

    Args:
        call: The kernels.
        calls: Names and arguments of the calls.
        source: The array that the images are copied to.
        outputs: The array that the last call writes.
    """

    def __init__(
        self,
        call: Kernels,
        calls: list[tuple[str, tuple[Any, ...]]],
        source: Floats,
        outputs: Floats,
    ) -> None:
        self.source, self.outputs = source, outputs
        self.arguments = [arguments for _, arguments in calls]  # keeps them alive
        self.records = (CallRecord * len(calls))()
        for record, (name, arguments) in zip(self.records, calls, strict=True):
            record.function = FUNCTIONS[name]
            for number, argument in enumerate(arguments):
                record.arguments[number] = to_number(argument)
        self.start = call.bind("spikewire_run", self.records, len(calls))

    @property
    def bytes(self) -> int:
        """Size of all arrays, each counted once."""
        arrays = {id(a): a for call in self.arguments for a in call if isinstance(a, np.ndarray)}
        return sum(array.nbytes for array in arrays.values())

    def run(self, images: Floats) -> Floats:
        """Return a copy of the outputs for other images of the same shape."""
        np.copyto(self.source, images, "no")
        self.start()
        return self.outputs.copy()


class Programs(threading.local):
    """The latest programs of a thread by shape and time steps; arrays are not shared."""

    def __init__(self) -> None:
        self.kept: dict[Any, Program] = {}

    def find(self, images: Any, steps: int) -> Program | None:
        """Return the program for images of this shape, if there is one."""
        return self.kept.get((getattr(images, "shape", None), steps))

    def store(self, program: Program, steps: int) -> Program:
        """Keep a program, unless it is large; return it."""
        if program.bytes <= MAX_BYTES:
            while len(self.kept) >= MAX_PROGRAMS:
                del self.kept[next(iter(self.kept))]
            self.kept[program.source.shape, steps] = program
        return program


def to_number(argument: Any) -> int:
    """Return an argument as the kernels take it: an address, or a number."""
    if argument is None:
        return 0
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data
    if isinstance(argument, ctypes.Structure):
        return ctypes.addressof(argument)
    return int(argument)
