"""Tables of benchmarks/leaderboard.py: its points, and the results beside the published figures."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from marked import replace_marked
from script import read_json

from spikewire.config import resolve


class Point(NamedTuple):
    """A target, and the highest published accuracy there; None where none is known."""

    unit: str
    target: float
    published: float | None = None
    system: str = ""


BOARD = {
    "cifar100-sew18": (
        Point("connectivity", 0.1),
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
NETWORKS = {
    "cifar100-sew18": "CIFAR-100, SEW-ResNet-18",
    "cifar100-dpap": "CIFAR-100, DPAP's network",
    "cifar10-vgg16": "CIFAR-10, VGG-16",
    "cifar10-dpap": "CIFAR-10, DPAP's network",
}

Row = dict[str, Any]


class Key(NamedTuple):
    """What the runs of one row of a table have in common; their seeds differ."""

    preset: str
    method: str
    unit: str
    target: float
    time_steps: int


KEYS = (
    *("preset", "method", "point", "accuracy", "connectivity", "measured"),
    *("seconds", "config", "command"),
)


def read(files: Iterable[Path]) -> dict[Key, list[Row]]:
    """Return the rows of JSON files, those of several seeds together, without held-out ones."""
    groups: dict[Key, list[Row]] = {}
    for file in sorted(files):
        row = read_json(file, KEYS)
        if row.get("hold_out"):
            continue
        unit, target = row["point"]
        key = Key(row["preset"], row["method"], unit, target, time_steps_of(row))
        groups.setdefault(key, []).append(row)
    return groups


def time_steps_of(row: Row) -> int:
    """Return the time steps of a run, which its tests have."""
    lines = dict(line.split(" = ") for line in row["config"] if line.count(" = ") == 1)
    return int(lines["time_steps"])


def published_at(key: Key) -> Point:
    """Return the point of a key, with the published figure where there is one."""
    found = key.unit, key.target
    known = (point for point in BOARD[key.preset] if point[:2] == found)
    return next(known, Point(*found))


def target_text(unit: str, target: float) -> str:
    """Return a target as text."""
    if unit == "synops":
        return f"{target / 1e6:g} M SynOps"
    return f"{100 * target:g} % of {'weights' if unit == 'connectivity' else unit}"


def accuracy_text(rows: Sequence[Row]) -> str:
    """Return mean and sample standard deviation of the accuracies, in %."""
    accuracies = [100 * row["accuracy"] for row in rows]
    spread = f" ± {stdev(accuracies):.2f}" if len(rows) > 1 else ""
    return f"{fmean(accuracies):.2f}{spread}"


def means(rows: Sequence[Row]) -> tuple[float, float, float, float]:
    """Return the means of weights, reached synapses, SynOps and seconds."""
    measured = [row["measured"] for row in rows]
    return (
        fmean(row["connectivity"] for row in rows),
        fmean(row["synapses_reached"] for row in measured),
        fmean(row["synops"] for row in measured),
        fmean(row["seconds"] for row in rows),
    )


# ------------------------------------------------------------------------------ terminal


def columns(rows: Sequence[Row]) -> str:
    """Return the means as columns of a terminal."""
    weights, synapses, synops, seconds = means(rows)
    return f"{weights:>9.2%}{synapses:>9.2%}{synops / 1e6:>7.1f} M{seconds:>7.0f}"


def table(found: dict[str, tuple[Point, Row]]) -> None:
    """Print single results beside the published ones."""
    print(f"{'run':52}{'accuracy':>9}{'weights':>9}{'synapses':>9}{'SynOps':>9}{'s':>7}  published")
    for name, (point, row) in found.items():
        beside = f"{point.published:.2%} {point.system}" if point.published else "none"
        print(f"{name:52}{row['accuracy']:>9.2%}{columns([row])}  {beside}")


def print_summary(folder: Path) -> None:
    """Print mean and standard deviation per point and method over the seeds in a directory."""
    print(f"{'point':46}{'accuracy':>16}{'n':>3}{'weights':>9}{'synapses':>9}{'SynOps':>9}{'s':>7}")
    for key, rows in read(folder.glob("*.json")).items():
        name = f"{key.preset}-{key.method}-{key.unit}-{key.target:g}"
        print(f"{name:46}{accuracy_text(rows):>16}{len(rows):>3}{columns(rows)}")


# ------------------------------------------------------------------------------ Markdown


def points_table(groups: dict[Key, list[Row]]) -> list[str]:
    """Return the lines of the table of points, each beside the published figure."""
    known: list[Key] = [
        Key(name, "budget", point.unit, point.target, resolve(name).time_steps)
        for name, points in BOARD.items()
        for point in points
    ]
    run = {key[:4] for key in groups}
    keys = sorted({*groups, *(key for key in known if key[:4] not in run)}, key=order)
    return [
        "| data, network | steps | target | weights % | synapses % | SynOps "
        "| accuracy %, mean ± std | n | minutes | published |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(point_line(key, groups.get(key, [])) for key in keys),
    ]


def order(key: Key) -> tuple[int, str, float, int]:
    """Return by what rows are sorted: the board's order, then unit, falling target, steps."""
    return list(BOARD).index(key.preset), key.unit, -key.target, -key.time_steps


