"""One training step (forward, backward, Adam) of the CIFAR-10 network on one GPU, in one process.

The paper's way, SpikingJelly 2.0 at the best setting found, and ours, against the matmul ceiling
measured in the same run. SpikingJelly is what its wheel installs: without the native CUDA
extension, which has to be built from source. A section that fails reports why, and the others still
run; what may take long to compile runs in its own process with a time limit. Results are written
after every section.

    python benchmarks/gpu_step.py --out gpu_step.json
    python benchmarks/gpu_step.py --sections ceiling,eager,kernels
    TRITON_INTERPRET=1 python benchmarks/gpu_step.py --cpu        # every path, on a tiny network
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_bench import Bench, Row, Step, print_table, require_measurable, trainer
from script import run_script, words_of_list
from torch import Tensor

from spikewire import data as datasets
from spikewire import kernels
from spikewire.config import Config
from spikewire.data import Dataset
from spikewire.methods import Budget, GradR
from spikewire.nn.neurons import NeuronConstants
from spikewire.pruning import Method
from spikewire.train.step import Training, prepare

COMPILE_SECONDS = 60  # limit for SpikingJelly's compilation and its steps


def peer_step(bench: Bench, mode: str, batch: int, half: bool, compiled: bool) -> Step:
    """Return SpikingJelly's training step; its state is reset outside the compiled part."""
    from spikingjelly.activation_based import functional
    from spikingjelly_peer import Peer

    peer = Peer(bench.model(8), mode).to(bench.device)
    forward = bench.compile(peer) if compiled else peer

    def reset_and_run(images: Tensor) -> Tensor:
        functional.reset_net(peer)
        return forward(images)

    return trainer(bench, peer, reset_and_run, batch, half)[0]


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
    """Run the same under torch.compile, which may not end, in a process that can be stopped."""
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
        bench.release()


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
        "budget of synapses every 8": Budget(synapses=0.0116, every=8),
        "budget of synapses every 16": Budget(synapses=0.0116, every=16),
        "budget of synops every 16": Budget(synops=16.5e6, every=16),
        "nothing again": None,
    }
    rows = []
    for name, method in kinds.items():
        step, optimizer = trainer(bench, model, model, 128)
        pruner = method.attach(model, optimizer, total_steps=10_000) if method else None
        rows.append(bench.add(f"ours with {name} attached", 128, 8, step, 48, warmup=48))
        if pruner:
            pruner.detach()
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


def fit_settings(bench: Bench, **changes: Any) -> Config:
    """Return the settings of `spikewire train` with budget."""
    settings: Row = {"batch_size": bench.batch_size(128), "method": "budget", "epochs": 1000}
    settings |= {"augment": ("crop:4", "flip", "cutout:8"), "channels_last": True, "init": "firing"}
    settings |= {"dataset": "digits" if bench.cpu else "cifar10", "precision": "bf16"}
    settings |= {"device": bench.device} | changes
    return Config(**settings)


def option_steps(bench: Bench) -> None:
    """Run the steps of `spikewire train` as a CUDA graph with one more option at a time."""
    options: dict[str, Row] = {
        "nothing more": {},
        "trivial and cutmix": {"augment": ("crop:4", "flip", "trivial", "cutmix")},
        "synops_penalty": {"synops_penalty": 1.0},
    }
    for time_steps in (8, 2):
        rows = []
        for name, changes in options.items():
            config = fit_settings(bench, time_steps=time_steps, graph=not bench.cpu, **changes)
            step = whole_step(prepare(config, noise(bench)))
            rows.append(bench.add(f"spikewire train, {name}", 128, time_steps, step, 48, warmup=16))
            rows[-1]["added"] = rows[-1]["ms"] / rows[0]["ms"] - 1
            del step
            bench.release()


def fit_steps(bench: Bench) -> None:
    """Run the steps of `spikewire train` with budget, with and without a CUDA graph."""
    for time_steps in (8, 4):
        model = bench.model(time_steps)
        plain = bench.add("bare step", 128, time_steps, trainer(bench, model, model, 128)[0], 48)
        del model
        for graph in (False, True):
            config = fit_settings(bench, time_steps=time_steps, graph=graph)
            step = whole_step(prepare(config, noise(bench)))
            name = f"spikewire train, {'CUDA graph' if graph else 'eager'}"
            row = bench.add(name, 128, time_steps, step, 48, warmup=16)
            row["added"] = row["ms"] / plain["ms"] - 1
            del step
            bench.release()


