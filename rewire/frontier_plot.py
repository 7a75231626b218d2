"""Accuracy against connectivity on a log axis, with published points beside ours."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from rewire.frontier import Point
from rewire.published import DENSE, PUBLISHED

# Okabe and Ito's palette, readable for colour-blind readers; markers tell the rest apart in print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
MARKERS = "osD^vP*X<>hp"


def draw(points: Sequence[Point], dataset: str, paths: Sequence[Path]) -> None:
    """Write the frontier of one data set to each of `paths`; the suffix tells the format."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    own = [point for point in points if point.dataset == dataset]
    sparse = [point for point in own if point.asked is not None]
    for i, method in enumerate(dict.fromkeys(point.method for point in sparse)):
        line = sorted((p for p in sparse if p.method == method), key=lambda p: p.reached)
        axes.errorbar(
            [100 * p.reached for p in line],
            [100 * p.accuracy for p in line],
            [100 * p.deviation for p in line],
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            capsize=3,
            label=method,
        )
    for i, (name, pairs) in enumerate(PUBLISHED.get(dataset, {}).items()):
        shares, accuracies = zip(*pairs, strict=True)
        style = {"color": "#777777", "linestyle": ":", "linewidth": 1, "markersize": 5}
        marker = MARKERS[(i + 3) % len(MARKERS)]
        axes.plot(
            shares, accuracies, marker=marker, mfc="none", label=f"{name}, published", **style
        )
    for point in own:
        if point.asked is None:
            axes.axhline(100 * point.accuracy, color="#000000", lw=1, label=f"{point.method}, ours")
    if dataset in DENSE:
        axes.axhline(DENSE[dataset], color="#777777", lw=1, ls="--", label="dense, published")
    low = min((100 * p.accuracy for p in own), default=90.0)
    axes.set_ylim(bottom=max(0.0, min(low, 99.0) - 2))
    axes.set(
        xscale="log", xlabel="connectivity, % of weights", ylabel="test accuracy, %", title=dataset
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, ncols=2)
    for path in paths:
        figure.savefig(path, dpi=150)
