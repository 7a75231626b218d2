"""CIFAR-10, the paper's network: accuracy and training time at the published points.

    python benchmarks/time_to_accuracy.py --out results/cifar10           # each from scratch
    python benchmarks/time_to_accuracy.py --out results/cifar10 --chain   # sparser from denser
    python benchmarks/time_to_accuracy.py --out results/cifar10 --chain --seed 1
    python benchmarks/time_to_accuracy.py --out results/cifar10 --chain --points synapses-0.054
    python benchmarks/time_to_accuracy.py --out results/cifar10 --chain --zoo cifar10-2.23 --seed 2
    python benchmarks/time_to_accuracy.py --out results/cifar10 --record runs/a runs/b
    python benchmarks/time_to_accuracy.py --out results/cifar10 --summary

Every point is one `spikewire train` and writes one JSON file; other flags are passed to all runs.
With `--zoo` the points that follow 2.23 % start from that network of the zoo.
The same command again repeats no finished run and resumes one that was stopped; `--seconds` stops
it in time.
`--summary` prints mean and standard deviation over the seeds found in the directory.
The last column is the speed relative to SpikingJelly 2.0, from the time of its training step
(multi-step, bf16, channels-last) measured in this run, for the same images and time steps.
"""

import argparse
import json
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from ann_teacher import recorded
from script import read_json, require_folder, run_script

from spikewire.config import Config
from spikewire.data.reference import is_python
from spikewire.errors import SpikewireError
from spikewire.files import atomic_write
from spikewire.runs.rundir import RunDir
from spikewire.train.unpack import is_packed
from spikewire.zoo import card
from spikewire.zoo.cards import PREFIX

IN_ZOO = "0.0223"  # the point that the zoo has a network of
STAGES = ("first-", "taught-")  # of points that share their target with another


class Point(NamedTuple):
    """The highest published accuracy of this network at a target, and the time limit."""

    target: float
    accuracy: float
    seconds: int
    start: str | None = None  # the point, or zoo:NAME, that it starts from with --chain
    flags: str = ""  # flags of a run that starts there
    unit: str = "connectivity"
    stage: str = ""  # one of STAGES

    @property
    def label(self) -> str:
        """The target, with its unit where it does not count weights."""
        unit = "" if self.unit == "connectivity" else f"{self.unit}-"
        return f"{self.stage}{unit}{self.target:g}"


LATER = "--lr 1e-3 --early-time-steps 4 --early 0.85"
SMALL = f"{LATER} --augment crop:4,flip,cutout:8 --dropout 0.1"  # where capacity is small
LAST = "--lr 5e-4 --early-time-steps 0 --early 0.8 --augment crop:4,flip,cutout:8 --dropout 0.1"
TAUGHT = f"--epochs 30 {LAST} --teacher benchmarks/ann_teacher.py:cifar10 --teacher-weight 0.6"
COSTS = "--balance 0.1 --price 0.2"  # where positions are counted: fewer weights of conv1
PUPIL = "--teacher benchmarks/ann_teacher.py:cifar10 --teacher-weight 0.8"
STRONG = f"{PUPIL} --augment crop:4,flip,trivial,cutmix --dropout 0.2"
MEDIUM = f"{PUPIL} --augment crop:4,flip,trivial --dropout 0.1"
LIGHT = f"{PUPIL} --augment crop:4,flip,cutout:8 --dropout 0.1"


def taught(target: float, accuracy: float, start: str, flags: str) -> Point:
    """Return a point in weights that a ReLU network teaches."""
    return Point(target, accuracy, 1800, start, flags, stage="taught-")


def of_synapses(target: float, accuracy: float, start: str, flags: str, stage: str = "") -> Point:
    """Return a point whose budget is a fraction of the synapses."""
    return Point(target, accuracy, 1800, start, f"{flags} {COSTS}", "synapses", stage)


