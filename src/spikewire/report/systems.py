"""The systems of the paper's Tables 1 and 2: published accuracies, and ours of docs/systems.md.

`systems.json` is written by ``benchmarks/systems.py --summary`` from `results/systems.json`.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.report.axes import set_left_title
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.runs import Run
from spikewire.report.style import WIDTH, Theme, colour

ROW, REST = 0.22, 1.1  # inches per row, and for title, legend and axis


def plot_systems(runs: Sequence[Run]) -> Plot:
    """Plot accuracies of the systems of Tables 1 and 2, published and ours, one line per row.

    Args:
        runs: Not used: these rows were measured once and are part of the package.
    """
    rows = [row for row in read_systems() if row["published"] or row["ours"]]
    tables = [[x for x in rows if x["dataset"] == name] for name in ("MNIST", "CIFAR-10")]

    def draw(figure: Figure, theme: Theme) -> None:
        heights = [len(table) for table in tables]
        panels = figure.subplots(len(tables), 1, height_ratios=heights)
        for axes, table in zip(panels, tables, strict=True):
            _draw_table(axes, table, theme)
        panels[0].legend(loc="lower left")
        panels[-1].set_xlabel("test accuracy, %")

    caption = (
        "Rows of docs/systems.md. Hollow grey markers are published results, filled ones ours, "
        "with the standard deviation over seeds; a row without a filled marker was not measured, "
        "and a row with neither is left out."
    )
    size = (WIDTH, ROW * len(rows) + REST)
    return Plot("systems", "Systems of Tables 1 and 2", caption, draw, rows, size)


def read_systems() -> list[dict[str, Any]]:
    """Return the rows: name, dataset, published and our accuracy and connectivity, in %."""
    return json.loads(files("spikewire.report").joinpath("systems.json").read_text("utf-8"))


def _draw_table(axes: Axes, table: Sequence[dict[str, Any]], theme: Theme) -> None:
    """Draw one line per row of a table, the first at the top."""
    for i, row in enumerate(table):
        if row["published"]:
            look: dict[str, Any] = {"color": theme.soft, "marker": "D", "mfc": "none", "ls": ""}
            marks = axes.plot(row["published"]["accuracy"], i, label=_once("published", i), **look)
            set_mark(marks, f"{row['row']}, published\n{_text(row['published'])}")
        if row["ours"]:
            look = {"color": colour(0), "marker": "o", "ls": "", "capsize": 3}
            ours = row["ours"]
            bars = axes.errorbar(ours["accuracy"], i, xerr=ours["deviation"], **look)
            set_mark(bars.get_children(), f"{row['row']}, n = {ours['n']}\n{_text(ours)}")
    axes.plot([], [], marker="o", ls="", color=colour(0), label="ours")
    axes.set_yticks(range(len(table)), [row["row"] for row in table])
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.grid(axis="x")
    set_left_title(axes, table[0]["dataset"])


def _once(label: str, i: int) -> str:
    """Return the label for the first row, so that a legend has it once."""
    return label if i == 0 else f"_{label}"


def _text(point: dict[str, float]) -> str:
    return f"accuracy {point['accuracy']:.2f} %, connectivity {point['connectivity']:.4g} %"
