"""AEDAT 3.1: text lines up to ``#!END-HEADER``, then packets of events, little-endian.

A packet is a header of 28 bytes (16-bit type and source, then 32-bit event size, offset of the
time, time overflow, capacity, number and valid number) and its events. A polarity event, type 1, is
a 32-bit word (bit 0 valid, bit 1 polarity, bits 2 to 16 y, bits 17 to 31 x) and a 32-bit time.
https://docs.inivation.com/software/software-advanced-usage/file-formats/aedat-3.1.html
"""

import struct
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from spikewire.data.events.recording import Events, format_errors
from spikewire.errors import check

HEADER = struct.Struct("<hhiiiiii")
POLARITY = 1


class Packet(NamedTuple):
    """Where a packet of polarity events is in its file, and the time it covers."""

    offset: int
    count: int
    overflow: int
    first: int
    last: int


def read(path: Path, begin: int | None = None, end: int | None = None) -> Events:
    """Return the valid polarity events of a file, or those from `begin` up to `end`.

    Args:
        path: The file.
        begin: First time in microseconds; None for all events.
        end: Time before which events are returned; None for all events.

    Raises:
        SpikewireError: If it cannot be read or is not AEDAT 3.1.
    """
    with format_errors(path, "AEDAT 3.1"):
        low, high = -1 if begin is None else begin, 1 << 62 if end is None else end
        wanted = [p for p in index(path) if p.last >= low and p.first < high]
        with path.open("rb") as stream:
            parts = [_read_packet(stream, packet) for packet in wanted]
        words = np.concatenate(parts) if parts else np.empty((0, 2), np.int64)
        words = words[words[:, 0] & 1 == 1]
        address, time = words.T
        events = Events(time, address >> 17 & 0x7FFF, address >> 2 & 0x7FFF, address >> 1 & 1)
        return events if begin is None and end is None else events.within(low, high)


def _read_packet(stream, packet: Packet) -> np.ndarray:
    stream.seek(packet.offset)
    words = np.frombuffer(stream.read(8 * packet.count), "<u4").reshape(-1, 2).astype(np.int64)
    words[:, 1] += packet.overflow << 31
    return words


@lru_cache(maxsize=512)
def index(path: Path) -> list[Packet]:
    """Return the packets of polarity events in a file; only their headers and ends are read."""
    packets: list[Packet] = []
    size = path.stat().st_size
    with path.open("rb") as stream:
        first = stream.readline()
        check(first.startswith(b"#!AER-DAT3"), "first line", first[:14], "#!AER-DAT3.1")
        line = first
        while line.strip() != b"#!END-HEADER":
            line = stream.readline()
            check(line.startswith(b"#"), "header", line[:14], "lines up to #!END-HEADER")
        while len(header := stream.read(HEADER.size)) == HEADER.size:
            kind, _, length, _, overflow, _, number, _ = HEADER.unpack(header)
            offset = stream.tell()
            end = offset + length * number
            check(length > 0 and number >= 0 and end <= size, "packet", number, "inside the file")
            if kind == POLARITY and number:
                check(length == 8, "bytes per event", length, "8")
                times = [_time(stream, offset + 8 * i) for i in (0, number - 1)]
                high = overflow << 31
                packets.append(Packet(offset, number, overflow, times[0] + high, times[1] + high))
            stream.seek(end)
    return packets


def _time(stream, offset: int) -> int:
    stream.seek(offset + 4)
    return struct.unpack("<i", stream.read(4))[0]
