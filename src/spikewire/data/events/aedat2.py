"""AEDAT 2.0 of a DVS128 camera: header lines that begin with ``#``, then pairs of words.

Each event is a 32-bit address and a 32-bit time in microseconds, both big-endian. Of the address,
bits 14 to 8 are y, 7 to 1 are x and bit 0 is the polarity; both axes begin in the lower corner.
https://docs.inivation.com/software/software-advanced-usage/file-formats/aedat-2.0.html
"""

from pathlib import Path

import numpy as np

from spikewire.data.events.recording import Events, format_errors
from spikewire.errors import check


def read(path: Path) -> Events:
    """Return the events of a file.

    Raises:
        SpikewireError: If it cannot be read or is not AEDAT 2.0.
    """
    with format_errors(path, "AEDAT 2.0"):
        content = path.read_bytes()
        check(content.startswith(b"#!AER-DAT2"), "first line", content[:12], "#!AER-DAT2.0")
        start = 0
        while content[start : start + 1] == b"#":
            end = content.find(b"\n", start)
            check(end >= 0, "header", "unfinished", "lines that end")
            start = end + 1
        check((len(content) - start) % 8 == 0, "bytes of events", len(content) - start, "n x 8")
        words = np.frombuffer(content, dtype=">u4", offset=start).astype(np.int64)
        address, time = words[0::2], words[1::2]
        return Events(time, address >> 1 & 0x7F, address >> 8 & 0x7F, address & 1)
