"""The figures of the Grad R paper (Chen et al., IJCAI 2021), drawn from runs, and its tables."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from spikewire.errors import SpikewireError
from spikewire.nn.models import MODELS, build
from spikewire.nn.neurons import Neuron
from spikewire.report.axes import set_left_title
from spikewire.report.choice import shown_run
from spikewire.report.frontier import plot_frontier
from spikewire.report.internals import (
    plot_firing,
    plot_parameters,
    plot_theta,
    plot_turnover,
)
from spikewire.report.plot import Plot
from spikewire.report.runs import Run
from spikewire.report.style import WIDTH, Theme, colour
from spikewire.report.systems import plot_systems
from spikewire.report.training import plot_training

# what `spikewire figures --paper` trains if no run is given: digits, two minutes on two cores
PAPER_RUNS: tuple[dict[str, str], ...] = (
    {"method": "dense"},
    *({"method": "gradr", "alpha": alpha} for alpha in ("0", "0.02", "0.05", "0.1", "0.2")),
    *({"method": "deepr", "connectivity": target} for target in ("0.4", "0.2", "0.1")),
)
PAPER_EPOCHS = "20"

COLUMNS = 4  # boxes per row of the architecture
STARTS = (-1.2, -0.6, 0.5, 1.6)  # values of θ at which the gradient is drawn


# ---------------------------------------------------------------------- figure 1


def plot_architecture(runs: Sequence[Run]) -> Plot | None:
    """Plot the layers of the network in order (figure 1)."""
    run = shown_run(runs)
    if run is None or run.config is None:
        return None
    config = run.config
    if MODELS.get(config.model) is None or MODELS[config.model].input_shape is None:
        return None  # of any size, or a network of the user's own
    boxes = _boxes(config.model, config.readout, config.neuron)

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set(xlim=(-0.1, COLUMNS), ylim=(-_rows(boxes) + 0.3, 0.8))
        for i, (text, spiking) in enumerate(boxes):
            _draw_box(axes, i, text, spiking)
        for i in range(len(boxes) - 1):
            _draw_arrow(axes, i, theme)

    caption = (
        "Synaptic layers (blue) and spiking layers (orange), in the order of the forward pass."
    )
    size = (WIDTH, 0.85 * _rows(boxes) + 0.2)
    return Plot("architecture", f"The network {config.model}", caption, draw, [], size)


def _boxes(name: str, readout: str, neuron: str) -> list[tuple[str, bool]]:
    """Return text and whether it is a spiking layer, for the input and each layer of a model."""
    boxes = [("input\n" + "×".join(map(str, MODELS[name].input_shape or ())), False)]
    for child, module in build(name, readout=readout, neuron=neuron).named_children():
        weight = getattr(module, "weight", None)
        if isinstance(module, Neuron):
            boxes.append((child, True))
        elif weight is not None and weight.dim() > 1:
            boxes.append((f"{child}\n" + "×".join(map(str, weight.shape)), False))
        elif "pool" in child or "vote" in child:
            boxes.append((child, False))
    return boxes


def _rows(boxes: Sequence[object]) -> int:
    return -(-len(boxes) // COLUMNS)


def _position(i: int) -> tuple[int, int]:
    """Return the lower left corner of a box; every second row runs from right to left."""
    row, column = divmod(i, COLUMNS)
    return (COLUMNS - 1 - column if row % 2 else column), -row


def _draw_box(axes: Axes, i: int, text: str, spiking: bool) -> None:
    x, y = _position(i)
    corner = f"round,rounding_size={0.2 if spiking else 0.06},pad=0.02"
    look = {"facecolor": colour(1 if spiking else 0), "edgecolor": "none", "alpha": 0.22}
    axes.add_patch(FancyBboxPatch((x, y), 0.72, 0.5, boxstyle=corner, **look))
    axes.text(x + 0.36, y + 0.25, text, ha="center", va="center")


def _draw_arrow(axes: Axes, i: int, theme: Theme) -> None:
    """Draw an arrow from box `i` to the next."""
    x, y = _position(i)
    row, column = divmod(i, COLUMNS)
    if column + 1 == COLUMNS:
        start, end = (x + 0.36, y - 0.04), (x + 0.36, y - 0.46)
    elif row % 2:
        start, end = (x - 0.04, y + 0.25), (x - 0.24, y + 0.25)
    else:
        start, end = (x + 0.76, y + 0.25), (x + 0.96, y + 0.25)
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": theme.ink})


# ---------------------------------------------------------------------- figure 2


def plot_gradient(runs: Sequence[Run]) -> Plot | None:
    """Plot descent on the loss of a weight and descent on the loss of θ (figure 2).

    ``L(w) = (w - a)^2`` and ``Lbar(theta) = L(relu(theta))``, with s = +1; the arrows follow
    ``-dL/dw`` at ``w = relu(theta)``, which does not vanish left of 0.
    """

    def draw(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, 2, sharex=True)
        for axes, optimum in zip(panels, (1.0, -1.0), strict=True):
            _draw_losses(axes, optimum, theme)
        panels[0].set_ylabel("loss")
        panels[0].legend(loc="upper right")

    caption = (
        "Orange: the step of Grad R. Left: the synapse reduces the loss, and θ leaves the flat "
        "part, where an ordinary gradient is 0. Right: the synapse increases the loss, and θ "
        "decreases further."
    )
    return Plot("gradient", "Why an absent synapse can return", caption, draw, [], (WIDTH, 3.0))


def _draw_losses(axes: Axes, optimum: float, theme: Theme) -> None:
    x = np.linspace(-1.6, 2, 300)
    axes.plot(x, (x - optimum) ** 2, color=theme.faint, ls="--", label="L(w)")
    latent_loss = (np.maximum(x, 0) - optimum) ** 2
    axes.plot(x, latent_loss, color=colour(0), label="L̄(θ) = L(relu θ)")
    for start in STARTS:
        slope = 2 * (max(start, 0) - optimum)
        height = (max(start, 0) - optimum) ** 2
        axes.annotate(
            "", (start - 0.2 * slope, height), (start, height),
            arrowprops={"arrowstyle": "-|>", "color": colour(1), "lw": 1.6},
        )  # fmt: skip
    axes.axvline(0, color=theme.ink, lw=0.7)
    set_left_title(axes, f"s ∂L/∂w at w = 0 is {'<' if optimum > 0 else '>'} 0")
    axes.set(xlabel="θ", ylim=(-0.4, 9.5))


# ---------------------------------------------------------------------- all of them


def plot_penalties(runs: Sequence[Run]) -> Plot | None:
    """Plot accuracy and connectivity over epochs for the penalties of Grad R (figure 4)."""
    gradr = [run for run in runs if run.config and run.config.method == "gradr"]
    return plot_training(gradr or runs)


PAPER: dict[str, Callable[[Sequence[Run]], Plot | None]] = {
    "figure-1-architecture": plot_architecture,
    "figure-2-gradient": plot_gradient,
    "figure-3-parameters": plot_parameters,
    "figure-4-training": plot_penalties,
    "figure-5-frontier": plot_frontier,
    "figure-6a-theta": plot_theta,
    "figure-6b-turnover": plot_turnover,
    "figure-7-firing": plot_firing,
    "tables-1-2-systems": plot_systems,
}


def plot_paper(runs: Sequence[Run]) -> list[Plot]:
    """Return the seven figures of the paper, and one of the systems in its tables.

    Args:
        runs: Runs, among them a finished dense one and a traced run of Grad R.

    Returns:
        One figure per entry of `PAPER`, with that entry's name as its key.

    Raises:
        SpikewireError: The runs lack the data of a figure.
    """
    plots = []
    for key, figure in PAPER.items():
        plot = figure(runs)
        if plot is None:
            needed = "a finished dense run" if figure is plot_parameters else "a traced gradr run"
            raise SpikewireError(f"{key}: these runs lack its data; it needs {needed}")
        plots.append(replace(plot, key=key))
    return plots
