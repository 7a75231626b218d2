"""The networks and data sets of today's papers: accuracy beside the highest published one.

    python benchmarks/leaderboard.py cifar100-sew18 --out results/leaderboard
    python benchmarks/leaderboard.py cifar10-vgg16 --points 0.05,0.01 --seed 1 --epochs 40
    python benchmarks/leaderboard.py cifar100-sew18 --hold-out 5000          # to choose a recipe
    python benchmarks/leaderboard.py cifar100-sew18 --methods all --points 0.1,0.02 --epochs 30
    python benchmarks/leaderboard.py --summary --out results/leaderboard
    python benchmarks/leaderboard.py cifar10-vgg16 --limit 40 --epochs 1 --width 0.02   # on a CPU

Every point is one run of `spikewire train --preset NAME` and writes one JSON file with command,
versions, settings and curves; other flags are passed to all runs. The accuracy is that of the last
epoch on the test set, or on held-out training images with `--hold-out`. `--methods` trains several
methods with the settings of the preset at the same connectivities. `--summary` prints mean and
standard deviation over the seeds found in the directory.
"""

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from time_to_accuracy import record

from spikewire import data as datasets
from spikewire.config import method_fields, resolve, words_of
from spikewire.data import Dataset
from spikewire.errors import SpikewireError, check_word
from spikewire.files import atomic_write
from spikewire.methods import METHODS
from spikewire.train.loop import Epoch, Step, fit


class Point(NamedTuple):
    """A target, and the highest published accuracy there; None where none is known."""

    unit: str
    target: float
    published: float | None = None
    system: str = ""


BOARD = {
    "cifar100-sew18": (
        Point("synapses", 0.036, 0.7045, "UPR, 9.6 M SynOps"),
        Point("synops", 9.6e6, 0.7045, "UPR, 3.6 % of synapses"),
    ),
    "cifar100-dpap": (
        Point("connectivity", 0.25, 0.7522, "CH-SNN at 25.6 %"),
        Point("connectivity", 0.05),
        Point("connectivity", 0.01),
    ),
    "cifar10-vgg16": (
        Point("connectivity", 0.1, 0.9184, "NDSNN"),
        Point("connectivity", 0.05, 0.9131, "NDSNN"),
        Point("connectivity", 0.02, 0.8962, "NDSNN"),
        Point("connectivity", 0.01, 0.8813, "NDSNN"),
    ),
    "cifar10-dpap": (Point("connectivity", 0.25, 0.9460, "CH-SNN at 25.4 %"),),
}


def selected(preset: str, words: str, methods: bool) -> list[Point]:
    """Return the points of a preset, or those of the comma list `words`; unknown ones are new."""
    if not words:
        return list(BOARD[preset])
    known = {point.target: point for point in BOARD[preset] if not methods}
    targets = [float(word) for word in words.split(",")]
    return [known.get(target, Point("connectivity", target)) for target in targets]


def few(data: Dataset, count: int) -> Dataset:
    """Return a data set of `count` images of all classes for training and for testing."""
    found: dict[str, torch.Tensor] = {}
    for part in ("train", "test"):
        images, labels = (getattr(data, f"{part}_{kind}") for kind in ("images", "labels"))
        spread = torch.linspace(0, len(labels) - 1, count).long()  # with the first and last class
        chosen = labels.argsort(stable=True)[spread]
        found |= {f"{part}_images": images[chosen], f"{part}_labels": labels[chosen]}
    return replace(data, **found)


def load(preset: str, limit: int) -> Dataset | None:
    """Return a small part of the preset's data set; None: `fit` loads all of it."""
    return few(datasets.load(resolve(preset).dataset), limit) if limit else None


def print_progress(event: Step | Epoch) -> None:
    """Print a line after every tested epoch."""
    if isinstance(event, Epoch) and event.row["accuracy"] is not None:
        row = event.row
        print(f"  epoch {row['epoch']}: {row['accuracy']:.2%}, loss {row['loss']:.3f}", flush=True)


def train(name: str, preset: str, flags: dict[str, str], runs: Path, limit: int) -> dict[str, Any]:
    """Train one run; return its results with the command that repeats it."""
    print(f"{name}: {' '.join(words_of(flags))}", flush=True)
    fit(
        resolve(preset, flags=flags), runs / name, data=load(preset, limit), progress=print_progress
    )
    row = record(runs / name)
    row["command"] = shlex.join(["spikewire", "train", "--preset", preset, *words_of(flags)])
    row |= {"preset": preset, "limit": limit or None}
    return row


