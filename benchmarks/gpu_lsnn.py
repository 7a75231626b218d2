"""One training iteration of the LSNN on sequential MNIST (preset seqmnist-lsnn), part by part.

Batch 256, 840 time steps, 80 inputs, 220 neurons, delays 0 to 9, Deep R with the global constraint.
Images are enlarged `digits`, so no download is needed. Parts are timed alone, after some training,
since the time depends on the firing rates; whole iterations are those of `spikewire train`: eager,
with forward and backward as a CUDA graph (the default), and the same in plain torch.

    python benchmarks/gpu_lsnn.py --sections parts,iteration --out gpu_lsnn.json
    python benchmarks/gpu_lsnn.py --sections plain      # plain torch: its graph has 40,000 nodes
    python benchmarks/gpu_lsnn.py --sections sweep      # launch sizes of the two kernels
    TRITON_INTERPRET=1 python benchmarks/gpu_lsnn.py --cpu --sections parts,iteration,plain
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spikewire import kernels
from spikewire.config import resolve
from spikewire.data import Dataset, load
from spikewire.data.sequence import to_sequence
from spikewire.train.step import Training, prepare

Row = dict[str, Any]
METHODS = ("deepr", "budget", "dense")
WARMUP = 100  # iterations before parts are timed


def images(side: int) -> Tensor:
    """Return the embedded digits as grey images of about the size and margin of MNIST's."""
    small = load("digits").train_images.float()
    inner = side - 2 * (side // 8)
    large = F.interpolate(small, size=(inner, inner), mode="bilinear")
    return F.pad(large, [side // 8] * 4).round().clamp(0, 255).byte()


@dataclass
class Bench:
    """Device and sizes of a measurement, and the results so far."""

    cpu: bool
    rows: list[Row] = field(default_factory=list)

    def training(self, method: str = "deepr", graph: bool = True) -> Training:
        """Return a training as `spikewire train --preset seqmnist-lsnn` builds it."""
        flags = {"method": method, "graph": str(graph and not self.cpu).lower()}
        if self.cpu:
            flags |= {"device": "cpu", "batch_size": "2", "hidden": "16", "time_steps": "68"}
        return prepare(resolve("seqmnist-lsnn", flags=flags), self.data())

    def data(self) -> Dataset:
        """Return the digits as sequences."""
        pixels = images(8 if self.cpu else 28)
        labels = load("digits").train_labels
        sequences = to_sequence(pixels)
        parts = {"train_images": sequences, "train_labels": labels}
        parts |= {"test_images": sequences[:100], "test_labels": labels[:100]}
        return replace(load("seqdigits"), name="enlarged digits", **parts)

    def wait(self) -> None:
        """Wait for the device."""
        if not self.cpu:
            torch.cuda.synchronize()

    def time(self, name: str, step: Callable[[], object], repeats: int = 20) -> float:
        """Time a step, keep and print its row, return the milliseconds."""
        repeats = 1 if self.cpu else repeats
        for _ in range(1 if self.cpu else 3):
            step()
        self.wait()
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        self.wait()
        taken = 1e3 * (time.perf_counter() - start) / repeats
        peak = 0.0 if self.cpu else torch.cuda.max_memory_allocated() / 2**30
        self.rows.append({"name": name, "ms": taken, "peak_gib": peak})
        print(f"{taken:9.3f} ms  {name}", flush=True)
        return taken


def batch_of(training: Training) -> tuple[Tensor, Tensor]:
    """Return the first batch."""
    return next(iter(training.train.epoch(0)))


def train(bench: Bench, training: Training, count: int) -> None:
    """Take some steps."""
    for _ in range(2 if bench.cpu else count):
        training.step(*batch_of(training))


def parts(bench: Bench) -> None:
    """Time the parts of an iteration alone; they run one after the other in a real one."""
    training = bench.training(graph=False)
    train(bench, training, WARMUP)
    pixels, labels = batch_of(training)
    model: Any = training.model
    layer = model.rec1
    spikes_in = model.encode(pixels)
    with torch.no_grad():
        current = layer.inputs(spikes_in)
        own = layer.at_once(current)
    rates = float(spikes_in.mean()), float(own.mean())
    bench.rows.append({"name": "rates of inputs and neurons", "values": rates})
    print(f"rates: inputs {rates[0]:.4f}, neurons {rates[1]:.4f} per step")
    bench.time("encoder", lambda: model.encode(pixels))
    with torch.no_grad():
        bench.time("input synapses, forward", lambda: layer.inputs(spikes_in))
        bench.time("neurons, forward", lambda: layer.at_once(current))
    _backward_parts(bench, layer, spikes_in, current, own)
    _readout(bench, training, own, labels)
    training.learn(pixels, labels)
    bench.time("optimizer and pruner", training.optimizer.step)
    bench.time("batch", lambda: batch_of(training))


def _backward_parts(bench: Bench, layer: Any, x: Tensor, current: Tensor, own: Tensor) -> None:
    """Time the kernels of the backward pass."""
    from spikewire.kernels import adaptive, delays
    from spikewire.nn.adaptive import DAMPING

    places = layer.synapses.weight, layer.synapses.delays, layer.synapses.span, layer.cell.beta
    grad = torch.randn_like(own)
    with torch.no_grad():
        _, saved = adaptive.fire(current, *places, layer.dynamics)
        back = lambda: adaptive.reverse(grad, saved, *places, layer.dynamics, DAMPING)  # noqa: E731
        dy = back()
        bench.time("neurons, backward", back)
        bench.time(
            "recurrent synapses, weight gradient",
            lambda: delays.weight_gradient(own, dy, layer.synapses.delays, 1),
        )
        bench.time(
            "input synapses, weight gradient",
            lambda: delays.weight_gradient(x, dy, layer.inputs.delays),
        )


def _readout(bench: Bench, training: Training, own: Tensor, labels: Tensor) -> None:
    """Time penalty, readout and loss, forward and backward."""
    model: Any = training.model

    def step() -> None:
        spikes = own.detach().requires_grad_()
        output = model.last(model.leaky(model.fc2(model.rates(spikes))))
        training.loss(output, labels).backward()

    bench.time("penalty, readout and loss, forward and backward", step)


def iteration(bench: Bench) -> None:
    """Time whole iterations, eager and with the CUDA graph, per method."""
    training = bench.training(graph=False)
    train(bench, training, WARMUP)
    bench.time("iteration, eager, deepr", lambda: training.step(*batch_of(training)))
    for method in METHODS:
        training = bench.training(method)
        train(bench, training, WARMUP)
        step = lambda t=training: t.step(*batch_of(t))  # noqa: E731
        bench.time(f"iteration, CUDA graph, {method}", step, 50)


def plain(bench: Bench) -> None:
    """Time whole iterations in plain torch, eager and with the CUDA graph."""
    before = kernels.use("torch")
    try:
        for graph in (False, True):
            training = bench.training(graph=graph)
            name = "CUDA graph" if graph else "eager"
            bench.time(
                f"iteration, plain torch, {name}", lambda t=training: t.step(*batch_of(t)), 3
            )
    finally:
        kernels.use(before)


def sweep(bench: Bench) -> None:
    """Time both kernels with other numbers of warps."""
    from spikewire.kernels import adaptive
    from spikewire.nn.adaptive import DAMPING

    training = bench.training(graph=False)
    train(bench, training, WARMUP)
    layer: Any = training.model.rec1
    with torch.no_grad():
        current = layer.inputs(training.model.encode(batch_of(training)[0]))  # pyright: ignore
    places = layer.synapses.weight, layer.synapses.delays, layer.synapses.span, layer.cell.beta
    before = adaptive.NEURONS_PER_WARP, adaptive.WARPS
    for count in (32, 64, 128):
        adaptive.NEURONS_PER_WARP = count
        run = lambda: adaptive.fire(current, *places, layer.dynamics)  # noqa: E731
        bench.time(f"neurons, forward, {count} neurons per warp", run)
    _, saved = adaptive.fire(current, *places, layer.dynamics)
    grad = torch.randn_like(current)
    for warps in (8, 16):
        adaptive.WARPS = warps
        run = lambda: adaptive.reverse(grad, saved, *places, layer.dynamics, DAMPING)  # noqa: E731
        bench.time(f"neurons, backward, {warps} warps", run)
    adaptive.NEURONS_PER_WARP, adaptive.WARPS = before


SECTIONS = {"parts": parts, "iteration": iteration, "plain": plain, "sweep": sweep}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sections", default="parts,iteration")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    kernels.use("triton")
    bench = Bench(options.cpu)
    for name in options.sections.split(","):
        SECTIONS[name](bench)
        if options.out:
            device = "cpu" if options.cpu else torch.cuda.get_device_name()
            found = {"torch": torch.__version__, "device": device, "rows": bench.rows}
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
