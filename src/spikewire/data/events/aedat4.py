"""AEDAT 4: packets of FlatBuffers, uncompressed or as LZ4 frames.

The line ``#!AER-DAT4.0``, the size and content of an ``IOHE`` header, then packets: 32-bit stream
number, 32-bit size, content. The content of an event packet is a size-prefixed FlatBuffer ``EVTS``
whose table has one vector of 16-byte structs: 64-bit time, 16-bit x, 16-bit y, 8-bit polarity,
padding.
https://docs.inivation.com/software/software-advanced-usage/file-formats/aedat-4.0.html
"""

import struct
from pathlib import Path

import numpy as np

from spikewire.data.events import lz4
from spikewire.data.events.recording import Events, format_errors
from spikewire.errors import check

VERSION = b"#!AER-DAT4.0\r\n"
COMPRESSIONS = {0: "none", 1: "LZ4", 2: "LZ4 high", 3: "Zstandard", 4: "Zstandard high"}
EVENT = np.dtype(
    {
        "names": ["t", "x", "y", "p"],
        "formats": ["<i8", "<i2", "<i2", "u1"],
        "offsets": [0, 8, 10, 12],
        "itemsize": 16,
    }
)


def read(path: Path) -> Events:
    """Return the events of all event streams of a file.

    Raises:
        SpikewireError: If it cannot be read, is not AEDAT 4, or is compressed with Zstandard.
    """
    with format_errors(path, "AEDAT 4"):
        content = path.read_bytes()
        check(content.startswith(VERSION), "first line", content[:14], "#!AER-DAT4.0")
        start = len(VERSION)
        size = _u32(content, start)
        header = content[start + 4 : start + 4 + size]
        compression, end = _read_header(header)
        kind = COMPRESSIONS.get(compression, compression)
        check(compression in (0, 1, 2), "compression", kind, "none or LZ4")
        packets = _packets(content, start + 4 + size, len(content) if end < 0 else end)
        decoded = (lz4.decompress(x) if compression else x for x in packets)
        parts = [_read_events(x) for x in decoded if x[8:12] == b"EVTS"]
        found = np.concatenate(parts) if parts else np.empty(0, EVENT)
        return Events(found["t"], found["x"], found["y"], found["p"])


def _packets(content: bytes, at: int, end: int) -> list[bytes]:
    """Return the packets up to the table at the end, or up to a last one that is cut off."""
    found = []
    while at + 8 <= end:
        size = _u32(content, at + 4)
        body = content[at + 8 : at + 8 + size]
        if len(body) < size:
            break
        found.append(body)
        at += 8 + size
    return found


def _read_header(header: bytes) -> tuple[int, int]:
    """Return the compression, and where the packets end; -1 if the file was not closed."""
    check(header[4:8] == b"IOHE", "header", header[4:8], "IOHE")
    table = _u32(header, 0)
    fields = _fields(header, table)
    compression = _i32(header, table + fields[0]) if fields[0] else 0
    end = struct.unpack_from("<q", header, table + fields[1])[0] if fields[1] else -1
    return compression, end


def _read_events(packet: bytes) -> np.ndarray:
    """Return the structs of an event packet, which begins with its size."""
    table = 4 + _u32(packet, 4)
    offset = _fields(packet, table)[0]
    if not offset:
        return np.empty(0, EVENT)
    vector = table + offset
    vector += _u32(packet, vector)
    return np.frombuffer(packet, EVENT, _u32(packet, vector), vector + 4)


def _fields(buffer: bytes, table: int) -> tuple[int, int]:
    """Return where the first two fields of a FlatBuffers table are; 0 where one is absent."""
    virtual = table - _i32(buffer, table)
    size = struct.unpack_from("<H", buffer, virtual)[0]
    slots = [struct.unpack_from("<H", buffer, virtual + i)[0] if i < size else 0 for i in (4, 6)]
    return slots[0], slots[1]


def _u32(buffer: bytes, at: int) -> int:
    return struct.unpack_from("<I", buffer, at)[0]


def _i32(buffer: bytes, at: int) -> int:
    return struct.unpack_from("<i", buffer, at)[0]
