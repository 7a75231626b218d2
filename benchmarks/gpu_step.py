"""One training step (forward, backward, Adam) of the CIFAR-10 network on one GPU, in one process.

The paper's way, SpikingJelly 2.0 at the best setting found, and ours, against the matmul ceiling
measured in the same run. A section that fails says why, and the others go on; what may take long to
compile runs in a process of its own with a time limit. Results are written after every section.

    python benchmarks/gpu_step.py --out gpu_step.json
    python benchmarks/gpu_step.py --sections ceiling,eager,kernels
    TRITON_INTERPRET=1 python benchmarks/gpu_step.py --cpu        # every path, on a tiny network
"""

import argparse
import copy
import gc
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikewire import data as datasets
from spikewire import kernels
from spikewire.config import Config
from spikewire.data import Dataset
from spikewire.methods.budget import Budget
from spikewire.methods.gradr import GradR
from spikewire.nn.models import SYNAPSES, Dropout, Spiking, build, conv, linear
from spikewire.nn.neurons import LIF, Neuron
from spikewire.pruning.method import Method
from spikewire.train.loop import Training, prepare

COMPILE_SECONDS = 60  # what SpikingJelly's compilation and its steps may take
Step = Callable[[], object]
Row = dict[str, Any]


def tiny() -> Spiking:
    """Return a network with every kind of layer of the real one."""
    row: dict[str, nn.Module] = {}
    for i, inputs in enumerate((3, 8, 8), start=1):
        row |= {f"conv{i}": conv(inputs, 8, 3, 1), f"bn{i}": nn.BatchNorm2d(8), f"lif{i}": LIF()}
    row |= {"pool1": nn.MaxPool2d(2), "flatten": nn.Flatten(), "drop1": Dropout(0.5)}
    row |= {"fc1": linear(8 * 16, 100), "lif4": LIF(), "vote": nn.AvgPool1d(10)}
    return Spiking(row, input_shape=(3, 8, 8), classes=10)


@dataclass
class Bench:
    """Where and how long to measure; what has been found so far."""

    cpu: bool
    seconds: float
    rows: list[Row] = field(default_factory=list)
    ceiling: float | None = None
    start: float = field(default_factory=time.perf_counter)

    @property
    def device(self) -> str:
        """Return the device's type."""
        return "cpu" if self.cpu else "cuda"

    def model(self, time_steps: int) -> Spiking:
        """Return the network, firing from the start, channels-last."""
        torch.manual_seed(0)
        model = tiny() if self.cpu else build("cifar10-conv")
        for name, parameter in model.named_parameters():
            if name.startswith("fc"):
                parameter.data.mul_(4)
        model.time_steps = time_steps
        return model.to(self.device, memory_format=torch.channels_last)  # pyright: ignore

    def fit(self, batch: int) -> int:
        """Return the batch, or what an interpreter can do."""
        return min(batch, 2) if self.cpu else batch

    def images(self, batch: int) -> Tensor:
        """Return random images, channels-last."""
        size = 8 if self.cpu else 32
        images = torch.randn(self.fit(batch), 3, size, size, device=self.device)
        return images.contiguous(memory_format=torch.channels_last)

    def compile(self, model: nn.Module) -> Any:
        """Compile for fixed shapes."""
        torch.compiler.reset()
        return torch.compile(model, dynamic=False, backend="aot_eager" if self.cpu else "inductor")

    def wait(self) -> None:
        """Wait for the device."""
        if not self.cpu:
            torch.cuda.synchronize()

    def milliseconds(self, step: Step, repeats: int, warmup: int = 4) -> float:
        """Return the mean time of a step: updates due every few steps count with their share."""
        repeats, warmup = (1, 1) if self.cpu else (repeats, warmup)
        for _ in range(warmup):
            step()
        self.wait()
        if not self.cpu:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        self.wait()
        return 1e3 * (time.perf_counter() - start) / repeats

    def peak(self) -> float:
        """Return the most memory allocated since the last warm-up, in GiB."""
        return 0.0 if self.cpu else torch.cuda.max_memory_allocated() / 2**30

    def add(
        self, name: str, batch: int, time_steps: int, step: Step, repeats: int = 24, warmup: int = 4
    ) -> Row:
        """Time a step and keep its row."""
        taken = self.milliseconds(step, repeats, warmup)
        batch = self.fit(batch)
        rate = 1e3 * batch / taken
        row = {"name": name, "batch": batch, "time_steps": time_steps, "ms": taken}
        row |= {"samples_per_s": rate, "peak_gib": self.peak()}
        if self.ceiling:
            flops = flops_per_sample(self.model(time_steps), self.images(1))
            row["tflops"] = rate * flops / 1e12
            row["share_of_ceiling"] = row["tflops"] / self.ceiling
        self.rows.append(row)
        print(f"  {name}, {time_steps} steps, batch {batch}: {taken:.2f} ms", flush=True)
        return row