POINTS = (
    Point(0.0508, 0.9203, 600),
    Point(0.0223, 0.9249, 1200, "0.0508", f"--epochs 95 --ramp 0.4 {LATER}"),
    Point(0.0099, 0.9106, 1200, "0.0223", f"--epochs 30 --ramp 0.5 {LATER}"),
    Point(0.00746, 0.9021, 1200, "0.0223", f"--epochs 36 --ramp 0.5 {LATER}"),
    of_synapses(0.054, 0.9249, "0.0223", f"--epochs 46 --ramp 0.5 {LATER}"),
    of_synapses(0.0116, 0.9205, "0.0223", f"--epochs 76 --ramp 0.5 {SMALL}", "first-"),
    of_synapses(0.0116, 0.9205, "first-synapses-0.0116", f"--epochs 25 {LAST}"),
    of_synapses(0.0116, 0.9205, "synapses-0.0116", TAUGHT, "taught-"),
    of_synapses(0.0063, 0.9065, "first-synapses-0.0116", f"--epochs 34 --ramp 0.5 {SMALL}"),
    taught(
        0.0508,
        0.9203,
        "zoo:cifar10-2.23",
        f"--epochs 76 --early-time-steps 2,4 --early 0.45,0.78 {STRONG}",
    ),
    taught(
        0.0223,
        0.9249,
        "taught-0.0508",
        f"--epochs 24 --ramp 0.4 --lr 1e-3 --early-time-steps 4 --early 0.6 {STRONG}",
    ),
    taught(
        0.0099,
        0.9106,
        "taught-0.0223",
        f"--epochs 26 --ramp 0.4 --lr 1e-3 --early-time-steps 4 --early 0.6 {MEDIUM}",
    ),
    taught(
        0.00746,
        0.9021,
        "taught-0.0099",
        f"--epochs 14 --ramp 0.4 --lr 1e-3 --early-time-steps 4 --early 0.5 {MEDIUM}",
    ),
    of_synapses(
        0.054,
        0.9249,
        "zoo:cifar10-2.23",
        f"--epochs 36 --ramp 0.5 --lr 1e-3 --early-time-steps 4 --early 0.65 {MEDIUM}",
        "taught-",
    ),
    of_synapses(
        0.0053,
        0.9065,
        "zoo:cifar10-synapses-1.16",
        f"--epochs 36 --ramp 0.4 --lr 1e-3 --early-time-steps 4 --early 0.5 {LIGHT}",
        "taught-",
    ),
)


def run_path(runs: Path, label: str, seed: int) -> Path:
    """Return the run directory of a point."""
    stage = next((word for word in STAGES if label.startswith(word)), "")
    name = f"{stage}budget-{label.removeprefix(stage)}"
    return runs / (name + (f"-seed{seed}" if seed else ""))


def train(
    point: Point, args: argparse.Namespace, flags: list[str], until: float = math.inf
) -> Path:
    """Train one point, unless it is finished, until a time; return its run directory."""
    runs, seed = args.runs, args.seed
    run = run_path(runs, point.label, seed)
    if RunDir(run).finished:
        print(f"{run}: has finished before", flush=True)
        return run
    if RunDir(run).started:
        own = point.flags.split() if args.chain else []
        call(["--resume", str(run), *python_flags([*own, *flags])], until)
        return run
    words = ["--preset", "cifar10-fast", f"--{point.unit}", f"{point.target:g}"]
    words += ["--seed", str(seed)]
    if args.chain and point.start:
        start = str(run_path(runs, point.start, seed))
        if point.start.startswith(PREFIX):
            start = point.start
        elif args.zoo and point.start == IN_ZOO:
            start = f"{PREFIX}{args.zoo}"
        words += ["--start", start, "--first", first_fraction(start, point.unit, point.target)]
        words += point.flags.split()
    call([*words, *flags, "--out", str(run)], until)
    return run


def python_flags(flags: list[str]) -> list[str]:
    """Return the flags that name a Python file, which a resumed run executes only if named again.

    Args:
        flags: ``--name value`` pairs.
    """
    named = (pair for pair in zip(flags[::2], flags[1::2], strict=False) if is_python(pair[1]))
    return [word for pair in named for word in pair]


def call(words: list[str], until: float) -> None:
    """Run `spikewire train`; after a time, let it save its state and stop."""
    if time.perf_counter() > until:
        raise SpikewireError("--seconds: have passed; the same command again continues")
    process = subprocess.Popen([sys.executable, "-m", "spikewire", "train", *words])
    try:
        process.wait(None if until == math.inf else until - time.perf_counter())
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        raise SpikewireError("--seconds: stopped; the same command again resumes") from None
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)


