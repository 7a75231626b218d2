"""Which program of a selection kernel reads which piece of a flat tensor."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

TILE, UNROLL = 512, 8  # of `selection.count_digits`: 32 pending reads per thread
SCAN = 1024  # values per round of the kernels of masks
PROGRAMS = 1056  # of all of them, about: eight on each of an H200's 132 multiprocessors
MAX_ROUNDS = 255 // UNROLL  # a byte counts up to 255


class Part(NamedTuple):
    """A piece of a flat tensor in which one key is searched for.

    Attributes:
        size: number of values.
        search: which of the searches it belongs to.
        costs: how many costs it has; value i costs as much as value i + costs.
    """

    size: int
    search: int = 0
    costs: int = 1


@lru_cache(maxsize=64)
def counting(parts: tuple[Part, ...], device: torch.device) -> Tensor:
    """Return the table of `selection.count_digits`, one line per program.

    A line has: the first value and the end of its part; how many lanes are used, and how far apart
    are the values of a lane; rounds; the first cost and the number of costs; the search.
    """
    pieces, start, first = [], 0, 0
    for size, search, costs in parts:
        stop = start + size
        if costs <= TILE:
            width = TILE // costs * costs
            pieces.append((start, stop, width, width, -(-size // width), first, costs, search))
        else:
            for lane in range(0, costs, TILE):
                width, place = min(TILE, costs - lane), first + lane
                reads = size // costs
                pieces.append((start + lane, stop, width, costs, reads, place, costs, search))
        start, first = stop, first + costs
    rounds = sum(-(-reads // UNROLL) for _, _, _, _, reads, *_ in pieces)
    most = min(MAX_ROUNDS, -(-rounds // PROGRAMS))
    lines = [
        (start + read * stride, stop, width, stride, min(most, -(-(reads - read) // UNROLL)), *rest)
        for start, stop, width, stride, reads, *rest in pieces
        for read in range(0, reads, most * UNROLL)
    ]
    return _send(lines, device)


@lru_cache(maxsize=64)
def scanning(parts: tuple[Part, ...], device: torch.device) -> Tensor:
    """Return the table of the kernels of masks, one line per program: first value, end, search."""
    rounds = sum(-(-size // SCAN) for size, *_ in parts)
    step = SCAN * -(-rounds // PROGRAMS)
    lines, start = [], 0
    for size, search, _ in parts:
        stop = start + size
        lines += [(at, min(at + step, stop), search) for at in range(start, stop, step)]
        start = stop
    return _send(lines, device)


def _send(numbers: Sequence[Any], device: torch.device) -> Tensor:
    """Return whole numbers as a tensor on the device, which is not waited for."""
    cuda = device.type == "cuda"
    return torch.tensor(numbers, dtype=torch.int64, pin_memory=cuda).to(device, non_blocking=True)


@lru_cache(maxsize=64)
def constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Return numbers that are the same at every call."""
    return _send(numbers, device)


def stack(values: Iterable[int | Tensor], device: torch.device) -> Tensor:
    """Return numbers of which the device has computed some as one tensor, without waiting."""
    values = list(values)
    if not any(isinstance(value, Tensor) for value in values):
        return _send(values, device)
    zeros = torch.zeros((), dtype=torch.int64, device=device)
    return torch.stack([x.long() if isinstance(x, Tensor) else zeros + x for x in values])
