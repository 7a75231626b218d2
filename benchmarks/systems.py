"""The systems of the Grad R paper's tables: train each row of docs/systems.md, and print the table.

    python benchmarks/systems.py --out runs/systems --jobs 6 rbm stdp      # rows that begin so
    python benchmarks/systems.py --out runs/systems --summary results/systems.json

The second command adds finished runs to the results, and writes the tables of docs/systems.md and
what `spikewire figures --paper` draws of them.

A row is one command of `spikewire train` and is run once per seed; finished runs are not repeated.
`--search` tests on 5,000 held-out training images instead of the test set, with other settings of a
row given as further words: ``--search lr=0.05 lr=0.1,plasticity=keep:0.4+momentum:0.8``.
"""

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from script import read_json, run_script

from spikewire.errors import SpikewireError, unknown

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "systems.md"
DRAWN = ROOT / "src" / "spikewire" / "report" / "systems.json"  # what the figure shows
BEGIN, END = "<!-- systems -->", "<!-- end -->"
CONVOLUTIONAL = "Table 2 of the paper: CIFAR-10"  # weights and synapses are two things
TABLES = {  # title of a table of the docs -> beginnings of the names of its rows
    "Table 1 of the paper: MNIST": ("rbm", "ecd", "lsnn", "wta", "stdp", "admm-mnist"),
    CONVOLUTIONAL: ("admm-cifar10",),
    "Other rows": ("",),
}
HEAD = ("row", "published", "accuracy, %", "n", "connectivity", "time per run", "`spikewire train`")
COSTS = ("synapses % (UPR's definition)", "SynOps per image")
OURS = ("accuracy", "connectivity")
FLAGS = "flags.txt"  # beside a run: how it was started, without seed and device


class Row(NamedTuple):
    """A row: our flags of `spikewire train`, and what was published: accuracy @ connectivity.

    In `published` the first number is an accuracy in %; without "@ ... %" it is that of a dense
    network. ``{dense}`` in the flags is the run of row "admm-cifar10-dense" with the same seed.
    """

    flags: str
    published: str = ""