def fraction(run: str | Path, unit: str) -> float:
    """Return the fraction of a unit that a finished run, or a network of the zoo, has."""
    if str(run).startswith(PREFIX):
        return getattr(card(str(run)), unit)
    row = RunDir.open(run).history()[-1]
    return row["connectivity"] if unit == "connectivity" else row["measured"][unit]


def first_fraction(start: str | Path, unit: str, target: float) -> str:
    """Return `--first` of a run: what its start has of the unit, 4 digits, at least the target.

    With a target in SynOps or bytes `--first` is a fraction of the weights.
    """
    if unit in ("synops", "bytes"):
        unit, target = "connectivity", 0.0
    return f"{max(float(f'{fraction(start, unit):.4g}'), target):g}"


def points(arguments: argparse.Namespace, flags: list[str]) -> Iterator[Path]:
    """Train the selected points, or all if none is named, and yield each run when it is done."""
    selected = {word for word in arguments.points.split(",") if word}
    if unknown := selected - {point.label for point in POINTS}:
        labels = ", ".join(point.label for point in POINTS)
        raise SpikewireError(f"--points: {', '.join(sorted(unknown))}: expected some of {labels}")
    until = time.perf_counter() + arguments.seconds
    for point in POINTS:
        if not selected or point.label in selected:
            yield train(point, arguments, flags, until)


def record(run: Path) -> dict[str, Any]:
    """Return the results of a finished run, and all that is needed to repeat it."""
    folder = RunDir.open(run)
    if not folder.finished:
        raise SpikewireError(f"{run}: is not a finished run")
    config, rows = folder.config(), folder.history()
    env = read_json(run / "env.json")
    seconds = seconds_by_run(str(run))
    keys = ("epoch", "loss", "accuracy", "connectivity", "seconds")
    return {
        "accuracy": rows[-1]["accuracy"],
        "connectivity": rows[-1]["connectivity"],
        "seed": config.seed,
        "seconds": round(sum(seconds.values()), 2),  # from scratch, with the runs it needs
        "seconds_alone": round(seconds[str(run)], 2),
        "start": Path(config.start).name or None,
        "teacher": Path(config.teacher).name or None,
        "teacher_accuracy": recorded(name, "accuracy")
        if (name := ann_teacher(config.teacher))
        else None,
        "command": shlex.join(["spikewire", *env["command"][1:]]),
        "machine": env["device"],
        "versions": {key: env[key] for key in ("python", "torch", "spikewire", "commit")},
        "config": config.to_toml().splitlines(),
        "measured": {k: v for k, v in rows[-1].get("measured", {}).items() if k != "firing"},
        "curve": {key: [_short(row[key]) for row in rows] for key in keys},
    }


def ann_teacher(teacher: str) -> str:
    """Return the name of the function of ann_teacher.py that returns a teacher, "" for others."""
    file, _, function = teacher.rpartition(":")
    return function if Path(file).name == "ann_teacher.py" else ""


def seconds_by_run(run: str) -> dict[str, float]:
    """Return how long a run took, and each network that it starts from or learns from.

    Those whose time is not known are left out: other packed files than those of the zoo, and
    teachers that a Python function returns, but for ann_teacher.py.
    """
    if is_python(run):
        return {run: recorded(function, "seconds")} if (function := ann_teacher(run)) else {}
    if run.startswith(PREFIX):
        seconds = card(run).seconds
        return {} if seconds is None else {run: seconds}
    if is_packed(run):
        return {}
    folder = RunDir.open(run)
    own = {run: float(sum(row["seconds"] for row in folder.history()))}
    return own | seconds_before(folder.config())


def seconds_before(config: Config) -> dict[str, float]:
    """Return how long the networks took that a run of these settings starts from or learns from."""
    found: dict[str, float] = {}
    for other in filter(None, (config.start, config.teacher)):
        found |= seconds_by_run(other)
    return found


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def peer_rate() -> float:
    """Return SpikingJelly's samples per second at 8 time steps, batch 128, not compiled."""
    from gpu_step import Bench, spikingjelly_eager

    bench = Bench(cpu=not torch.cuda.is_available(), seconds=120)
    spikingjelly_eager(bench)
    return bench.rows[-1]["samples_per_s"]


