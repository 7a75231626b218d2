"""The networks and data sets of today's papers: accuracy beside the highest published one.

    python benchmarks/leaderboard.py cifar100-sew18 --out results/leaderboard
    python benchmarks/leaderboard.py cifar10-vgg16 --points 0.05,0.01 --seed 1 --epochs 40
    python benchmarks/leaderboard.py cifar10-vgg16 --chain                   # sparser from denser
    python benchmarks/leaderboard.py cifar100-sew18 --points 0.036 --dense   # from a dense teacher
    python benchmarks/leaderboard.py cifar100-sew18 --points 0.036 --search base price=0.5,lr=1e-3
    python benchmarks/leaderboard.py cifar100-sew18 --methods all --points 0.1,0.02
    python benchmarks/leaderboard.py --summary --out results/leaderboard
    python benchmarks/leaderboard.py --docs docs/results.md --out results/leaderboard

Every point is one run of `spikewire train --preset NAME` and writes one JSON file with command,
versions, settings and curves; other flags are passed to all runs. The accuracy is that of the last
epoch on the test set, or on held-out training images with `--hold-out`. To try it on a CPU, add
``--epochs 1 --limit 40 --batch-size 10 --width 0.02 --runs trial --out trial``.

`--chain` starts a sparser network from the next denser one, with settings of its own; `--dense`
trains a dense network first, from which all others start and are distilled. `--search` compares
settings on 5,000 held-out training images. `--methods` trains several methods at the same
connectivities, with the settings in `EQUAL`. A run of these two that fails is reported, and the
others still run. The same command again repeats no finished run and resumes one that was stopped;
one with other settings is refused where a run of that name exists. `--seconds` stops it in time.

`--summary` prints mean and standard deviation over the seeds found in the directory; `--docs`
writes them, beside the published figures, between the marks in a Markdown file.
"""

import argparse
import json
import math
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from leaderboard_tables import BOARD, Point, print_summary, table, write_docs
from script import read_json, require_folder, run_script
from time_to_accuracy import first_fraction, record, seconds_before

from spikewire import data as datasets
from spikewire.config import Config, method_fields, resolve, words_of
from spikewire.data import Dataset
from spikewire.errors import SpikewireError, TrainingFailed, check, check_word
from spikewire.files import atomic_write
from spikewire.methods import METHODS
from spikewire.runs.rundir import RunDir
from spikewire.train.loop import Epoch, Step, fit
from spikewire.train.signals import Interrupted

# for networks of their own: docs/systems.md
OTHERS = ("aptn", "gated", "soft", "sampling", "similarity")
FOR_IMAGES = [name for name in METHODS if name not in OTHERS]
EQUAL = {  # the recipe of a comparison of methods: nothing that one of them was tuned with
    "optimizer": "adam",
    "lr": "1e-3",
    "weight_decay": "0",
    "label_smoothing": "0",
    "augment": "crop:4,flip",
    "time_steps": "2",
    "early_time_steps": "0",
    "early": "0.8",
    "epochs": "20",
    "average": "0",
}
OWN = {
    "deepr": {"allocation": "erk"},  # as in the comparison on MNIST
    "budget": {"balance": "0.25", "every": "8"},  # the method's defaults, not the preset's
}
CHAIN = {  # of a run that starts from a denser one
    "cifar100-sew18": "epochs=90,ramp=0.4,lr=1e-3,early=0.65,"
    "augment=crop:4+flip+cutout:8,teacher=first,teacher-time-steps=2",
    "cifar10-vgg16": "epochs=40,ramp=0.5,lr=1e-3,early-time-steps=2,early=0.6,"
    "augment=crop:4+flip+cutout:8,teacher=first,teacher-time-steps=2",
    "cifar100-dpap": "epochs=36,ramp=0.5,lr=1e-3,early=0.6+0.85,augment=crop:4+flip+cutout:8",
}
DENSE = {  # of the dense network that is start and teacher
    "cifar100-sew18": "epochs=80,time-steps=2,early-time-steps=0,optimizer=sgd,lr=0.1,"
    "weight-decay=5e-4,augment=crop:4+flip+cutout:8"
}