def flops_per_sample(model: Spiking, image: Tensor) -> float:
    """Return the operations of forward, input gradient and weight gradient of all synapses."""
    total, x, first = 0.0, image.unsqueeze(0), True
    before = kernels.use("torch")
    with torch.no_grad():
        for layer in model.eval():
            x = model.advance(layer, x)
            if isinstance(layer, SYNAPSES):
                outputs = x[0, 0].numel() // layer.weight.shape[0]
                total += 2 * layer.weight.numel() * outputs * len(x) * (2 if first else 3)
                first = False
    kernels.use(before)
    return total


def trainer(
    bench: Bench, model: nn.Module, forward: Any, batch: int, half: bool = True, **adam: Any
) -> tuple[Step, torch.optim.Optimizer]:
    """Return the function that takes one training step, and its optimizer."""
    images = bench.images(batch)
    labels = torch.arange(len(images), device=bench.device) % 10
    fused = not bench.cpu
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=fused, **adam)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(bench.device, torch.bfloat16, enabled=half, cache_enabled=not adam):
            output = forward(images)
        F.cross_entropy(10 * output.float().mean(0), labels).backward()
        optimizer.step()

    return step, optimizer


class Peer(nn.Module):
    """The same network of SpikingJelly's parts; what comes before the first neuron runs once."""

    def __init__(self, model: Spiking, step_mode: str) -> None:
        from spikingjelly.activation_based import functional, layer, neuron, surrogate

        super().__init__()
        self.clear, self.time_steps, self.step_mode = (
            functional.reset_net,
            model.time_steps,
            step_mode,
        )

        def translate(x: nn.Module) -> nn.Module:
            if isinstance(x, Neuron) and x.tau is not None:
                atan = surrogate.ATan(alpha=2.0)
                options = {"surrogate_function": atan, "detach_reset": True, "step_mode": step_mode}
                return neuron.LIFNode(tau=x.tau, v_threshold=x.threshold, **options)
            if isinstance(x, Dropout):
                return layer.Dropout(x.p, step_mode=step_mode)
            return layer.SeqToANNContainer(x) if step_mode == "m" and timed else x

        static, rest, timed = [], [], False
        for x in copy.deepcopy(model):
            timed = timed or isinstance(x, Neuron)
            (rest if timed else static).append(translate(x))
        self.static, self.timed = nn.Sequential(*static), nn.Sequential(*rest)

    def forward(self, images: Tensor) -> Tensor:
        """Return spikes ``[time, batch, classes]``."""
        current = self.static(images)
        if self.step_mode == "m":
            return self.timed(current.expand(self.time_steps, *current.shape))
        return torch.stack([self.timed(current) for _ in range(self.time_steps)])


def peer_step(bench: Bench, mode: str, batch: int, half: bool, compiled: bool) -> Step:
    """Return SpikingJelly's training step; its state is reset outside the compiled part."""
    peer = Peer(bench.model(8), mode).to(bench.device)
    forward = bench.compile(peer) if compiled else peer

    def fresh(images: Tensor) -> Tensor:
        peer.clear(peer)
        return forward(images)

    return trainer(bench, peer, fresh, batch, half)[0]


