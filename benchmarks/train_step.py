"""Time one training step (forward, backward, Adam): ours, SpikingJelly's, and ours with Grad R.

SpikingJelly runs in multi-step mode with the same weights, and its layers before the first neuron
are also computed once. The networks take turns; each figure is a median. Run it on an idle machine.

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
from spikingjelly.activation_based import functional
from spikingjelly_peer import Peer
from torch import Tensor, nn
from torch.nn import functional as F

from spikewire.methods import GradR
from spikewire.nn.initialisation import scale_to_fire_
from spikewire.nn.layers import Spiking, conv, linear
from spikewire.nn.models import build
from spikewire.nn.neurons import LIF

TIME_STEPS = 8
Step = Callable[[], None]
Forward = Callable[[Tensor], Tensor]


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


def trainer(
    model: nn.Module, forward: Forward, images: Tensor, target: Tensor, method: GradR | None = None
) -> Step:
    """Return the function that does one whole training step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    if method:
        method.attach(model, optimizer, total_steps=1_000_000)

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(forward(images).mean(0), target).backward()
        optimizer.step()

    return step


def milliseconds(step: Step) -> float:
    """Time one call."""
    start = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - start)


def race(steps: list[Step], repeats: int) -> list[list[float]]:
    """Time the steps in turn after three warm-up rounds; the order rotates, as it matters."""
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(repeats + 3):
        for position in range(len(steps)):
            i = (position + turn) % len(steps)
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
    peer, pruned = Peer(model, "m"), copy.deepcopy(model)

    def run_peer(images: Tensor) -> Tensor:
        functional.reset_net(peer)
        return peer(images)

    with torch.no_grad():
        if not torch.allclose(model(images), run_peer(images)):
            sys.exit("the two networks do not compute the same spikes")
    steps = [
        trainer(model, model, images, target),
        trainer(peer, run_peer, images, target),
        trainer(pruned, pruned, images, target, GradR(alpha=1e-3)),
    ]
    return race(steps, repeats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
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