class Run(NamedTuple):
    """One training: its point, name and flags."""

    point: Point
    name: str
    flags: dict[str, str]


def selected(preset: str, words: str, methods: bool = False) -> list[Point]:
    """Return the points of a preset, or those of the comma list `words`; unknown ones are new."""
    if not words:
        return list(BOARD[preset])
    known = {point.target: point for point in BOARD[preset] if not methods}
    try:
        targets = [float(word) for word in words.split(",")]
    except ValueError:
        raise SpikewireError(f"--points: {words!r} is not a comma list of numbers") from None
    return [known.get(target, Point("connectivity", target)) for target in targets]


def few(data: Dataset, count: int) -> Dataset:
    """Return a data set of at most `count` images of all classes for training and for testing."""
    found: dict[str, torch.Tensor] = {}
    for part in ("train", "test"):
        images, labels = (getattr(data, f"{part}_{kind}") for kind in ("images", "labels"))
        spread = torch.linspace(0, len(labels) - 1, min(count, len(labels)), dtype=torch.float64)
        chosen = labels.argsort(stable=True)[spread.round().long()]  # with the first and last class
        found |= {f"{part}_images": images[chosen], f"{part}_labels": labels[chosen]}
    return replace(data, **found)


def follow(until: float, event: Step | Epoch) -> bool:
    """Print a line after every tested epoch; return whether the time is over."""
    if isinstance(event, Epoch) and event.row["accuracy"] is not None:
        row = event.row
        print(f"  epoch {row['epoch']}: {row['accuracy']:.2%}, loss {row['loss']:.3f}", flush=True)
    return time.perf_counter() > until


def train(
    run: Run, preset: str, runs: Path, data: Dataset, limit: int = 0, until: float = math.inf
) -> dict[str, Any]:
    """Train one run, or what is left of it; return its results with the command that repeats it.

    Raises:
        Interrupted: after the time `until`; the state is saved.
        SpikewireError: the directory has a run with other settings.
    """
    print(f"{run.name}: {' '.join(words_of(run.flags))}", flush=True)
    start = time.perf_counter()
    path, config = runs / run.name, resolve(preset, flags=run.flags)
    folder = RunDir(path)
    if folder.started:
        require_same(folder, config)
    if not folder.finished:
        seconds_before(config)  # raises before the training, not after it
        fit(config, path, data=data, resume=folder.started, progress=partial(follow, until))
    row = record(path) | {"command": command_of(run, preset)}
    row |= {"preset": preset, "method": run.flags["method"], "point": run.point[:2]}
    row |= {"limit": limit or None, "hold_out": int(run.flags.get("hold_out", 0)) or None}
    row["wall_seconds"] = round(time.perf_counter() - start, 1)  # of this call, with compiling
    print(f"  {row['accuracy']:.2%} in {row['wall_seconds']:.0f} s", flush=True)
    return row


def require_same(folder: RunDir, config: Config) -> None:
    """Raise if a run directory has other settings than these."""
    here, wanted = (each.to_toml().splitlines() for each in (folder.config(), config))
    other = [line for line in here if line not in wanted]
    missing = [f"not {line}" for line in wanted if line not in here]  # None is left out in TOML
    if other or missing:
        raise SpikewireError(
            f"{folder.path}: is a run with other settings ({', '.join(other or missing)}); "
            "delete it or choose another --runs"
        )


def command_of(run: Run, preset: str) -> str:
    """Return the command that repeats a run."""
    return shlex.join(["spikewire", "train", "--preset", preset, *words_of(run.flags)])


def finished_row(run: Run, preset: str, runs: Path, file: Path) -> dict[str, Any] | None:
    """Return the recorded results of a finished run, None where it is to be trained or recorded."""
    if not (RunDir(runs / run.name).finished and file.exists()):
        return None
    row = read_json(file)
    return row if row.get("command") == command_of(run, preset) else None