STDP = "--preset mnist-diehl --hidden 1600 --epochs 10"
SHORT = "--preset mnist-fast --epochs 12"
SMALL = "--preset mnist-diehl --hidden 800 --epochs 10"  # Guo et al.'s number of neurons
ADMM = "--preset mnist-admm --epochs 14"
PULLED = "--preset cifar10-admm --start {dense} --epochs 20 --begin 0 --harden 0.5 --lr 5e-4"
MAGNITUDE = "--method magnitude --begin 0.3 --ramp 0.9"
BUDGET = "--method budget --ramp 0.9 --every 64 --per-neuron true"
LSNN = {
    "lsnn-dense": Row(
        "--preset seqmnist-lsnn --method dense --lr 3e-3 --epochs 70", "93.70 (Bellec)"
    ),
    "lsnn-12-deepr": Row(
        "--preset seqmnist-lsnn --method deepr --connectivity 0.12", "96.40 @ 12 % (Bellec)"
    ),
    "lsnn-12-deepr-long": Row(
        "--preset seqmnist-lsnn --method deepr --connectivity 0.12 --epochs 220",
        "96.40 @ 12 % (Bellec)",
    ),
    "lsnn-12-deepr-stairs": Row(
        "--preset seqmnist-lsnn --method deepr --connectivity 0.12 --lr 1e-2 --schedule stairs",
        "96.40 @ 12 % (Bellec)",
    ),
    "lsnn-12-budget": Row(
        "--preset seqmnist-lsnn --method budget --connectivity 0.12 --lr 5e-3 --epochs 70"
    ),
    "lsnn-12-budget-rescale": Row(
        "--preset seqmnist-lsnn --method budget --connectivity 0.12 --lr 5e-3 --epochs 70 "
        "--rescale true"
    ),
    "lsnn-3-budget": Row(
        "--preset seqmnist-lsnn --method budget --connectivity 0.03 --lr 5e-3 --epochs 70"
    ),
    "lsnn-3-budget-rescale": Row(
        "--preset seqmnist-lsnn --method budget --connectivity 0.03 --lr 5e-3 --epochs 70 "
        "--rescale true"
    ),
}
ROWS = {
    "rbm-dense": Row("--preset mnist-rbm", "95.60 (Neftci)"),
    "rbm-26": Row("--preset mnist-rbm --method magnitude", "95.00 @ 26 % (Neftci)"),
    "rbm-26-budget": Row("--preset mnist-rbm --method budget"),
    "ecd-dense": Row("--preset mnist-ecd"),
    "ecd-26": Row("--preset mnist-ecd --method magnitude"),
    **LSNN,
    "stdp-dense": Row(STDP, "93.20 (Rathi)"),
    "stdp-8": Row(f"{STDP} {MAGNITUDE} --connectivity 0.08", "91.50 @ 8 % (Rathi)"),
    "stdp-8-budget": Row(f"{STDP} {BUDGET} --connectivity 0.08"),
    "stdp-800-dense": Row(SMALL, "90.40 (Guo)"),
    "stdp-10-aptn": Row(
        f"{SMALL} --method aptn --adapt 1 --begin 0.3 --ramp 0.9 --connectivity 0.1",
        "86.53 @ 10 % (Guo)",
    ),
    "stdp-10-budget": Row(f"{SMALL} {BUDGET} --connectivity 0.1"),
    "wta-dense": Row("--preset mnist-wta", "94.05 (Shi)"),
    "wta-30": Row("--preset mnist-wta --method magnitude", "about 75 @ 30 % (Shi, conventional)"),
    "wta-30-soft": Row(
        "--preset mnist-wta --method soft --trained 0.3", "frozen, not removed (Shi)"
    ),
    "wta-30-budget": Row("--preset mnist-wta --method budget"),
    "admm-mnist-dense": Row(f"{ADMM} --method dense", "99.07 (Deng)"),
    "admm-mnist-25": Row(f"{ADMM} --connectivity 0.25", "96.84 @ 25 % (Deng)"),
    "admm-mnist-40": Row(f"{ADMM} --connectivity 0.4", "98.64 @ 40 % (Deng)"),
    "admm-mnist-50": Row(f"{ADMM} --connectivity 0.5", "99.10 @ 50 % (Deng)"),
    "admm-cifar10-dense": Row("--preset cifar10-admm --method dense", "89.53 (Deng)"),
    "admm-cifar10-10": Row(f"{PULLED} --connectivity 0.1", "85.68 @ 10 % (Deng)"),
    "admm-cifar10-25": Row(f"{PULLED} --connectivity 0.25", "87.37 @ 25 % (Deng)"),
    "admm-cifar10-50": Row(f"{PULLED} --connectivity 0.5", "89.15 @ 50 % (Deng)"),
    "tempotron-dense": Row("--preset mnist-tempotron --method dense --plasticity period:0"),
    "tempotron-gated": Row("--preset mnist-tempotron", "no figure on MNIST (Qi)"),
    "tempotron-gated-more": Row("--preset mnist-tempotron --plasticity offset:0.01,period:8"),
    "tempotron-magnitude-72": Row(
        "--preset mnist-tempotron --plasticity period:0 --method magnitude --connectivity 0.72"
    ),
    "tempotron-magnitude-47": Row(
        "--preset mnist-tempotron --plasticity period:0 --method magnitude --connectivity 0.47"
    ),
    "sampling": Row(f"{SHORT} --method sampling --expected 0.1", "no figure (Kappel)"),
    "sampling-deepr-13": Row(f"{SHORT} --method deepr --connectivity 0.13"),
    "similarity": Row(f"{SHORT} --method similarity --neurons 0.25", "no figure"),
    "similarity-unmerged": Row(f"{SHORT} --method similarity --neurons 0.25 --merge false"),
    "similarity-magnitude-25": Row(f"{SHORT} --method magnitude --connectivity 0.25"),
    "similarity-dense": Row(f"{SHORT} --method dense"),
    **{
        f"batch-{size}": Row(f"--preset mnist-diehl --epochs 3 --batch-size {size}")
        for size in (8, 32, 128, 512)
    },
}


