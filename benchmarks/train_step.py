"""Time one training step (forward, backward, Adam): ours, SpikingJelly's, and ours with Grad R.

SpikingJelly runs in multi-step mode and gets the same weights and the same favour: what comes
before the first neuron is computed once. The contestants take turns; each figure is a median.
Run it on an idle machine.

    python benchmarks/train_step.py --threads 2 --repeats 30
"""

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import torch
from rich.console import Console
from rich.table import Table
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import Tensor, nn
from torch.nn import functional as F

from spikewire.methods.gradr import GradR
from spikewire.nn.models import Spiking, build, conv, linear, scale_to_fire_
from spikewire.nn.neurons import LIF, Neuron

TIME_STEPS = 8
Step = Callable[[], None]


class Peer(nn.Module):
    """The same layers as SpikingJelly runs them: shared stateless layers, its own neurons."""

    def __init__(self, model: Spiking) -> None:
        super().__init__()
        layers = [self.translate(x) for x in copy.deepcopy(model)]
        first = next(i for i, x in enumerate(layers) if isinstance(x, neuron.LIFNode))
        self.static = nn.Sequential(*layers[:first])
        self.timed = nn.Sequential(
            *(
                x if isinstance(x, neuron.LIFNode) else layer.SeqToANNContainer(x)
                for x in layers[first:]
            )
        )

    @staticmethod
    def translate(x: nn.Module) -> nn.Module:
        """Return SpikingJelly's neuron for ours, and any other layer as it is."""
        if not isinstance(x, Neuron):
            return x
        return neuron.LIFNode(
            tau=x.tau,
            v_threshold=x.threshold,
            surrogate_function=surrogate.ATan(alpha=2.0),
            detach_reset=True,
            step_mode="m",
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return spikes ``[time, batch, classes]``."""
        functional.reset_net(self)
        current = self.static(images)
        return self.timed(current.expand(TIME_STEPS, *current.shape))


def mnist() -> tuple[str, Spiking, Tensor]:
    """Return the MNIST network of the paper without its idle dropout layer."""
    layers = {k: v for k, v in build("mnist-mlp").named_children() if k != "drop1"}
    return "784-800-LIF-10-LIF, batch 128", Spiking(layers), torch.rand(128, 1, 28, 28)


def small_conv() -> tuple[str, Spiking, Tensor]:
    """Return a convolutional network that a laptop trains."""
    layers: dict[str, nn.Module] = {}
    for i, channels in enumerate((3, 32), start=1):
        layers |= {
            f"conv{i}": conv(channels, 32, 3, padding=1),
            f"bn{i}": nn.BatchNorm2d(32),
            f"lif{i}": LIF(),
            f"pool{i}": nn.MaxPool2d(2),
        }
    layers |= {"flatten": nn.Flatten(), "fc1": linear(32 * 8 * 8, 10), "lif3": LIF()}
    what = "3x32x32, 2 x (32C3-BN-LIF-MP2), 10-LIF, batch 16"
    return what, Spiking(layers), torch.rand(16, 3, 32, 32)


def trainer(model: nn.Module, images: Tensor, target: Tensor, pruned: bool = False) -> Step:
    """Return the function that does one whole training step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    if pruned:
        GradR(alpha=1e-3).attach(model, optimizer, total_steps=1_000_000)

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(model(images).mean(0), target).backward()
        optimizer.step()

    return step


def milliseconds(step: Step) -> float:
    """Time one call."""
    start = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - start)


def race(steps: list[Step], repeats: int) -> list[list[float]]:
    """Time the steps in turn after three warm-up rounds; the order rotates, as place matters."""
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(repeats + 3):
        for place in range(len(steps)):
            i = (place + turn) % len(steps)
            times[i].append(milliseconds(steps[i]))
    return [each[3:] for each in times]


def ratio(above: list[float], below: list[float]) -> str:
    """Return the median of the ratios within a round, and their quartiles."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def compare(model: Spiking, images: Tensor, repeats: int) -> list[list[float]]:
    """Time ours, SpikingJelly's and ours with Grad R on equal weights."""
    model.time_steps = TIME_STEPS
    scale_to_fire_(model, images)
    target = F.one_hot(torch.arange(len(images)) % 10, 10).float()
    peer, pruned = Peer(model), copy.deepcopy(model)
    with torch.no_grad():
        if not torch.allclose(model(images), peer(images)):
            sys.exit("the two networks do not compute the same spikes")
    contestants = [(model, False), (peer, False), (pruned, True)]
    return race(
        [trainer(net, images, target, spikewire) for net, spikewire in contestants], repeats
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    table = Table(
        title=f"Training step in ms, {TIME_STEPS} time steps, median of {options.repeats}"
    )
    for column in (
        "network",
        "spikewire",
        "SpikingJelly",
        "/ spikewire",
        "with Grad R",
        "/ spikewire",
    ):
        table.add_column(column, justify="left" if column == "network" else "right")
    for make in (mnist, small_conv):
        what, model, images = make()
        times = compare(model, images, options.repeats)
        ours, peer, pruned = (f"{statistics.median(each):.2f}" for each in times)
        faster, slower = ratio(times[1], times[0]), ratio(times[2], times[0])
        table.add_row(what, ours, peer, faster, pruned, slower)
    console = Console(width=140)
    console.print(table)
    for line in (
        f"command: python {' '.join(sys.argv)}",
        f"CPU, {options.threads} threads, float32, machine load {os.getloadavg()[0]:.1f}, "
        f"torch {torch.__version__}, spikingjelly {version('spikingjelly')}",
        f"n = {options.repeats} in turns; ratios: median (quartiles) within a round",
    ):
        console.print(line, highlight=False)


if __name__ == "__main__":
    main()