def kernel_times(bench: Bench) -> None:
    """Time each operator alone on layer 2's currents for several tile sizes."""
    from spikewire.kernels import ops

    shape = (8 * 2, 8, 4, 4) if bench.cpu else (8 * 128, 256, 32, 32)
    x = torch.randn(shape, device=bench.device, dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    channels = torch.ones(shape[1], device=bench.device)
    size = x.numel() * x.element_size()
    running = channels.clone(), channels.clone()
    mean, variance = ops.statistics(x, *running, momentum=0.1)
    inputs = x, mean, variance, channels, channels
    alone = None, None, None  # nothing is added, no rate is learnt

    def constants(pool: bool) -> dict[str, Any]:
        shape = {"time_steps": 8, "static": False, "pool": pool}
        return {"eps": 1e-5, "batch_statistics": True, **shape, **NeuronConstants().keywords()}

    def record(name: str, tile: int, moved: float, step: Step) -> None:
        taken = bench.milliseconds(step, 20)
        row = {"name": f"{name}, tile {tile}", "ms": taken, "tb_per_s": moved / taken / 1e9}
        bench.rows.append(row)
        print(f"  {row['name']}: {taken:.3f} ms, {row['tb_per_s']:.2f} TB/s", flush=True)

    forward, backward = ops.TILE, ops.BACKWARD_TILE
    try:
        for tile in (forward // 2, forward, 2 * forward):
            ops.TILE = tile
            record("statistics", tile, size, lambda: ops.statistics(x, *running, momentum=0.1))
            record("fire", tile, 2 * size, lambda: ops.fire(*inputs, *alone, **constants(False)))
            record(
                "fire and pool",
                tile,
                1.25 * size,
                lambda: ops.fire(*inputs, *alone, **constants(True)),
            )
        for tile in (backward // 2, backward, 2 * backward):
            ops.BACKWARD_TILE = tile
            for pool, fraction in ((False, 1.0), (True, 0.25)):
                options = constants(pool)
                grad, winners = ops.fire(*inputs, *alone, **options)
                record(
                    f"backward{' and pool' if pool else ''}",
                    tile,
                    size * (3 + 2 * fraction),
                    lambda g=grad, w=winners, o=options: ops.fire_backward(
                        g, w, *inputs, None, None, **o
                    ),
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
    "options": option_steps,
    "paper": paper,
    "compiled": ours_compiled,
    "kernels": kernel_times,
}
EXTRA = {"twins": twins, "spikingjelly-here": spikingjelly_here}  # only when named


def measure(bench: Bench, names: list[str]) -> Iterator[Row]:
    """Run the sections; after each, yield its error or an empty row."""
    for name in names:
        elapsed = time.perf_counter() - bench.start
        if elapsed > bench.seconds:
            yield {"section": name, "error": f"not run: {elapsed:.0f} s have passed"}
            continue
        print(f"{name} (at {elapsed:.0f} s)", flush=True)
        error = bench.attempt(SECTIONS | EXTRA, name)
        yield {"section": name, "error": error} if error else {}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=120, help="start no section after these")
    parser.add_argument("--ceiling", type=float, help="TFLOP/s, measured before")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    require_measurable(options.cpu, options.out)
    sections = words_of_list("--sections", options.sections, SECTIONS | EXTRA)
    bench = Bench(cpu=options.cpu, seconds=options.seconds, ceiling=options.ceiling)
    kernels.use("triton")
    torch._dynamo.config.recompile_limit = 64  # plain torch breaks its graph at every neuron
    if not options.cpu:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    errors: list[Row] = []
    for error in measure(bench, sections):
        errors += [error] if error else []
        bench.write(errors, options.out)
    print_table(bench.rows)
    for error in errors:
        print(f"{error['section']}: {error['error']}")
    bench.write(errors, options.out)  # with the table's ratios


if __name__ == "__main__":
    run_script(main)