def train(folder: Path, flags: list[str]) -> str:
    """Train one run unless it is finished; return a line about it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not finished(folder):
        out = ["--resume" if (folder / "config.toml").exists() else "--out", str(folder)]
        dense = str(folder.with_name(f"admm-cifar10-dense-seed{seed_of(folder)}"))
        words = out if out[0] == "--resume" else [*(x.format(dense=dense) for x in flags), *out]
        command = [sys.executable, "-m", "spikewire", "train", *words, "--quiet"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            return f"{folder.name}: {done.stderr.strip().splitlines()[-1:]}"
        (folder / FLAGS).write_text(" ".join(without(flags, "--seed", "--device", "--threads")))
    last = read(folder)
    accuracy, connectivity = 100 * last["accuracy"], 100 * last["connectivity"]
    return f"{folder.name}: {accuracy:.2f} % at {connectivity:.2f} %, {last['time']:.0f} s"


def without(flags: list[str], *names: str) -> list[str]:
    """Return flags, each with its value, without those of these names."""
    pairs = zip(flags[::2], flags[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in names for word in pair]


def finished(folder: Path) -> bool:
    """Return whether a run has its network."""
    return (folder / "model.safetensors").exists()


def read(folder: Path) -> dict[str, Any]:
    """Return seed, accuracy, connectivity and time of a finished run, and its costs if measured."""
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    time = sum(line["seconds"] for line in lines)
    found = {"seed": seed_of(folder), "time": time}
    found |= {key: lines[-1][key] for key in ("accuracy", "connectivity")}
    measured = lines[-1].get("measured") or {}
    return found | {
        key: measured[key] for key in ("synapses_reached", "synops") if measured.get(key)
    }


def seed_of(folder: Path) -> int:
    """Return the seed in the name of a run."""
    return int(folder.name.rpartition("-seed")[2])


def named(row: str, word: str) -> bool:
    """Return whether a word means a row: its name, or the beginning of several."""
    return row == word or (word not in ROWS and row.startswith(word))


def seeds(words: str) -> list[int]:
    """Return the seeds of a count, "3", or of a list, "1,2" or "2,"."""
    numbers = [int(word) for word in words.split(",") if word]
    return numbers if "," in words else list(range(*numbers))


def jobs(args: argparse.Namespace) -> list[tuple[Path, list[str]]]:
    """Return folder and flags of every run that the arguments name."""
    for word in args.rows:
        if not any(named(row, word) for row in ROWS):
            raise unknown("ROW", word, ROWS)
    found = []
    for name in [x for x in ROWS if not args.rows or any(map(partial(named, x), args.rows))]:
        for seed in args.seeds:
            for change in args.search or [""]:
                flags = [*shlex.split(ROWS[name].flags), "--seed", str(seed)]
                for pair in filter(None, change.split(",")):
                    key, _, value = pair.partition("=")
                    flags += [f"--{key}", value.replace("+", ",")]
                if args.search:
                    flags += ["--hold-out", "5000"]
                flags += shlex.split(args.flags)
                label = f"{name}-{change}-seed{seed}" if args.search else f"{name}-seed{seed}"
                found.append((args.out / label.replace(":", "_"), flags))
    return found


def summary(out: Path, file: Path) -> None:
    """Add the finished runs of every row to the results; write the tables and the figure's data."""
    table = read_json(file) if file.exists() else {}
    if other := sorted(table.keys() - ROWS.keys()):
        raise SpikewireError(f"{file}: is not a file of results of systems.py: has {other[0]!r}")
    for name in ROWS:
        if runs := [read(x) for x in sorted(out.glob(f"{name}-seed*")) if finished(x)]:
            table[name] = merged(table.get(name), flags_of(out, name), runs)
    if not table:
        raise SpikewireError(f"{file}: does not exist, and {out} has no finished runs")
    file.write_text(json.dumps(table, indent=1) + "\n")
    PAGE.write_text(fill(PAGE.read_text(), table))
    DRAWN.write_text(json.dumps(drawn(table), indent=1) + "\n")


