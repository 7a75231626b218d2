"""The seven figures of the Grad R paper, from runs (Chen et al., IJCAI 2021)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from spikewire.errors import SpikewireError
from spikewire.nn.models import MODELS, build
from spikewire.nn.neurons import Neuron
from spikewire.report.figures import frontier, training
from spikewire.report.inside import firing, parameters, subject, theta, turnover
from spikewire.report.runs import Run
from spikewire.report.style import Plot, Theme, colour, note

# what `spikewire figures --paper` trains where no run is given: digits, two minutes on two cores
RECIPE: tuple[dict[str, str], ...] = (
    {"method": "dense"},
    *({"method": "gradr", "alpha": alpha} for alpha in ("0", "0.02", "0.05", "0.1", "0.2")),
    *({"method": "deepr", "connectivity": share} for share in ("0.4", "0.2", "0.1")),
)
EPOCHS = "20"


def architecture(runs: Sequence[Run]) -> Plot | None:
    """Draw the network's layers in order (figure 1)."""
    run = subject(runs)
    if run is None or run.config is None:
        return None
    model = build(run.config.model, readout=run.config.readout, neuron=run.config.neuron)
    words = ["input\n" + "×".join(map(str, MODELS[run.config.model].input_shape))]
    firing_after = []
    for name, module in model.named_children():
        weight = getattr(module, "weight", None)
        if isinstance(module, Neuron):
            firing_after.append(len(words))
            words.append(name)
        elif weight is not None and weight.dim() > 1:
            words.append(f"{name}\n" + "×".join(map(str, weight.shape)))
        elif "pool" in name or "vote" in name:
            words.append(name)
    columns = 4

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        axes.set_axis_off()
        rows = -(-len(words) // columns)
        axes.set(xlim=(-0.1, columns), ylim=(-rows + 0.3, 0.8))
        for i, word in enumerate(words):
            row, column = divmod(i, columns)
            # every other row runs backwards, so that an arrow always leads to a neighbour
            x, y = (columns - 1 - column if row % 2 else column), -row
            spiking = i in firing_after
            corner = f"round,rounding_size={0.2 if spiking else 0.06},pad=0.02"
            look = {"facecolor": colour(1 if spiking else 0), "edgecolor": "none", "alpha": 0.22}
            axes.add_patch(FancyBboxPatch((x, y), 0.72, 0.5, boxstyle=corner, **look))
            axes.text(x + 0.36, y + 0.25, word, ha="center", va="center")
            if i + 1 == len(words):
                continue
            if column + 1 == columns:
                ends = (x + 0.36, y - 0.04), (x + 0.36, y - 0.46)
            elif row % 2:
                ends = (x - 0.04, y + 0.25), (x - 0.24, y + 0.25)
            else:
                ends = (x + 0.76, y + 0.25), (x + 0.96, y + 0.25)
            arrow = {"arrowstyle": "->", "color": theme.ink}
            axes.annotate("", ends[1], ends[0], arrowprops=arrow)

    caption = (
        "Synaptic layers (blue) and layers of spiking neurons (orange), in the order of a pass."
    )
    size = (5.4, 0.85 * -(-len(words) // columns) + 0.2)
    return Plot("architecture", f"The network {run.config.model}", caption, draw, [], size)


def gradient(runs: Sequence[Run]) -> Plot | None:
    """Draw descent on the loss of a weight against descent on that of theta (figure 2).

    ``L(w) = (w - a)^2`` and ``Lbar(theta) = L(relu(theta))``, with s = +1; the arrows follow
    ``-dL/dw`` at ``w = relu(theta)``, which does not vanish left of 0.
    """

    def draw(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, 2, sharex=True)
        x = np.linspace(-1.6, 2, 300)
        for axes, target in zip(panels, (1.0, -1.0), strict=True):
            axes.plot(x, (x - target) ** 2, color=theme.faint, ls="--", label="L(w)")
            seen = (np.maximum(x, 0) - target) ** 2
            axes.plot(x, seen, color=colour(0), label="L̄(θ) = L(relu θ)")
            for start in (-1.2, -0.6, 0.5, 1.6):
                slope = 2 * (max(start, 0) - target)
                height = (max(start, 0) - target) ** 2
                axes.annotate(
                    "", (start - 0.2 * slope, height), (start, height),
                    arrowprops={"arrowstyle": "-|>", "color": colour(1), "lw": 1.6},
                )  # fmt: skip
            axes.axvline(0, color=theme.ink, lw=0.7)
            sign = "<" if target > 0 else ">"
            note(axes, f"s ∂L/∂w at w = 0 is {sign} 0")
            axes.set(xlabel="θ", ylim=(-0.4, 9.5))
        panels[0].set_ylabel("loss")
        panels[0].legend(loc="upper right")

    caption = (
        "Orange: the step Grad R takes. Left: the loss wants the synapse, and θ climbs out of the "
        "flat part where an ordinary gradient is 0. Right: it does not, and θ sinks further."
    )
    return Plot("gradient", "Why an absent synapse can return", caption, draw, [], (5.4, 3.0))


def penalties(runs: Sequence[Run]) -> Plot | None:
    """Draw accuracy and connectivity over epochs for Grad R's penalties (figure 4)."""
    return training([run for run in runs if run.config and run.config.method == "gradr"] or runs)


PAPER: dict[str, Callable[[Sequence[Run]], Plot | None]] = {
    "figure-1-architecture": architecture,
    "figure-2-gradient": gradient,
    "figure-3-parameters": parameters,
    "figure-4-training": penalties,
    "figure-5-frontier": frontier,
    "figure-6a-theta": theta,
    "figure-6b-turnover": turnover,
    "figure-7-firing": firing,
}


def draw_paper(runs: Sequence[Run]) -> list[Plot]:
    """Return the paper's figures; raise for one the runs hold nothing for."""
    plots = []
    for key, figure in PAPER.items():
        plot = figure(runs)
        if plot is None:
            needed = "a finished dense run" if figure is parameters else "a traced gradr run"
            raise SpikewireError(f"{key}: these runs hold nothing for it; it needs {needed}")
        plots.append(replace(plot, key=key))
    return plots
