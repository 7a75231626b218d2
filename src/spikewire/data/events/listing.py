"""Data sets whose recordings are in one folder per class."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from spikewire.data.events.recording import Events, Recordings
from spikewire.data.streamed import Streamed
from spikewire.errors import SpikewireError

Read = Callable[[Path], Events]
Part = tuple[list[Path], list[int]]  # files and their labels


def files_of(folder: Path, suffix: str | tuple[str, ...]) -> list[Path]:
    """Return the files of a folder in the order of the numbers in their names.

    Raises:
        SpikewireError: If there is none.
    """
    suffixes = (suffix,) if isinstance(suffix, str) else suffix
    found = folder.iterdir() if folder.is_dir() else ()
    found = [path for path in found if path.suffix in suffixes]
    if not found:
        raise SpikewireError(f"dataset: {folder} has no {' or '.join(suffixes)} files")
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])


def split_classes(
    folders: Sequence[Path], suffix: str | tuple[str, ...], tested: int
) -> tuple[Part, Part]:
    """Return files and labels of the training and the test part of a data set without a split.

    Args:
        folders: One folder per class, in the order of the labels.
        suffix: Suffixes of the recordings.
        tested: The last 1 / `tested` of the recordings of each class are for testing.
    """
    parts: tuple[Part, Part] = ([], []), ([], [])
    for label, folder in enumerate(folders):
        own = files_of(folder, suffix)
        cut = len(own) - max(1, len(own) // tested)
        for (files, labels), chosen in zip(parts, (own[:cut], own[cut:]), strict=True):
            files += chosen
            labels += [label] * len(chosen)
    return parts


def class_folders(
    name: str, parts: tuple[str, str], suffix: str, read: Read, shape: tuple[int, ...]
) -> Callable[[Path], Streamed]:
    """Return a function that lists ``name/PART/CLASS/*`` for training and testing.

    Args:
        name: Name of the data set and of its folder in the data directory.
        parts: Folders of the training and the test part.
        suffix: Suffix of the recordings.
        read: Reads one of them.
        shape: Shape of a frame.
    """

    def load(root: Path) -> Streamed:
        first = root / name / parts[0]
        folders = sorted(first.iterdir()) if first.is_dir() else []
        classes = tuple(folder.name for folder in folders if folder.is_dir())
        if not classes:
            raise SpikewireError(f"dataset: {first} has no folders of classes")
        found = []
        for part in parts:
            files = [files_of(root / name / part / label, suffix) for label in classes]
            labels = [i for i, own in enumerate(files) for _ in own]
            flat = [file for own in files for file in own]
            found.append(Recordings(flat, labels, read=read, shape=shape))
        return Streamed(
            name=name, train=found[0], test=found[1], classes=classes, temporal=True, workers=2
        )

    return load