def ceiling(bench: Bench) -> None:
    """Measure a large bf16 matrix product on random data."""
    size = 256 if bench.cpu else 8192
    a, b = (torch.randn(size, size, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    taken = bench.milliseconds(lambda: torch.mm(a, b), 40, warmup=10)
    bench.ceiling = 2 * size**3 / taken / 1e9
    bench.rows.append({"name": f"matmul {size}^3 bf16", "ms": taken, "tflops": bench.ceiling})
    print(f"  {bench.ceiling:.0f} TFLOP/s", flush=True)


def paper(bench: Bench) -> None:
    """Run the paper's way: SpikingJelly one step at a time, float32, batch 16."""
    bench.add(
        "paper: SpikingJelly single-step fp32", 16, 8, peer_step(bench, "s", 16, False, False), 8
    )


def spikingjelly_eager(bench: Bench) -> None:
    """Run SpikingJelly 2.0 multi-step with its own automatically chosen kernels."""
    step = peer_step(bench, "m", 128, True, False)
    bench.add("SpikingJelly multi-step bf16", 128, 8, step, 12)


def spikingjelly(bench: Bench) -> None:
    """Run the same under torch.compile, which may not end: in a process that can be stopped."""
    limit = min(COMPILE_SECONDS, bench.seconds - (time.perf_counter() - bench.start))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--sections", "spikingjelly-here", "--out", file.name]
        command += ["--ceiling", str(bench.ceiling or 0), *(["--cpu"] if bench.cpu else [])]
        subprocess.run(command, timeout=limit, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(Path(file.name).read_text())
    for error in found["errors"]:
        raise RuntimeError(error["error"])
    for row in found["rows"]:
        bench.rows.append(row)
        print(f"  {row['name']}: {row['ms']:.2f} ms", flush=True)


def spikingjelly_here(bench: Bench) -> None:
    """Compile and run SpikingJelly in this process."""
    step = peer_step(bench, "m", 128, True, True)
    bench.add("SpikingJelly multi-step bf16 compiled", 128, 8, step, 16)


def ours_eager(bench: Bench) -> None:
    """Run ours with the kernels, not compiled."""
    for time_steps, batch in ((8, 128), (8, 256), (4, 128), (4, 256)):
        model = bench.model(time_steps)
        bench.add("ours eager", batch, time_steps, trainer(bench, model, model, batch)[0])
        del model
        release(bench)


def ours_compiled(bench: Bench) -> None:
    """Run the same under torch.compile."""
    model = bench.model(8)
    step, _ = trainer(bench, model, bench.compile(model), 128)
    bench.add("ours compiled", 128, 8, step)


def ours_graph(bench: Bench) -> None:
    """Run ours with the whole step as one CUDA graph, optimizer included, not compiled."""
    model = bench.model(8)
    step, _ = trainer(bench, model, model, 128, capturable=not bench.cpu)
    if bench.cpu:
        bench.add("ours CUDA graph", 128, 8, step)
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    bench.add("ours CUDA graph", 128, 8, graph.replay)


def twins(bench: Bench) -> None:
    """Run ours compiled with the kernels off."""
    before = kernels.use("torch")
    try:
        model = bench.model(8)
        step, _ = trainer(bench, model, bench.compile(model), 128)
        bench.add("ours compiled, kernels off", 128, 8, step)
    finally:
        kernels.use(before)


def methods(bench: Bench) -> None:
    """Run ours with a method attached, before and after without, on one network."""
    model = bench.model(8)
    kinds: dict[str, Method | None] = {
        "nothing": None,
        "gradr": GradR(alpha=1e-3),
        "budget every 8": Budget(connectivity=0.05, every=8),
        "budget every 16": Budget(connectivity=0.05, every=16),
        "nothing again": None,
    }
    rows = []
    for name, method in kinds.items():
        step, optimizer = trainer(bench, model, model, 128)
        if method is not None:
            method.attach(model, optimizer, total_steps=1000)
        rows.append(bench.add(f"ours with {name} attached", 128, 8, step, 48, warmup=16))
        if method is not None:
            method.detach()
    plain = (rows[0]["ms"] + rows[-1]["ms"]) / 2
    for row in rows:
        row["added"] = row["ms"] / plain - 1


def noise(bench: Bench) -> Dataset:
    """Return random images in the shape of CIFAR-10; the embedded digits for an interpreter."""
    if bench.cpu:
        return datasets.load("digits")
    images = torch.randint(256, (2048, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(len(images)) % 10
    return Dataset(
        name="noise",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
        classes=tuple("abcdefghij"),
        mean=(0.5, 0.5, 0.5),
        std=(0.3, 0.3, 0.3),
    )


def whole_step(training: Training) -> Step:
    """Return what `spikewire train` does per step: a new augmented batch and the method's part."""
    batches = (batch for number in range(10**6) for batch in training.train.epoch(number))

    def step() -> None:
        training.step(*next(batches))

    return step


def fit_steps(bench: Bench) -> None:
    """Run the steps of `spikewire train` with budget, with and without a CUDA graph."""
    settings: Row = {"batch_size": bench.fit(128), "method": "budget", "epochs": 1000}
    settings |= {"augment": ("crop:4", "flip", "cutout:8"), "channels_last": True, "init": "firing"}
    settings |= {"dataset": "digits" if bench.cpu else "cifar10", "precision": "bf16"}
    for time_steps in (8, 4):
        model = bench.model(time_steps)
        plain = bench.add("bare step", 128, time_steps, trainer(bench, model, model, 128)[0], 48)
        del model
        for graph in (False, True):
            config = Config(time_steps=time_steps, graph=graph, device=bench.device, **settings)
            step = whole_step(prepare(config, noise(bench)))
            name = f"spikewire train, {'CUDA graph' if graph else 'eager'}"
            row = bench.add(name, 128, time_steps, step, 48, warmup=16)
            row["added"] = row["ms"] / plain["ms"] - 1
            del step
            release(bench)


def kernel_times(bench: Bench) -> None:
    """Time each operator alone on layer 2's currents for several tile sizes."""
    from spikewire.kernels import ops

    shape = (8 * 2, 8, 4, 4) if bench.cpu else (8 * 128, 256, 32, 32)
    x = torch.randn(shape, device=bench.device, dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    channels = torch.ones(shape[1], device=bench.device)
    size = x.numel() * x.element_size()
    running = channels.clone(), channels.clone(), 0.1
    mean, variance = ops.statistics(x, *running)

    def arguments(pool: bool) -> tuple[Any, ...]:
        norm = (mean, variance, channels, channels, 1e-5, True)
        return (x, *norm, 8, False, pool, 2.0, 1.0, 0.0, "atan")

    def record(name: str, tile: int, moved: float, step: Step) -> None:
        taken = bench.milliseconds(step, 20)
        row = {"name": f"{name}, tile {tile}", "ms": taken, "tb_per_s": moved / taken / 1e9}
        bench.rows.append(row)
        print(f"  {row['name']}: {taken:.3f} ms, {row['tb_per_s']:.2f} TB/s", flush=True)

    forward, backward = ops.TILE, ops.BACKWARD_TILE
    try:
        for tile in (forward // 2, forward, 2 * forward):
            ops.TILE = tile
            record("statistics", tile, size, lambda: ops.statistics(x, *running))
            record("fire", tile, 2 * size, lambda: ops.fire(*arguments(False)))
            record("fire and pool", tile, 1.25 * size, lambda: ops.fire(*arguments(True)))
        for tile in (backward // 2, backward, 2 * backward):
            ops.BACKWARD_TILE = tile
            for pool, share in ((False, 1.0), (True, 0.25)):
                grad, winners = ops.fire(*arguments(pool))
                record(
                    f"backward{' and pool' if pool else ''}",
                    tile,
                    size * (3 + 2 * share),
                    lambda g=grad, w=winners, p=pool: ops.fire_backward(g, w, *arguments(p)),
                )
    finally:
        ops.TILE, ops.BACKWARD_TILE = forward, backward


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "ceiling": ceiling,
    "eager": ours_eager,
    "graph": ours_graph,
    "spikingjelly-eager": spikingjelly_eager,
    "spikingjelly": spikingjelly,
    "methods": methods,
    "fit": fit_steps,
    "paper": paper,
    "compiled": ours_compiled,
    "kernels": kernel_times,
}
EXTRA = {"twins": twins, "spikingjelly-here": spikingjelly_here}  # only when named


def release(bench: Bench) -> None:
    """Give the memory of what is gone back."""
    gc.collect()
    torch.compiler.reset()
    if not bench.cpu:
        torch.cuda.empty_cache()


def measure(bench: Bench, names: list[str]) -> Iterator[Row]:
    """Run the sections; after each, yield what went wrong or nothing."""
    for name in names:
        elapsed = time.perf_counter() - bench.start
        if elapsed > bench.seconds:
            yield {"section": name, "error": f"not run: {elapsed:.0f} s are gone"}
            continue
        print(f"{name} (at {elapsed:.0f} s)", flush=True)
        error = None
        try:
            (SECTIONS | EXTRA)[name](bench)
        except subprocess.TimeoutExpired as late:
            error = f"stopped after {late.timeout:.0f} s"
        except Exception as problem:
            traceback.print_exc()
            error = f"{type(problem).__name__}: {problem}".splitlines()[0]
        release(bench)
        yield {"section": name, "error": error} if error else {}


def write(bench: Bench, errors: list[Row], path: Path | None) -> None:
    """Write what has been found so far."""
    found = {"rows": bench.rows, "errors": errors, "command": " ".join(sys.argv)}
    found["torch"] = torch.__version__
    found["device"] = "cpu" if bench.cpu else torch.cuda.get_device_name()
    found["seconds"] = time.perf_counter() - bench.start
    if path:
        path.write_text(json.dumps(found, indent=1) + "\n")


def table(bench: Bench) -> None:
    """Print all rows; ratios are to SpikingJelly's best and to the paper's way."""
    rates = {row["name"]: row["samples_per_s"] for row in bench.rows if "samples_per_s" in row}
    peers = [rate for name, rate in rates.items() if name.startswith("SpikingJelly")]
    slow = next((rate for name, rate in rates.items() if name.startswith("paper")), None)
    print(f"\n{'':44}{'steps':>6}{'batch':>6}{'ms':>9}{'samples/s':>11}{'ceiling':>9}"
          f"{'GiB':>7}{'x SJ':>7}{'x paper':>9}{'added':>8}")  # fmt: skip
    for row in bench.rows:
        rate = row.get("samples_per_s")
        row["ratio_to_spikingjelly"] = rate / max(peers) if rate and peers else None
        row["ratio_to_paper"] = rate / slow if rate and slow else None
        cells = (
            ("time_steps", 6, "d"), ("batch", 6, "d"), ("ms", 9, ".3f"),
            ("samples_per_s", 11, ",.0f"),
            ("share_of_ceiling", 9, ".1%"), ("peak_gib", 7, ".1f"),
            ("ratio_to_spikingjelly", 7, ".2f"), ("ratio_to_paper", 9, ".1f"), ("added", 8, "+.1%"),
        )  # fmt: skip
        print(f"{row['name']:44}" + "".join(
            f"{'' if row.get(key) is None else format(row[key], form):>{width}}"
            for key, width, form in cells
        ))  # fmt: skip


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=120, help="start no section after these")
    parser.add_argument("--ceiling", type=float, help="TFLOP/s, measured before")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    bench = Bench(cpu=options.cpu, seconds=options.seconds, ceiling=options.ceiling)
    kernels.use("triton")
    torch._dynamo.config.recompile_limit = 64  # plain torch breaks its graph at every neuron
    if not options.cpu:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    errors: list[Row] = []
    for error in measure(bench, options.sections.split(",")):
        errors += [error] if error else []
        write(bench, errors, options.out)
    table(bench)
    for error in errors:
        print(f"{error['section']}: {error['error']}")
    write(bench, errors, options.out)  # with the table's ratios


if __name__ == "__main__":
    main()
