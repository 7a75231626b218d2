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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from gpu_bench import require_measurable
from script import run_script, words_of_list
from torch import Tensor
from torch.nn import functional as F

from spikewire import kernels
from spikewire.config import resolve
from spikewire.data import Dataset, load
from spikewire.data.sequence import to_sequence
from spikewire.nn.penalty import rate_penalty
from spikewire.nn.sequence import run_layers
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


def batches(training: Training) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the batches of one epoch after the other."""
    for number in count():
        yield from training.train.epoch(number)


def steps(training: Training) -> Callable[[], Tensor]:
    """Return a function that takes the next step."""
    source = batches(training)
    return lambda: training.step(*next(source))


def train(bench: Bench, training: Training, number: int) -> Callable[[], Tensor]:
    """Take some steps; return a function that takes the next one."""
    step = steps(training)
    for _ in range(2 if bench.cpu else number):
        step()
    return step


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
    source = batches(training)
    bench.time("batch", lambda: next(source))


def _backward_parts(bench: Bench, layer: Any, x: Tensor, current: Tensor, own: Tensor) -> None:
    """Time the kernels of the backward pass."""
    from spikewire.kernels import adaptive, adaptive_reverse, delays
    from spikewire.nn.adaptive import DAMPING

    places = layer.synapses.weight, layer.synapses.delays, layer.synapses.span, layer.cell.beta
    grad = torch.randn_like(own)
    with torch.no_grad():
        _, saved = adaptive.fire(current, *places, layer.dynamics)
        back = lambda: adaptive_reverse.reverse(grad, saved, *places, layer.dynamics, DAMPING)  # noqa: E731
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

    layers = [model.rates, model.fc2, model.leaky, model.last]

    def step() -> None:
        output = run_layers(layers, own.detach().requires_grad_(), len(own))
        (training.loss(output, labels) + rate_penalty(model)).backward()

    bench.time("penalty, readout and loss, forward and backward", step)


def iteration(bench: Bench) -> None:
    """Time whole iterations, eager and with the CUDA graph, per method."""
    training = bench.training(graph=False)
    bench.time("iteration, eager, deepr", train(bench, training, WARMUP))
    for method in METHODS:
        training = bench.training(method)
        bench.time(f"iteration, CUDA graph, {method}", train(bench, training, WARMUP), 50)


def plain(bench: Bench) -> None:
    """Time whole iterations in plain torch, eager and with the CUDA graph."""
    before = kernels.use("torch")
    try:
        for graph in (False, True):
            training = bench.training(graph=graph)
            name = "CUDA graph" if graph else "eager"
            bench.time(f"iteration, plain torch, {name}", steps(training), 3)
    finally:
        kernels.use(before)


def sweep(bench: Bench) -> None:
    """Time both kernels with other launch sizes."""
    from spikewire.kernels import adaptive, adaptive_reverse
    from spikewire.nn.adaptive import DAMPING

    training = bench.training(graph=False)
    train(bench, training, WARMUP)
    layer: Any = training.model.rec1
    with torch.no_grad():
        current = layer.inputs(training.model.encode(batch_of(training)[0]))  # pyright: ignore
    places = layer.synapses.weight, layer.synapses.delays, layer.synapses.span, layer.cell.beta
    before = adaptive.NEURONS_PER_WARP, adaptive_reverse.ROWS, adaptive_reverse.CACHE
    for number in (32, 64, 128):
        adaptive.NEURONS_PER_WARP = number
        run = lambda: adaptive.fire(current, *places, layer.dynamics)  # noqa: E731
        bench.time(f"neurons, forward, {number} neurons per warp", run)
    _, saved = adaptive.fire(current, *places, layer.dynamics)
    grad = torch.randn_like(current)
    for rows, cache in ((4, 200), (5, 200), (10, 0), (10, 150), (10, 200), (10, 300), (20, 200)):
        adaptive_reverse.ROWS, adaptive_reverse.CACHE = rows, cache * 1024
        run = lambda: adaptive_reverse.reverse(grad, saved, *places, layer.dynamics, DAMPING)  # noqa: E731
        bench.time(f"neurons, backward, {rows} targets at once, {cache} KB", run)
    adaptive.NEURONS_PER_WARP, adaptive_reverse.ROWS, adaptive_reverse.CACHE = before


def products(bench: Bench) -> None:
    """Time the other way to go back: one TF32 matrix product and one kernel per time step."""
    from spikewire.kernels import adaptive, adaptive_reverse
    from spikewire.nn.adaptive import DAMPING

    training = bench.training(graph=False)
    train(bench, training, WARMUP)
    layer: Any = training.model.rec1
    synapses = layer.synapses
    with torch.no_grad():
        current = layer.inputs(training.model.encode(batch_of(training)[0]))  # pyright: ignore
        places = synapses.weight, synapses.delays, synapses.span, layer.cell.beta
        _, saved = adaptive.fire(current, *places, layer.dynamics)
        grad = torch.randn_like(current)
        future = torch.cat(synapses.parts())
        back = Products(grad, saved, future, layer)
        expected = adaptive_reverse.reverse(grad, saved, *places, layer.dynamics, DAMPING)
        error = float((back() - expected).norm() / expected.norm())
        print(f"relative error of TF32 products: {error:.1e}")
        bench.time("neurons, backward, TF32 products", captured(bench, back))


def profile(bench: Bench) -> None:
    """Print what the optimizer and the pruner spend their time on."""
    training = bench.training(graph=False)
    train(bench, training, WARMUP)
    training.learn(*batch_of(training))
    with torch.profiler.profile() as profiler:
        for _ in range(5):
            training.optimizer.step()
        bench.wait()
    print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=25))


def captured(bench: Bench, step: Callable[[], object]) -> Callable[[], object]:
    """Return a step that replays one CUDA graph; on a CPU the step itself."""
    if bench.cpu:
        return step
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@triton.jit
def _retreat(
    dz_ptr, v_ptr, level_ptr, mark_ptr, last_ptr, beta_ptr, state_ptr, current_ptr, row, first,
    size, total, alpha, rho, damping, SIZE: tl.constexpr,
):  # fmt: skip
    """Go one time step back."""
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside, neuron = place < total, place % size
    dv = tl.load(state_ptr + place, mask=inside, other=0.0)
    db = tl.load(state_ptr + total + place, mask=inside, other=0.0)
    dz = tl.load(state_ptr + 2 * total + place, mask=inside, other=0.0)
    dz += tl.load(dz_ptr + place, mask=inside, other=0.0)
    v = tl.load(v_ptr + place, mask=inside, other=0.0)
    level = tl.load(level_ptr + place, mask=inside, other=1.0)
    rested = (tl.load(mark_ptr + place, mask=inside, other=0) & 2) != 0
    last = tl.load(last_ptr + place, mask=inside & (first == 0), other=0)
    slope = damping * tl.maximum(1 - tl.abs(v / level - 1), 0.0)
    ds = tl.where(rested, dz * slope, 0.0)
    beta = tl.load(beta_ptr + neuron, mask=inside, other=0.0)
    db = rho * db - beta * (ds * v / (level * level) + (last & 1).to(tl.float32) * dv)
    there = (place // size).to(tl.int64) * row + neuron
    tl.store(current_ptr + there, (1 - alpha) * dv, mask=inside)
    tl.store(state_ptr + place, alpha * dv + ds / level, mask=inside)
    tl.store(state_ptr + total + place, db, mask=inside)
    tl.store(state_ptr + 2 * total + place, (1 - rho) * db - level * dv, mask=inside)


@dataclass
class Products:
    """The backward pass by one matrix product per time step over all delays."""

    grad: Tensor
    saved: Any
    future: Tensor
    layer: Any

    def __call__(self) -> Tensor:
        """Return dI, ``[time, batch, neurons]``."""
        from spikewire.nn.adaptive import DAMPING

        time, batch, size = self.grad.shape
        span, dynamics = self.layer.synapses.span, self.layer.dynamics
        currents = self.grad.new_zeros(batch, time + span, size)
        state = self.grad.new_zeros(3, batch, size)
        constants = dynamics.decay, dynamics.adaptation_decay, DAMPING
        kernel: Any = _retreat  # Triton types a launch by the signature inside the kernel
        before, torch.backends.cuda.matmul.allow_tf32 = (
            torch.backends.cuda.matmul.allow_tf32,
            True,
        )
        for t in reversed(range(time)):
            later = currents[:, t + 1 : t + 1 + span].flatten(1)
            dz = torch.addmm(self.grad[t], later, self.future)
            v, level, marks = (x[t] for x in self.saved)
            last, row = self.saved[2][max(t - 1, 0)], (time + span) * size
            kernel[(triton.cdiv(batch * size, 256),)](
                dz, v, level, marks, last, self.layer.cell.beta, state, currents[:, t], row,
                int(t == 0), size, batch * size, *constants, SIZE=256,
            )  # fmt: skip
        torch.backends.cuda.matmul.allow_tf32 = before
        return currents[:, :time].transpose(0, 1)


SECTIONS = {
    "parts": parts,
    "iteration": iteration,
    "plain": plain,
    "sweep": sweep,
    "products": products,
    "profile": profile,
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sections", default="parts,iteration")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    require_measurable(options.cpu, options.out)
    sections = words_of_list("--sections", options.sections, SECTIONS)
    kernels.use("triton")
    bench = Bench(options.cpu)
    for name in sections:
        SECTIONS[name](bench)
        if options.out:
            device = "cpu" if options.cpu else torch.cuda.get_device_name()
            found = {"torch": torch.__version__, "device": device, "rows": bench.rows}
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
