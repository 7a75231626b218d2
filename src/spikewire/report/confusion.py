"""The confusion matrix of a run."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spikewire.report.choice import shown_run_with
from spikewire.report.groups import identify, setting
from spikewire.report.marks import set_mark
from spikewire.report.plot import Plot
from spikewire.report.rewiring import draw_image
from spikewire.report.runs import Run
from spikewire.report.style import WIDTH, Theme, style_of

MAX_COUNTS = 20  # classes up to which the cells show their counts


def plot_confusion(runs: Sequence[Run]) -> Plot | None:
    """Plot how test images of each class are classified.

    Args:
        runs: Any runs; one that has kept its confusion matrix is shown.

    Returns:
        The matrix, a row per true class; None if no run has kept one.
    """
    run = shown_run_with(runs, lambda run: run.snapshots is not None and _matrix(run).size > 0)
    if run is None:
        return None
    matrix = _matrix(run)

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _draw_matrix(axes, run, matrix, theme)
        axes.set(xlabel="predicted class", ylabel="true class", title=run.label)

    data = [
        {"label": label, "predicted": predicted, "images": int(matrix[label, predicted])}
        for label, predicted in np.argwhere(matrix).tolist()
    ]
    return Plot("confusion", "Confusion matrix", _caption(run, matrix), draw, data, (WIDTH, 4.6))


def _matrix(run: Run) -> np.ndarray:
    assert run.snapshots is not None
    return run.snapshots.confusion


def _caption(run: Run, matrix: np.ndarray) -> str:
    wrong = matrix - np.diag(np.diag(matrix))
    text = (
        f"{run.label}: test images by true and predicted class; colour: fraction of the true class."
    )
    if not wrong.any():
        return f"{text} None is wrong."
    label, predicted = np.unravel_index(wrong.argmax(), wrong.shape)
    most = int(wrong.max())
    images = f"{most} image{'s' * (most > 1)}"
    return f"{text} The most frequent error: {images} of class {label} as {predicted}."


def _draw_matrix(axes: Axes, run: Run, matrix: np.ndarray, theme: Theme) -> None:
    fractions = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    draw_image(axes, np.sqrt(fractions), style_of(setting("method")(run)).colour, 1.0, 0.05)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    if len(matrix) <= MAX_COUNTS:
        axes.set(xticks=range(len(matrix)), yticks=range(len(matrix)))
        for label, predicted in np.argwhere(matrix).tolist():
            shade = "#ffffff" if fractions[label, predicted] > 0.4 else theme.ink
            count = str(int(matrix[label, predicted]))
            axes.text(predicted, label, count, color=shade, ha="center", va="center", fontsize=8)
    correct = np.trace(matrix) / max(1, matrix.sum())
    set_mark(axes.patch, f"{identify([run])}\n{correct:.2%} of {matrix.sum():,} images", [run])
