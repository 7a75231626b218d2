"""Tables of benchmarks/leaderboard.py: its points, and the results beside the published figures."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from marked import replace_marked
from script import read_json


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
    "cifar100-sew18": "CIFAR-100, SEW-ResNet-18, 4 steps",
    "cifar100-dpap": "CIFAR-100, DPAP's network, 8 steps",
    "cifar10-vgg16": "CIFAR-10, VGG-16, 5 steps",
    "cifar10-dpap": "CIFAR-10, DPAP's network, 8 steps",
}

Row = dict[str, Any]
Key = tuple[str, str, str, float]  # preset, method, unit, target
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
        groups.setdefault((row["preset"], row["method"], unit, target), []).append(row)
    return groups


def published_at(key: Key) -> Point:
    """Return the point of a key, with the published figure where there is one."""
    preset, _, unit, target = key
    known = (point for point in BOARD[preset] if point[:2] == (unit, target))
    return next(known, Point(unit, target))


def target_text(unit: str, target: float) -> str:
    """Return a target as text."""
    if unit == "synops":
        return f"{target / 1e6:g} M SynOps"
    return f"{100 * target:g} % of {'weights' if unit == 'connectivity' else unit}"


def target_of(key: Key, rows: Sequence[Row]) -> str:
    """Return the target of a row of the table; a dense network has none, and its own steps."""
    if key[1] != "dense":
        return target_text(*key[2:])
    lines = dict(line.split(" = ") for line in rows[0]["config"] if line.count(" = ") == 1)
    return f"none: dense, at {lines['time_steps']} steps"


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
    for (preset, method, unit, target), rows in read(folder.glob("*.json")).items():
        name = f"{preset}-{method}-{unit}-{target:g}"
        print(f"{name:46}{accuracy_text(rows):>16}{len(rows):>3}{columns(rows)}")


# ------------------------------------------------------------------------------ Markdown


def points_table(groups: dict[Key, list[Row]]) -> list[str]:
    """Return the lines of the table of points, each beside the published figure."""
    known: list[Key] = [
        (name, "budget", point.unit, point.target)
        for name, points in BOARD.items()
        for point in points
    ]
    keys = sorted({*groups, *known}, key=lambda key: (list(BOARD).index(key[0]), key[2], -key[3]))
    return [
        "| data, network | target | weights % | synapses % | SynOps | accuracy %, mean ± std | n "
        "| minutes | published |",
        "|---|---|---|---|---|---|---|---|---|",
        *(point_line(key, groups.get(key, [])) for key in keys),
    ]


def point_line(key: Key, rows: Sequence[Row]) -> str:
    """Return the line of one point; that of a point without a run has the published figure only."""
    point = published_at(key)
    beside = f"{100 * point.published:.2f} ({point.system})" if point.published else "none"
    cells = [NETWORKS[key[0]], target_of(key, rows)]
    if not rows:
        return f"| {' | '.join([*cells, '', '', '', 'not run', '0', '', beside])} |"
    weights, synapses, synops, seconds = means(rows)
    better = point.published and fmean(row["accuracy"] for row in rows) > point.published
    cells += [f"{100 * weights:.2f}", f"{100 * synapses:.2f}", f"{synops / 1e6:.1f} M"]
    cells += [f"**{accuracy_text(rows)}**" if better else accuracy_text(rows), str(len(rows))]
    return f"| {' | '.join([*cells, f'{seconds / 60:.1f}', beside])} |"


def methods_table(groups: dict[Key, list[Row]]) -> list[str]:
    """Return the lines of the comparison of methods: one row per method, one column per target."""
    targets = sorted({(key[2], key[3]) for key in groups}, reverse=True)
    by_method: dict[str, dict[tuple[str, float], list[Row]]] = {}
    for (_, method, unit, target), rows in groups.items():
        by_method.setdefault(method, {})[unit, target] = rows

    def first(method: str) -> float:
        cells = by_method[method]
        return fmean(row["accuracy"] for row in next(iter(cells.values())))

    heads = [target_text(*target) for target in targets]
    lines = [f"| method | {' | '.join(heads)} | n per cell | seconds per run |"]
    lines.append("|---" * (len(targets) + 3) + "|")
    for method in sorted(by_method, key=first, reverse=True):
        cells = by_method[method]
        texts = [accuracy_text(cells[t]) if t in cells else "" for t in targets]
        every = [row for rows in cells.values() for row in rows]
        if all(row["connectivity"] > 0.99 for row in every):
            texts = [f"{texts[0]} (no target: {100 * every[0]['connectivity']:.0f} %)", *texts[1:]]
        counts = sorted({len(rows) for rows in cells.values()})
        seconds = fmean(row["seconds"] for row in every)
        numbers = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        lines.append(f"| `{method}` | {' | '.join(texts)} | {numbers} | {seconds:.0f} |")
    return lines


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
