"""Time `pruner.stats()` after every step, beside the training step itself, on the MNIST network.

Each figure is a median. Run it on an idle machine.

    python benchmarks/stats.py --threads 2 --steps 100
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from spikewire import METHODS, build


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def time_method(name: str, steps: int) -> tuple[float, float]:
    """Return the median milliseconds of a training step and of `stats`."""
    torch.manual_seed(0)
    model = build("mnist-mlp")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pruner = METHODS[name]().attach(model, optimizer, total_steps=steps)
    images, labels = torch.rand(128, 1, 28, 28), torch.randint(10, (128,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(10 * model(images).mean(0), labels).backward()
        optimizer.step()

    times = [(milliseconds(step), milliseconds(pruner.stats)) for _ in range(steps)]
    training, counting = (statistics.median(column) for column in zip(*times, strict=True))
    return training, counting


def main() -> None:
    """Print one row per method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    table = Table("method", "step, ms", "stats, ms", "ratio")
    for name in METHODS:
        training, counting = time_method(name, given.steps)
        table.add_row(name, f"{training:.2f}", f"{counting:.3f}", f"{counting / training:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
