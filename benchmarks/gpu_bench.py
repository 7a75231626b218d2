"""What the sections of `gpu_step.py` use: the network, timing, and the table of results."""

import gc
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from script import require_folder
from torch import Tensor, nn
from torch.nn import functional as F

from spikewire import kernels
from spikewire.errors import SpikewireError
from spikewire.nn.layers import Dropout, Spiking, conv, linear
from spikewire.nn.models import build
from spikewire.nn.neurons import LIF
from spikewire.nn.synapses import SYNAPTIC

Step = Callable[[], object]
Row = dict[str, Any]


def tiny() -> Spiking:
    """Return a network with every kind of layer of the real one."""
    layers: dict[str, nn.Module] = {}
    for i, inputs in enumerate((3, 8, 8), start=1):
        layers |= {f"conv{i}": conv(inputs, 8, 3, 1), f"bn{i}": nn.BatchNorm2d(8)}
        layers[f"lif{i}"] = LIF()
    layers |= {"pool1": nn.MaxPool2d(2), "flatten": nn.Flatten(), "drop1": Dropout(0.5)}
    layers |= {"fc1": linear(8 * 16, 100), "lif4": LIF(), "vote": nn.AvgPool1d(10)}
    return Spiking(layers, input_shape=(3, 8, 8), classes=10)


@dataclass
class Bench:
    """Device and time limit of a measurement, and the results so far."""

    cpu: bool
    seconds: float
    rows: list[Row] = field(default_factory=list)
    ceiling: float | None = None
    start: float = field(default_factory=time.perf_counter)

    @property
    def device(self) -> str:
        """The device's type."""
        return "cpu" if self.cpu else "cuda"

    def model(self, time_steps: int) -> Spiking:
        """Return the network, which fires from the start, channels-last."""
        torch.manual_seed(0)
        model = tiny() if self.cpu else build("cifar10-conv")
        for name, parameter in model.named_parameters():
            if name.startswith("fc"):
                parameter.data.mul_(4)
        model.time_steps = time_steps
        return model.to(self.device, memory_format=torch.channels_last)  # pyright: ignore

    def batch_size(self, batch: int) -> int:
        """Return the batch size, limited to what an interpreter can do."""
        return min(batch, 2) if self.cpu else batch

    def images(self, batch: int) -> Tensor:
        """Return random images, channels-last."""
        size = 8 if self.cpu else 32
        images = torch.randn(self.batch_size(batch), 3, size, size, device=self.device)
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
        """Return the mean time of a step; updates due every few steps count in proportion."""
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
        batch = self.batch_size(batch)
        rate = 1e3 * batch / taken
        row = {"name": name, "batch": batch, "time_steps": time_steps, "ms": taken}
        row |= {"samples_per_s": rate, "peak_gib": self.peak()}
        row["reserved_gib"] = 0.0 if self.cpu else torch.cuda.memory_reserved() / 2**30
        if self.ceiling:
            flops = flops_per_sample(self.model(time_steps), self.images(1))
            row["tflops"] = rate * flops / 1e12
            row["share_of_ceiling"] = row["tflops"] / self.ceiling
        self.rows.append(row)
        print(f"  {name}, {time_steps} steps, batch {batch}: {taken:.2f} ms", flush=True)
        return row

    def attempt(self, sections: Mapping[str, Callable[[Any], None]], name: str) -> str | None:
        """Run a section and free its memory; return why it failed, so that the others still run."""
        error = None
        try:
            sections[name](self)
        except subprocess.TimeoutExpired as late:
            error = f"stopped after {late.timeout:.0f} s"
        except Exception as problem:
            traceback.print_exc()
            error = f"{type(problem).__name__}: {problem}".splitlines()[0]
        self.release()
        return error

    def release(self) -> None:
        """Free the memory of deleted networks and compiled code."""
        gc.collect()
        torch.compiler.reset()
        if not self.cpu:
            torch.cuda.empty_cache()

    def write(self, errors: list[Row], path: Path | None) -> None:
        """Write the results so far."""
        found = {"rows": self.rows, "errors": errors, "command": " ".join(sys.argv)}
        found["torch"] = torch.__version__
        found["device"] = "cpu" if self.cpu else torch.cuda.get_device_name()
        found["seconds"] = time.perf_counter() - self.start
        if path:
            path.write_text(json.dumps(found, indent=1) + "\n")


def require_measurable(cpu: bool, out: Path | None) -> None:
    """Raise if there is no GPU, or if the results could not be written at the end."""
    if not (cpu or torch.cuda.is_available()):
        raise SpikewireError("there is no GPU with CUDA; --cpu runs every path on a tiny network")
    if out:
        require_folder("--out", out.parent)


def flops_per_sample(model: Spiking, image: Tensor) -> float:
    """Return the operations of forward, input gradient and weight gradient of all synapses."""
    found: list[float] = []

    def count(layer: Any, _: Any, output: Tensor) -> None:
        positions = output.numel() // layer.weight.shape[0]
        found.append(2 * layer.weight.numel() * positions * (3 if found else 2))

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, SYNAPTIC)]
    before = kernels.use("torch")
    with torch.no_grad():
        model.eval()(image)
    kernels.use(before)
    for hook in hooks:
        hook.remove()
    return sum(found)


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


def print_table(rows: list[Row]) -> None:
    """Print all rows; ratios are to the best of SpikingJelly's wheel and to the paper's way."""
    rates = {row["name"]: row["samples_per_s"] for row in rows if "samples_per_s" in row}
    peers = [rate for name, rate in rates.items() if name.startswith("SpikingJelly")]
    slow = next((rate for name, rate in rates.items() if name.startswith("paper")), None)
    print(f"\n{'':44}{'steps':>6}{'batch':>6}{'ms':>9}{'samples/s':>11}{'ceiling':>9}"
          f"{'GiB':>7}{'x SJ':>7}{'x paper':>9}{'added':>8}")  # fmt: skip
    for row in rows:
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