def name_of(preset: str, method: str, point: Point, flags: dict[str, str]) -> str:
    """Return the name of a run, which is that of its directory and file."""
    held = "-held-out" if "hold_out" in flags else ""
    return f"{preset}-{method}-{point.unit}-{point.target:g}-seed{flags['seed']}{held}"


def table(found: dict[str, tuple[Point, dict[str, Any]]]) -> None:
    """Print the results beside the published ones."""
    print(f"{'run':52}{'accuracy':>9}{'weights':>9}{'synapses':>9}{'SynOps':>9}{'s':>7}  published")
    for name, (point, row) in found.items():
        cells = cells_of([row])
        beside = f"{point.published:.2%} {point.system}" if point.published else "none"
        print(f"{name:52}{row['accuracy']:>9.2%}{cells}  {beside}")


def cells_of(rows: list[dict[str, Any]]) -> str:
    """Return the means of weights, reached synapses, SynOps and seconds as columns."""
    weights, seconds = (fmean(row[key] for row in rows) for key in ("connectivity", "seconds"))
    measured = [row["measured"] for row in rows]
    synapses, synops = (
        fmean(row.get(key, float("nan")) for row in measured)
        for key in ("synapses_reached", "synops")
    )
    return f"{weights:>9.2%}{synapses:>9.2%}{synops / 1e6:>7.1f} M{seconds:>7.0f}"


def summary(folder: Path) -> None:
    """Print mean and standard deviation per point and method over the seeds in a directory."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*-seed*.json")):
        groups.setdefault(file.stem.partition("-seed")[0], []).append(json.loads(file.read_text()))
    print(f"{'point':46}{'accuracy':>16}{'n':>3}{'weights':>9}{'synapses':>9}{'SynOps':>9}{'s':>7}")
    for name, rows in groups.items():
        accuracies = [100 * row["accuracy"] for row in rows]
        spread = f" ± {stdev(accuracies):.2f}" if len(rows) > 1 else ""
        mean = f"{fmean(accuracies):.2f}{spread}"
        print(f"{name:46}{mean:>16}{len(rows):>3}{cells_of(rows)}")


def main() -> None:
    """Train the points, write the JSON files, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("preset", nargs="?", default="cifar100-sew18", help=", ".join(BOARD))
    parser.add_argument("--out", type=Path, default=Path("results/leaderboard"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="directory of the runs")
    parser.add_argument("--points", default="", help="comma list of targets (all)")
    parser.add_argument("--methods", default="budget", help="comma list of methods, or all")
    parser.add_argument("--limit", type=int, default=0, help="use only so many images; 0: all")
    parser.add_argument("--summary", action="store_true", help="only print means over seeds")
    arguments, more = parser.parse_known_args()
    if arguments.summary:
        summary(arguments.out)
        return
    check_word("preset", arguments.preset, BOARD)
    flags = {"seed": "0"} | parse_flags(more)
    methods = [*METHODS] if arguments.methods == "all" else arguments.methods.split(",")
    found: dict[str, tuple[Point, dict[str, Any]]] = {}
    for point in selected(arguments.preset, arguments.points, methods != ["budget"]):
        for method in methods:
            own = {"method": method}
            if point.unit in method_fields(method):  # dense and softdeepr have no target
                own[point.unit] = f"{point.target:g}"
            name = name_of(arguments.preset, method, point, flags)
            row = train(name, arguments.preset, own | flags, arguments.runs, arguments.limit)
            arguments.out.mkdir(parents=True, exist_ok=True)
            with atomic_write(arguments.out / f"{name}.json") as file:
                file.write(json.dumps(row, indent=1).encode() + b"\n")
            found[name] = point, row
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    table(found)


def parse_flags(words: list[str]) -> dict[str, str]:
    """Return ``--key value`` pairs as flags of `spikewire train`."""
    if len(words) % 2 or not all(word.startswith("--") for word in words[::2]):
        raise SpikewireError(f"flags: {' '.join(words)}: give --name value pairs")
    names = (word.removeprefix("--").replace("-", "_") for word in words[::2])
    return dict(zip(names, words[1::2], strict=True))


if __name__ == "__main__":
    try:
        main()
    except SpikewireError as error:
        sys.exit(f"leaderboard: {error}")
