"""Decompression of LZ4 frames, as AEDAT4 files hold them.

https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md and ``lz4_Block_format.md``: a block is
a series of (literals, copy of earlier output) sequences.
"""

from spikewire.errors import SpikewireError, check

MAGIC = b"\x04\x22\x4d\x18"
LARGEST = 1 << 28  # bytes of one frame


def decompress(content: bytes) -> bytes:
    """Return the content of an LZ4 frame; checksums are skipped, sizes and offsets checked.

    Raises:
        SpikewireError: If the content is no such frame.
    """
    check(content[:4] == MAGIC, "compression", content[:4], "an LZ4 frame")
    flags = content[4]
    check(flags >> 6 == 1 and not flags & 1, "LZ4 version", flags, "1, without a dictionary")
    position = 7 + (8 if flags & 8 else 0)
    checksum = 4 if flags & 16 else 0
    output = bytearray()
    while True:
        size = int.from_bytes(content[position : position + 4], "little")
        position += 4
        if size == 0:
            return bytes(output)
        raw, size = size >> 31, size & 0x7FFFFFFF
        block = content[position : position + size]
        check(len(block) == size, "LZ4 block", len(block), f"{size} bytes")
        output += block if raw else b""
        if not raw:
            _append_block_(output, block)
        position += size + checksum


def _append_block_(output: bytearray, block: bytes) -> None:
    """Append the content of one block; it may copy from the output so far."""
    at, end = 0, len(block)
    while at < end:
        token = block[at]
        literals, at = _length(block, at + 1, token >> 4)
        output += block[at : at + literals]
        at += literals
        if at >= end:
            break  # the last sequence has no copy
        offset = block[at] | block[at + 1] << 8
        copied, at = _length(block, at + 2, token & 15)
        copied += 4
        start = len(output) - offset
        if offset == 0 or start < 0 or len(output) + copied > LARGEST:
            raise SpikewireError("LZ4 offset: points outside the data")
        if offset >= copied:
            output += output[start : start + copied]
        else:  # the copy overlaps itself: a pattern that repeats
            pattern = bytes(output[start:])
            output += (pattern * (copied // offset + 1))[:copied]


def _length(block: bytes, at: int, first: int) -> tuple[int, int]:
    """Return a length, of which 15 means that more bytes follow, and the next position."""
    if first < 15:
        return first, at
    total = first
    while (more := block[at]) == 255:
        total, at = total + 255, at + 1
    return total + more, at + 1
