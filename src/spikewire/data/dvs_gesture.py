"""DVS128 Gesture: 11 gestures of 29 people seen by an event camera, 128 x 128.

Amir et al., 2017, https://research.ibm.com/interactive/dvsgesture. The folder ``DvsGesture`` has
the recordings (AEDAT 3.1) with one table of gestures each
(``class,startTime_usec,endTime_usec``), and the lists ``trials_to_train.txt`` and
``trials_to_test.txt``.
"""

import csv
from pathlib import Path

from spikewire.data.events import Events, Recordings, aedat3, format_errors
from spikewire.data.source import Source
from spikewire.data.streamed import Streamed

CLASSES = (
    "hand clapping",
    "right hand wave",
    "left hand wave",
    "right arm clockwise",
    "right arm counter clockwise",
    "left arm clockwise",
    "left arm counter clockwise",
    "arm roll",
    "air drums",
    "air guitar",
    "other gestures",
)
Gesture = tuple[Path, int, int]  # the recording, and when the gesture begins and ends


def read(gesture: Gesture) -> Events:
    """Return the events of one gesture.

    Raises:
        SpikewireError: If the recording cannot be read.
    """
    return aedat3.read(*gesture)


def list_gestures(path: Path) -> list[tuple[Gesture, int]]:
    """Return the gestures of a recording and their labels, from the table beside it.

    Raises:
        SpikewireError: If the table cannot be read.
    """
    table = path.with_name(f"{path.stem}_labels.csv")
    with (
        format_errors(table, "a table of gestures"),
        table.open(newline="", encoding="utf-8") as lines,
    ):
        rows = [[int(cell) for cell in row] for row in list(csv.reader(lines))[1:] if row]
        return [((path, begin, end), label - 1) for label, begin, end in rows]


def _load(root: Path) -> Streamed:
    folder, found = root / "DvsGesture", []
    for part in ("train", "test"):
        trials = folder / f"trials_to_{part}.txt"
        with format_errors(trials, "a list of recordings"):
            names = trials.read_text("utf-8").split()
        gestures = [pair for name in names for pair in list_gestures(folder / name)]
        items, labels = [item for item, _ in gestures], [label for _, label in gestures]
        found.append(Recordings(items, labels, read=read, shape=(2, 128, 128)))
    return Streamed(
        name="dvs-gesture",
        train=found[0],
        test=found[1],
        classes=CLASSES,
        temporal=True,
        workers=2,
    )


DVS_GESTURE = Source(
    "DVS128 Gesture",
    "DVS128 Gesture: 11 gestures as events, 128 x 128",
    _load,
    folder="DvsGesture",
    address="https://research.ibm.com/interactive/dvsgesture",
)