# ------------------------------------------------------------------------------ which runs


def name_of(preset: str, method: str, point: Point, flags: dict[str, str]) -> str:
    """Return the name of a run, which is that of its directory and file."""
    steps = f"-{flags['time_steps']}steps" if "time_steps" in flags else ""
    held = "-held-out" if "hold_out" in flags else ""
    return f"{preset}-{method}-{point.unit}-{point.target:g}{steps}-seed{flags['seed']}{held}"


def of_points(preset: str, points: list[Point], flags: dict[str, str]) -> Iterator[Run]:
    """Yield one run of `budget` per point."""
    for point in points:
        own = {"method": "budget", point.unit: f"{point.target:g}"}
        yield Run(point, name_of(preset, "budget", point, flags), own | flags)


def of_chain(
    preset: str, points: list[Point], flags: dict[str, str], runs: Path, later: str
) -> Iterator[Run]:
    """Yield one run per point, from the densest on; each starts from the one before.

    Targets in SynOps come last. `later` are settings of all runs but the first; with
    ``teacher=first`` they are distilled from it.
    """
    first, before = "", None
    for run in of_points(preset, sorted(points, key=lambda x: (x.target > 1, -x.target)), flags):
        more: dict[str, str] = {}
        if before is not None:
            more = {"start": str(before), "first": first_fraction(before, *run.point[:2])}
            more |= parse_settings(later)
            if more.get("teacher") == "first":
                more["teacher"] = first
        yield run._replace(flags=run.flags | more)
        before = runs / run.name
        first = first or str(before)


def of_dense(
    preset: str, points: list[Point], flags: dict[str, str], runs: Path, first: str
) -> Iterator[Run]:
    """Yield a dense network with settings of its own, then one run per point.

    These start from its weights and are distilled from it; a teacher among the flags teaches all.
    """
    point = Point("connectivity", 1.0)
    name = name_of(preset, "dense", point, flags | parse_settings(first))
    own = {key: flags[key] for key in flags if key not in ("epochs", *method_fields("budget"))}
    yield Run(point, name, {"method": "dense"} | own | parse_settings(first))
    path = str(runs / name)
    for run in of_points(preset, points, flags):
        yield run._replace(flags={"teacher": path} | run.flags | {"start": path})


def of_methods(
    preset: str, points: list[Point], flags: dict[str, str], methods: list[str]
) -> Iterator[Run]:
    """Yield one run per method and point; one without a target has one run in total."""
    for i, point in enumerate(points):
        for method in methods:
            has_target = point.unit in method_fields(method)
            if has_target or i == 0:
                target = {point.unit: f"{point.target:g}"} if has_target else {}
                own = {"method": method} | target | EQUAL | OWN.get(method, {})
                yield Run(point, name_of(preset, method, point, flags), own | flags)


def of_search(
    preset: str, points: list[Point], flags: dict[str, str], searched: list[str]
) -> Iterator[Run]:
    """Yield one run per point and variant, tested on held-out images."""
    flags = {"hold_out": "5000"} | flags
    for run in of_points(preset, points, flags):
        for variant in searched:
            name = f"{run.name}-{variant.replace('/', '_')}"
            yield Run(run.point, name, run.flags | parse_settings(variant))


def parse_settings(words: str) -> dict[str, str]:
    """Return ``name=value,name=value`` as flags; ``+`` is the comma of a list; "base" is none."""
    pairs = [word.partition("=") for word in words.split(",") if word not in ("", "base")]
    return {name.replace("-", "_"): value.replace("+", ",") for name, _, value in pairs}


def parse_flags(words: list[str]) -> dict[str, str]:
    """Return ``--key value`` pairs as flags of `spikewire train`."""
    if len(words) % 2 or not all(word.startswith("--") for word in words[::2]):
        raise SpikewireError(f"flags: {' '.join(words)}: give --name value pairs")
    names = (word.removeprefix("--").replace("-", "_") for word in words[::2])
    return dict(zip(names, words[1::2], strict=True))