def merged(known: dict[str, Any] | None, flags: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row with its runs by seed; known runs of other flags, and of these seeds, are left.

    Runs that were recorded without a seed have seeds from 0 on.
    """
    before = known["runs"] if known and known["flags"] == flags else []
    by_seed = {run.get("seed", i): run for i, run in enumerate(before)}
    by_seed |= {run["seed"]: run for run in runs}
    return {"flags": flags, "runs": [by_seed[seed] for seed in sorted(by_seed)]}


def flags_of(out: Path, name: str) -> str:
    """Return the flags of a row as its first finished run was started with them."""
    runs = sorted(out.glob(f"{name}-seed*"))
    return (next(filter(finished, runs)) / FLAGS).read_text()


def fill(page: str, table: dict[str, Any]) -> str:
    """Return the page with its tables replaced; rows without runs say so."""
    lines = []
    for title, names in by_table().items():
        costs = title == CONVOLUTIONAL
        head = (*HEAD[:5], *(COSTS if costs else ()), *HEAD[5:])
        lines += [f"### {title}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        lines += [*(line(x, ROWS[x], table.get(x), costs) for x in names), ""]
    before, _, rest = page.partition(f"{BEGIN}\n")
    return "\n".join([before + BEGIN, "", *lines, END + rest.partition(END)[2]])


def by_table() -> dict[str, list[str]]:
    """Return the names of the rows of each table; a row is in the first table that fits."""
    found: dict[str, list[str]] = {title: [] for title in TABLES}
    for name in ROWS:
        found[next(title for title, heads in TABLES.items() if name.startswith(heads))].append(name)
    return found


def drawn(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the figure shows of the rows of the paper's tables, in %."""
    rows = []
    for title, names in list(by_table().items())[:2]:
        for name in names:
            runs = table.get(name, {}).get("runs", [])
            ours = {key: 100 * statistics.mean(x[key] for x in runs) for key in OURS if runs}
            accuracies = [100 * x["accuracy"] for x in runs]
            if runs:
                deviation = statistics.stdev(accuracies) if runs[1:] else None
                ours |= {"deviation": deviation, "n": len(runs)}
            shown = {"dataset": title.rpartition(" ")[2], "published": point(ROWS[name].published)}
            rows.append({"row": name, **shown, "ours": ours or None})
    return rows


def point(published: str) -> dict[str, float] | None:
    """Return accuracy and connectivity, in %, of "95.00 @ 26 % (Neftci)" and the like."""
    found = re.search(r"(\d+(?:\.\d+)?)(?: @ (\d+(?:\.\d+)?) %)?", published)
    return found and {"accuracy": float(found[1]), "connectivity": float(found[2] or 100)}


def line(name: str, row: Row, found: dict[str, Any] | None, costs: bool = False) -> str:
    """Return a row of the table in Markdown; `costs` adds synapses and SynOps."""
    flags = found["flags"] if found else row.flags
    command = f"`{flags.format(dense='runs/systems/admm-cifar10-dense-seed0')}`"
    if not found:
        return (
            f"| {name} | {row.published} | not measured |{' |' * (5 if costs else 3)} {command} |"
        )
    runs = found["runs"]
    known = [key for key in runs[0] if all(key in run for run in runs)]
    mean = {key: statistics.mean(run[key] for run in runs) for key in known}
    spread = f" ± {100 * statistics.stdev(x['accuracy'] for x in runs):.2f}" if runs[1:] else ""
    cells = (name, row.published, f"{100 * mean['accuracy']:.2f}{spread}", str(len(runs)))
    more = [f"{100 * mean['connectivity']:.2f} %", f"{mean['time']:.0f} s", command]
    if costs:
        reached, synops = mean.get("synapses_reached"), mean.get("synops")
        synapses = f"{100 * reached:.2f} %" if reached else "unknown"
        more[1:1] = [synapses, f"{synops / 1e6:.1f} M" if synops else "unknown"]
    return f"| {' | '.join([*cells, *more])} |"


def main() -> None:
    """Train what is missing, or print what there is."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("rows", nargs="*", help="beginnings of names of rows; none: all")
    parser.add_argument("--out", type=Path, default=Path("runs/systems"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seeds", type=seeds, default="3", help="how many, or which: 1,2")
    parser.add_argument("--flags", default="", help="further flags of every run")
    parser.add_argument("--search", nargs="+", help="settings to compare on held-out images")
    parser.add_argument(
        "--summary",
        type=Path,
        metavar="FILE",
        help="add to the results, write the table of the docs, train nothing",
    )
    args = parser.parse_args()
    if args.summary:
        summary(args.out, args.summary)
        return
    with ThreadPoolExecutor(args.jobs) as pool:
        for text in pool.map(lambda job: train(*job), jobs(args)):
            print(text, flush=True)


if __name__ == "__main__":
    run_script(main)