def point_line(key: Key, rows: Sequence[Row]) -> str:
    """Return the line of one point, the higher of ours and the published figure in bold."""
    point = published_at(key)
    target = "none: dense" if key.method == "dense" else target_text(key.unit, key.target)
    cells = [NETWORKS[key.preset], str(key.time_steps), target]
    published = f"{100 * point.published:.2f}" if point.published else "none"
    if not rows:
        cells += ["", "", "", "not run", "0", ""]
    else:
        weights, synapses, synops, seconds = means(rows)
        own = accuracy_text(rows)
        if point.published and fmean(row["accuracy"] for row in rows) > point.published:
            own = f"**{own}**"
        elif point.published:
            published = f"**{published}**"
        cells += [f"{100 * weights:.2f}", f"{100 * synapses:.2f}", f"{synops / 1e6:.1f} M"]
        cells += [own, str(len(rows)), f"{seconds / 60:.1f}"]
    cells.append(f"{published} ({point.system})" if point.published else published)
    return f"| {' | '.join(cells)} |"


def methods_table(groups: dict[Key, list[Row]]) -> list[str]:
    """Return the lines of the comparison of methods: one row per method, three cells per target."""
    targets = sorted({(key.unit, key.target) for key in groups}, reverse=True)
    by_method: dict[str, dict[tuple[str, float], list[Row]]] = {}
    for key, rows in groups.items():
        by_method.setdefault(key.method, {})[key.unit, key.target] = rows

    def sparsest(method: str) -> tuple[float, ...]:
        cells = by_method[method]
        found = ([row["accuracy"] for row in cells.get(t, [])] for t in reversed(targets))
        return tuple(fmean(accuracies or [0.0]) for accuracies in found)

    heads = [f"{target_text(*target)} | synapses % | SynOps" for target in targets]
    lines = [f"| method | {' | '.join(heads)} | n per cell | seconds per run |"]
    lines.append("|---" * (3 * len(targets) + 3) + "|")
    without = [x for x in by_method if all(map(is_dense, by_method[x].values()))]
    for method in [*without, *sorted(by_method.keys() - {*without}, key=sparsest, reverse=True)]:
        cells = by_method[method]
        texts = [method_cells(cells.get(target), method in without) for target in targets]
        seconds = fmean(row["seconds"] for rows in cells.values() for row in rows)
        counts = sorted({len(rows) for rows in cells.values()})
        numbers = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        lines.append(f"| `{method}` | {' | '.join(texts)} | {numbers} | {seconds:.0f} |")
    return lines


def is_dense(rows: Sequence[Row]) -> bool:
    """Return whether almost all weights are left, as without a target."""
    return all(row["connectivity"] > 0.95 for row in rows)


def method_cells(rows: Sequence[Row] | None, without_target: bool) -> str:
    """Return accuracy, synapses and SynOps of a method at a target."""
    if rows is None:
        return " |  | " if without_target else "not run |  | "
    weights, synapses, synops, _ = means(rows)
    note = f" (no target: {100 * weights:.0f} %)" if without_target else ""
    return f"{accuracy_text(rows)}{note} | {100 * synapses:.1f} | {synops / 1e6:.1f} M"


def commands(groups: dict[Key, list[Row]]) -> list[str]:
    """Return the commands of the first seed of each point as a block of code."""
    found = [rows[0]["command"] for rows in groups.values()]
    return ["```", *dict.fromkeys(found), "```"]


def markdown(folder: Path) -> str:
    """Return the tables of a directory, and of its `methods`, as Markdown."""
    points, methods = (read(path.glob("*.json")) for path in (folder, folder / "methods"))
    lines = points_table(points)
    if points:
        lines += ["", *commands(points)]
    if methods:
        lines += ["", *methods_table(methods)]
    return "\n".join(lines).strip()


def write_docs(file: Path, folder: Path) -> None:
    """Replace what is between the marks in a Markdown file by the tables of a directory."""
    replace_marked(file, "leaderboard", markdown(folder))