def runs_of(arguments: argparse.Namespace, flags: dict[str, str]) -> Iterator[Run]:
    """Yield the runs that the arguments ask for."""
    preset = arguments.preset
    check_word("preset", preset, BOARD)
    points = selected(preset, arguments.points, bool(arguments.methods))
    if arguments.methods:
        every = arguments.methods == "all"
        methods = FOR_IMAGES if every else arguments.methods.split(",")
        for method in methods:
            check_word("method", method, METHODS)
        return of_methods(preset, points, flags, methods)
    if arguments.search:
        return of_search(preset, points, flags, arguments.search)
    if arguments.dense is not None:
        first = arguments.dense or DENSE.get(preset, "")
        return of_dense(preset, points, flags, arguments.runs, first)
    if arguments.chain is not None:
        later = arguments.chain or CHAIN.get(preset, "")
        return of_chain(preset, points, flags, arguments.runs, later)
    return of_points(preset, points, flags)


def train_all(arguments: argparse.Namespace, flags: dict[str, str]) -> None:
    """Train the runs, write the JSON files, print the table."""
    found: dict[str, tuple[Point, dict[str, Any]]] = {}
    until = time.perf_counter() + arguments.seconds
    runs = runs_of(arguments, flags)
    check(arguments.limit >= 0, "--limit", arguments.limit, "0 or more")
    data = datasets.load(resolve(arguments.preset).dataset)
    data = few(data, arguments.limit) if arguments.limit else data
    for run in runs:
        file = arguments.out / f"{run.name}.json"
        if row := finished_row(run, arguments.preset, arguments.runs, file):
            found[run.name] = run.point, row
            continue
        if time.perf_counter() > until:
            print(f"{run.name}: not started after {arguments.seconds:.0f} s", flush=True)
            break
        try:
            row = train(run, arguments.preset, arguments.runs, data, arguments.limit, until)
        except Interrupted:
            if time.perf_counter() < until:
                raise
            print("  stopped; the same command again resumes", flush=True)
            break
        except (SpikewireError, TrainingFailed) as error:
            if not (arguments.methods or arguments.search):
                raise
            print(f"  failed: {error}", flush=True)
            continue
        arguments.out.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as stream:
            stream.write(json.dumps(row, indent=1).encode() + b"\n")
        found[run.name] = run.point, row
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    table(found)


def main() -> None:
    """Train the points, or only print or write what is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("preset", nargs="?", default="cifar100-sew18", help=", ".join(BOARD))
    parser.add_argument("--out", type=Path, default=Path("results/leaderboard"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="directory of the runs")
    parser.add_argument("--points", default="", help="comma list of targets (all)")
    parser.add_argument(
        "--chain",
        nargs="?",
        const="",
        metavar="NAME=VALUE,...",
        help="start from the run of a denser point, with these settings",
    )
    parser.add_argument(
        "--dense",
        nargs="?",
        const="",
        metavar="NAME=VALUE,...",
        help="train a dense network first, with these settings: start and teacher of the others",
    )
    parser.add_argument("--methods", default="", help="comma list of methods, or all")
    parser.add_argument("--search", nargs="+", default=[], help="name=value,name=value; base: none")
    parser.add_argument("--limit", type=int, default=0, help="use only so many images; 0: all")
    parser.add_argument("--seconds", type=float, default=math.inf, help="save and stop after these")
    parser.add_argument("--summary", action="store_true", help="only print means over seeds")
    parser.add_argument("--docs", type=Path, help="only write the tables into this file")
    arguments, more = parser.parse_known_args()
    if arguments.summary or arguments.docs:
        require_folder("--out", arguments.out)
        check(not more, "flags", " ".join(more), "left out with --summary and --docs")
    if arguments.summary:
        print_summary(arguments.out)
    elif arguments.docs:
        write_docs(arguments.docs, arguments.out)
    else:
        train_all(arguments, {"seed": "0"} | parse_flags(more))


if __name__ == "__main__":
    run_script(main)