def peer_seconds(config: Config, rate: float) -> float:
    """Return SpikingJelly's seconds for the same images; time is proportional to time steps."""
    counts, ends = (*config.early_time_steps, 0), (*config.early, 1.0)
    begin, steps = 0.0, 0.0
    for count, end in zip(counts, ends, strict=True):
        begin, steps = end, steps + (count or config.time_steps) * (end - begin)
    return 50_000 * config.epochs * steps / 8 / rate


def table(found: dict[str, tuple[dict[str, Any], Config]], rate: float | None) -> None:
    """Print the results next to the published accuracy and the time limit."""
    print(f"{'run':30}{'accuracy':>10}{'connect.':>10}{'seconds':>9}{'target':>22}{'x SJ':>7}")
    for name, (row, config) in found.items():
        targets = [p for p in POINTS if name.startswith(run_path(Path(), p.label, 0).name)]
        target = f"{targets[0].accuracy:.2%} in {targets[0].seconds} s" if targets else ""
        ratio = f"{peer_seconds(config, rate) / row['seconds_alone']:.2f}" if rate else ""
        print(
            f"{name:30}{row['accuracy']:>10.2%}{row['connectivity']:>10.3%}"
            f"{row['seconds']:>9.0f}{target:>22}{ratio:>7}"
        )


def summary(folder: Path) -> None:
    """Print mean and sample standard deviation per point over the JSON files of all seeds."""
    head = f"{'point':>24}{'weights':>10}{'accuracy':>16}{'n':>3}{'reached':>10}{'alive':>10}"
    print(f"{head}{'SynOps':>10}{'seconds':>9}")
    for point in POINTS:
        name = run_path(folder, point.label, 0).name
        files = {*folder.glob(f"{name}.json"), *folder.glob(f"{name}-seed*.json")}
        rows = [read_json(file, ("accuracy", "connectivity")) for file in sorted(files)]
        if rows:
            accuracies = [100 * row["accuracy"] for row in rows]
            spread = f" ± {stdev(accuracies):.2f}" if len(rows) > 1 else ""
            reached = mean_measured(rows, "synapses_reached")
            alive = mean_measured(rows, "synapses_alive", "synapse_connectivity")
            whole = [row for row in rows if "measured" in row]  # others have only an accuracy
            synops = fmean(row["measured"]["synops"] for row in whole) / 1e6
            seconds = fmean(row["seconds"] for row in whole)
            print(
                f"{point.label:>24}{fmean(row['connectivity'] for row in rows):>10.3%}"
                f"{f'{fmean(accuracies):.2f}{spread}':>16}{len(rows):>3}"
                f"{reached:>10}{alive:>10}{synops:>8.1f} M{seconds:>9.0f}"
            )


def mean_measured(rows: list[dict[str, Any]], *names: str) -> str:
    """Return the mean of a measured fraction, in %; files before a change have its older name."""
    measured = [row.get("measured", {}) for row in rows]
    found = [row[name] for row in measured for name in names if name in row]
    return f"{fmean(found):.2%}" if found else "–"


def main() -> None:
    """Train the points or read finished runs; write the JSON files; print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="directory of the JSON files")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="directory of the runs")
    parser.add_argument("--chain", action="store_true", help="start from the run of a denser point")
    parser.add_argument("--zoo", default="", help="network of the zoo in place of that of 2.23 %%")
    parser.add_argument("--record", type=Path, nargs="+", default=[], help="finished runs to write")
    parser.add_argument("--points", default="", help="comma list of points (all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs (default 0)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="save and stop after these")
    parser.add_argument("--summary", action="store_true", help="only print means over seeds")
    parser.add_argument("--peer", action="store_true", help="time SpikingJelly for the ratio")
    arguments, flags = parser.parse_known_args()
    if arguments.summary:
        require_folder("--out", arguments.out)
        summary(arguments.out)
        return
    found = {}
    for run in arguments.record or points(arguments, flags):
        row = record(run)
        arguments.out.mkdir(parents=True, exist_ok=True)
        with atomic_write(arguments.out / f"{run.name}.json") as file:
            file.write(json.dumps(row, indent=1).encode() + b"\n")
        found[run.name] = row, RunDir.open(run).config()
    table(found, peer_rate() if arguments.peer else None)


if __name__ == "__main__":
    try:
        run_script(main)
    except subprocess.CalledProcessError as error:  # spikewire train has printed why
        raise SystemExit(error.returncode) from None
