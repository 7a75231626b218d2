"""Directories that are free for a new run, and the removal of what a killed process left there.

Only files that a run must have written itself are removed. A start writes the checkpoint of step 0
first and the config last, so a directory without a config is one of a killed start only if it
holds such a checkpoint, or nothing.
"""

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from spikewire.errors import SpikewireError
from spikewire.files import is_temporary
from spikewire.runs.checkpoint import read_checkpoint
from spikewire.runs.names import CHECKPOINT, ENV, LOCK, METRICS, WRITTEN

HOLDER = re.compile(rb"(pid \d+ on [^\n]*, since [^\n]*\n?)?")  # the content of our lock files


def is_vacant(folder: Path) -> bool:
    """Return whether a directory is empty, or holds only what a killed start has left there."""
    if not folder.is_dir():
        return False
    try:
        return _only_a_start(folder)
    except FileNotFoundError:  # a file is gone since it was listed: another process works here
        return False


def _only_a_start(folder: Path) -> bool:
    entries = {x.name: x for x in folder.iterdir() if not is_temporary(x, *WRITTEN)}
    if not all(stat.S_ISREG(entry.lstat().st_mode) for entry in entries.values()):
        return False
    if LOCK in entries and not HOLDER.fullmatch(entries.pop(LOCK).read_bytes()[:1000]):
        return False
    return not entries or (
        entries.keys() <= {CHECKPOINT, ENV, METRICS}
        and not (METRICS in entries and entries[METRICS].stat().st_size)
        and _is_first(folder / CHECKPOINT)
    )


def remove_start(folder: Path) -> None:
    """Empty a vacant directory; the checkpoint, which shows that the rest is ours, goes last."""
    for path in (*temporary_files(folder), folder / ENV, folder / METRICS, folder / CHECKPOINT):
        path.unlink(missing_ok=True)


def temporary_files(folder: Path) -> Iterator[Path]:
    """Return the incomplete files of a run whose process was killed."""
    return (entry for entry in list(folder.iterdir()) if is_temporary(entry, *WRITTEN))


def _is_first(path: Path) -> bool:
    """Return whether a file is a checkpoint of a run that has not taken a step."""
    try:
        position = read_checkpoint(path)["state"].get("position")
    except SpikewireError:
        return False
    return isinstance(position, dict) and position.get("epoch") == position.get("batch") == 0
