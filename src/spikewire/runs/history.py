"""The metrics of a run as JSON lines, one per epoch."""

import json
import os
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from spikewire.errors import SpikewireError
from spikewire.files import atomic_write, io_errors, open_append


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append the line of one epoch and sync it to disk; numbers that are not finite become null."""
    line = json_line(row)
    with io_errors(path.parent), open_append(path) as file:
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows written so far; an incomplete last line is ignored.

    Raises:
        SpikewireError: If a line before the last one is damaged.
    """
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        if (row := _parse(line)) is not None:
            rows.append(row)
        elif number < len(lines):
            raise SpikewireError(f"{path}: line {number} is damaged")
    return rows


def last_rows(path: Path, size: int = 1 << 16) -> list[dict[str, Any]]:
    """Return the rows in the last `size` bytes of a file that is being written.

    Lines that are incomplete or damaged are left out, and so is a file that is absent.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            lines = file.read().splitlines()
    except OSError:
        return []
    return [row for line in lines if (row := _parse(line)) is not None]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file by these rows, atomically."""
    with io_errors(path.parent), atomic_write(path) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the row in a line, or None if the line is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("epoch")) is int else None


def json_line(values: Mapping[str, Any]) -> str:
    """Return one line of JSON; numbers that are not finite become null."""
    return json.dumps(_replace_nonfinite(values), allow_nan=False) + "\n"


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value
