"""Figures of recorded results next to published ones: accuracy against weights and synapses."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.data import title_of
from spikewire.report.axes import set_log_scale
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.published import AT_MOST, DENSE, Points, marker_of, published_in
from spikewire.report.results import Result, read_results
from spikewire.report.style import FINE, Theme, style_of

PANELS = {"connectivity": "weights, %", "synapses": "synapses, %"}
BELOW, ABOVE = 3.0, 0.4  # points of accuracy that are shown below our lowest and above the highest
PANEL, LEGEND, HIGH = 4.3, 2.6, 4.8  # inches
BELOW_PANELS = {"loc": "outside lower center", "ncols": 3}  # the legend of several panels
ARROW = 1.25  # factor of x
LATER = "soDs"  # markers of the third line of a method, and of those after it, from index 2 on


def plot_results(folder: str | Path) -> list[Plot]:
    """Return one figure per data set that has published results to compare with.

    Args:
        folder: See `read_results`.

    Returns:
        The figures: accuracy against weights, and against synapses where both sides are known.

    Raises:
        SpikewireError: A file is damaged, or there is no result.

    Example:
        >>> save_figures(plot_results("results"), "docs/figures")
    """
    results = read_results(folder)
    names = dict.fromkeys(result.dataset for result in results)
    return [_plot([x for x in results if x.dataset == name]) for name in names if name in DENSE]


def _plot(results: Sequence[Result]) -> Plot:
    dataset = results[0].dataset
    panels = [unit for unit in PANELS if _lines(results, unit) and published_in(unit, dataset)]
    beside = len(panels) == 1

    def draw(figure: Figure, theme: Theme) -> None:
        all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        entries: dict[str, Artist] = {}
        for axes, unit in zip(all_axes, panels, strict=True):
            _draw_panel(axes, results, unit, theme)
            lines, labels = axes.get_legend_handles_labels()
            entries |= dict(zip(labels, lines, strict=True))
        place: dict[str, Any] = {"loc": "outside right center"} if beside else BELOW_PANELS
        figure.legend(entries.values(), entries.keys(), **place)
        all_axes[0].set_ylabel(f"test accuracy on {title_of(dataset)}, %")

    caption = (
        "Accuracy after the last epoch against the weights, and the synapses, that a network has; "
        "bars are standard deviations over seeds, hollow grey markers published results. An arrow "
        "marks a bound: of synapses reached from the input, those on a path to the output are at "
        "least, and those present at most as many."
    )
    size = (PANEL * len(panels) + LEGEND * beside, HIGH)
    rows = [asdict(result) for result in results]
    return Plot(f"results-{dataset}", f"Results on {title_of(dataset)}", caption, draw, rows, size)


def _lines(results: Sequence[Result], unit: str) -> dict[str, list[Result]]:
    """Return our points per line, the line with the highest accuracy first.

    A single point is left out if its method also has a line with targets in the same unit.
    """
    found: dict[str, list[Result]] = {}
    for result in results:
        if getattr(result, unit) and result.method != "dense":
            found.setdefault(result.line, []).append(result)
    longest: dict[tuple[str, str], int] = {}
    for first, *rest in found.values():
        key = first.method, first.unit
        longest[key] = max(1 + len(rest), longest.get(key, 0))
    lines = [
        sorted(points, key=lambda point: getattr(point, unit))
        for points in found.values()
        if len(points) > 1 or longest[points[0].method, points[0].unit] == 1
    ]
    lines.sort(key=lambda points: max(point.accuracy for point in points), reverse=True)
    return {points[0].line: points for points in lines}


def _published(results: Sequence[Result], unit: str) -> dict[str, Points]:
    """Return the published results, without series of which less than half can be shown."""
    low = min(result.accuracy for result in results) - BELOW
    found = published_in(unit, results[0].dataset)
    return {
        name: points
        for name, points in found.items()
        if sum(y > low for _, y in points) > len(points) / 2
    }


def _draw_panel(axes: Axes, results: Sequence[Result], unit: str, theme: Theme) -> None:
    dataset, lines = results[0].dataset, _lines(results, unit)
    accuracies = [point.accuracy for points in lines.values() for point in points]
    axes.set_ylim(min(accuracies) - BELOW, max(*accuracies, DENSE[dataset]) + ABOVE)
    _draw_published(axes, results, unit, theme)
    drawn: list[str] = []
    for line, points in lines.items():
        _draw_line(axes, line, points, unit, before=drawn.count(points[0].method))
        drawn.append(points[0].method)
    dense = style_of("dense")
    axes.axhline(DENSE[dataset], color=dense.colour, lw=1, ls=dense.dash, label="dense, Grad R")
    axes.set_xlabel(PANELS[unit])
    set_log_scale(axes, "x")


def _draw_published(axes: Axes, results: Sequence[Result], unit: str, theme: Theme) -> None:
    """Draw the published results; the legend names a single one that is below the axes."""
    dataset = results[0].dataset
    shown = _published(results, unit)
    for name, points in published_in(unit, dataset).items():
        look: dict[str, Any] = {"color": theme.soft, "marker": marker_of(dataset, name)}
        look |= {"mfc": "none", "ms": 6, "lw": 0.9, "ls": ":" if len(points) > 1 else ""}
        if name in shown:
            axes.plot(*zip(*points, strict=True), label=name, **look)
            for x, y in points:
                text = f"{name}, published\naccuracy {y:g} %, {PANELS[unit][:-3]} {x:g} %"
                set_mark(axes.plot(x, y, zorder=4, **look), text)  # hollow: ours stay visible
        elif len(points) == 1:
            axes.plot([], label="{}: {:g} at {:g} %".format(name, *points[0][::-1]), **look)
        if name.endswith(AT_MOST):
            _draw_bounds(axes, points, 1 / ARROW, theme.soft)


def _draw_line(axes: Axes, line: str, points: Sequence[Result], unit: str, *, before: int) -> None:
    """Draw our results of one line, each with the deviation over its seeds.

    The first line of a method has filled markers, others hollow ones; `before` are drawn already.
    """
    style = style_of(points[0].method)
    look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "ms": 7}
    hollow = before > 0
    look |= {"mfc": "none", "mew": 1, "ms": 9} if hollow else {}
    look |= {"marker": LATER[before % len(LATER)], "ms": 6} if before > 1 else {}
    x, y = [getattr(point, unit) for point in points], [point.accuracy for point in points]
    dash = (FINE if hollow else style.dash) if len(points) > 1 else ""
    rule = ": Grad R's rule" if points[0].method == "gradr" else ""  # the recipe is ours
    axes.plot(x, y, ls=dash, label=f"{line}{rule} (ours)", zorder=3, **look)
    if unit == "synapses":
        bounds = [(used, high) for used, high, p in zip(x, y, points, strict=True) if p.at_least]
        _draw_bounds(axes, bounds, ARROW, style.colour)
    for used, point in zip(x, points, strict=True):
        bars = axes.errorbar(used, point.accuracy, point.deviation, capsize=3, zorder=3, **look)
        spread = "" if point.deviation is None else f" ± {point.deviation:.2f}"
        value = f"accuracy {point.accuracy:.2f}{spread} %, {PANELS[unit][:-3]} {used:.3g} %"
        set_mark(bars.get_children(), f"{line}, n = {point.n}\n{value}")


def _draw_bounds(
    axes: Axes, points: Sequence[tuple[float, float]], factor: float, colour: str
) -> None:
    """Draw an arrow from each point to where the true value may be."""
    arrow = {"arrowstyle": "->", "color": colour, "lw": 0.9, "shrinkA": 4, "shrinkB": 0}
    for x, y in points:
        axes.annotate("", (x * factor, y), (x, y), arrowprops=arrow)
