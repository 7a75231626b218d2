"""Time data parallel training on the CPU: two ranks against one, with one thread each.

The network is `cifar10-conv` with 32 channels (not 256), 256 hidden neurons (not 2048) and
4 time steps, trained by `budget` on random 32 x 32 images. One rank and two take the same batches
of 32 images; they alternate, each time in new processes. Run it on an idle machine with two cores.

    python benchmarks/scaling.py --repeats 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from spikewire.config import Config
from spikewire.data import Batches
from spikewire.distributed import Ranks, process_group
from spikewire.nn.layers import Spiking, conv, linear
from spikewire.nn.neurons import LIF
from spikewire.train.build import build_optimizer
from spikewire.train.loop import COMPARE_EVERY
from spikewire.train.step import Training

BATCH, STEPS, WARM_UP = 32, 20, 3


def network() -> Spiking:
    """Return a small version of `cifar10-conv`."""
    layers: dict[str, nn.Module] = {}
    for i in range(1, 7):
        layers[f"conv{i}"] = conv(3 if i == 1 else 32, 32, 3, padding=1)
        layers |= {f"bn{i}": nn.BatchNorm2d(32), f"lif{i}": LIF()}
        if i % 3 == 0:
            layers[f"pool{i // 3}"] = nn.MaxPool2d(2)
    layers |= {"flatten": nn.Flatten(), "fc1": linear(32 * 8 * 8, 256), "lif7": LIF()}
    layers |= {"fc2": linear(256, 100), "lif8": LIF(), "vote": nn.AvgPool1d(10)}
    return Spiking(layers, time_steps=4)


def training(ranks: Ranks) -> Training:
    """Return the training, with all images in one epoch."""
    torch.manual_seed(0)
    config = Config(dataset="cifar10", method="budget", batch_size=BATCH, time_steps=4, epochs=1)
    count = BATCH * (STEPS + WARM_UP)
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
    labels, mean, std = torch.arange(count) % 10, (0.5,) * 3, (0.25,) * 3
    batches = Batches(images, labels, batch_size=BATCH, mean=mean, std=std)
    model = network()
    return Training(
        config=config,
        device=torch.device("cpu"),
        model=model,
        forward=model,
        optimizer=build_optimizer(config, model),
        train=batches,
        test=batches,
        ranks=ranks,
    )


def work() -> None:
    """Train as one of the ranks; rank 0 prints the seconds per step and of one comparison."""
    torch.set_num_threads(1)
    with process_group() as ranks:
        run, times = training(ranks), []
        for images, labels in run.train.epoch(0, part=ranks.part):
            start = time.perf_counter()
            run.step(images, labels)
            times.append(time.perf_counter() - start)
        start = time.perf_counter()
        run.require_equal_ranks()
        check = time.perf_counter() - start
        if ranks.first:
            print(json.dumps([times[WARM_UP:], check]))


def measure(ranks: int) -> tuple[list[float], float]:
    """Return the seconds per step and of one comparison, with this number of ranks."""
    launch = f"-m torch.distributed.run --standalone --nproc-per-node {ranks}".split()
    command = [sys.executable, *launch, __file__, "--worker"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    steps, check = json.loads(done.stdout)
    return steps, check


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    turns = [(measure(1), measure(2)) for _ in range(options.repeats)]
    speeds = [[BATCH / x for turn in turns for x in turn[side][0]] for side in (0, 1)]
    fractions = [check / (COMPARE_EVERY * statistics.median(steps)) for _, (steps, check) in turns]
    table = Table(title=f"samples/s of {options.repeats} x {STEPS} steps, alternating")
    for column in ("ranks of one thread", "best", "median (quartiles)"):
        table.add_column(column, justify="right")
    for ranks, each in enumerate(speeds, start=1):
        low, middle, high = statistics.quantiles(each, n=4)
        table.add_row(str(ranks), f"{max(each):.1f}", f"{middle:.1f} ({low:.1f} to {high:.1f})")
    console = Console(width=100, highlight=False)
    console.print(table)
    best, median = ([f(each) for each in speeds] for f in (max, statistics.median))
    for line in (
        f"two ranks / one: best {best[1] / best[0]:.2f}, median {median[1] / median[0]:.2f}",
        f"comparison of the ranks every {COMPARE_EVERY} steps: "
        f"{min(fractions):.3%} to {max(fractions):.3%} of a run",
        f"machine load {os.getloadavg()[0]:.1f}, torch {torch.__version__}",
        f"command: python {' '.join(sys.argv)}",
    ):
        console.print(line)


if __name__ == "__main__":
    main()
