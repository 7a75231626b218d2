"""Time inference: dense torch, torch CSR and spikewire, on the same images in the same run.

Networks are masked at random to each connectivity, and the gain of every layer is set so that its
neurons fire at the target density. The candidates take turns of at least one call and about 10 ms;
each time is the mean of a turn, the fastest of the repeats, and the factor is the speedup over
dense torch. One thread is timed by its processor time, which other load does not increase; several
threads by wall-clock time. Dense torch computes all time steps as one batch; "step by step" is what
a stream, or a network with feedback, requires.

    python benchmarks/inference.py                        # layers and networks, one thread, batch 1
    python benchmarks/inference.py --what mnist-mlp --batch 1,32,256 --threads 1,2
    python benchmarks/inference.py --what conv,cifar10-conv --kernels avx512,avx2,portable
    python benchmarks/inference.py --what cifar10-conv --batch 256 --repeats 1 --no-csr

spikewire may compute stages densely, and names them; "exact" turns this off. A single repeat is
timed without warm-up, which a pass that long does not need.
"""

import argparse
import copy
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from script import run_script
from torch import Tensor, nn

from spikewire.formats import packed
from spikewire.formats.network import Network
from spikewire.formats.trace import trace_model
from spikewire.nn.layers import Spiking
from spikewire.nn.models import build
from spikewire.nn.neurons import LIF, Neuron
from spikewire.runtime import Runtime
from spikewire.runtime.library import available_kernels, installed
from spikewire.runtime.native import NativeEngine

TURN = 0.01  # seconds
Candidates = dict[str, Callable[[], object]]
Runtimes = dict[str, Runtime]


def build_layer_net(kind: str) -> Spiking:
    """Return a network of two layers; the second one, which is fed with spikes, is timed."""
    if kind == "fc":
        layers = {
            "flatten": nn.Flatten(),
            "input": nn.Linear(64, 16384, bias=False),
            "lif0": LIF(),
            "fc": nn.Linear(16384, 2048, bias=False),
            "lif1": LIF(),
        }
        return Spiking(layers, time_steps=8, input_shape=(1, 8, 8))
    layers = {
        "input": nn.Conv2d(3, 256, 3, padding=1, bias=False),
        "lif0": LIF(),
        "conv": nn.Conv2d(256, 256, 3, padding=1, bias=False),
        "lif1": LIF(),
    }
    return Spiking(layers, time_steps=8, input_shape=(3, 32, 32))


@torch.no_grad()
def prepare_(model: Spiking, images: Tensor, connectivity: float, density: float) -> None:
    """Mask the weights at random, then set gains so that a fraction `density` of neurons fires."""
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.mul_(torch.rand_like(parameter) < connectivity)
    model.eval()
    x, previous = images.unsqueeze(0), nn.Module()
    for layer in model:
        if isinstance(layer, Neuron):
            gain = find_gain(layer, x, density)
            for name in ("weight", "bias"):
                if isinstance(getattr(previous, name, None), Tensor):
                    getattr(previous, name).mul_(gain)
            x = x * gain
        x, previous = model.advance(layer, x), layer
    model.train(False)


def find_gain(neuron: Neuron, current: Tensor, density: float) -> float:
    """Return the factor at which a fraction `density` of neurons fires, by bisection."""
    current = current.expand(8, *current.shape[1:])
    low, high = 0.0, 1024.0 / float(current.std().clamp(min=1e-6))
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if neuron(current * middle).mean() < density else (low, middle)
    return high


class Csr(nn.Module):
    """A fully connected layer with weights in torch's CSR format."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its CSR support beta
            self.weight = layer.weight.detach().to_sparse_csr()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x W'``."""
        return (self.weight @ x.T).T


def convert_to_csr(model: Spiking) -> Spiking:
    """Return a copy with CSR weights in fully connected layers; torch has no sparse convolution."""
    model = copy.deepcopy(model)
    for name, layer in list(model.named_children()):
        if isinstance(layer, nn.Linear):
            setattr(model, name, Csr(layer))
    return model


def time_fastest(candidates: Candidates, repeats: int) -> dict[str, float]:
    """Return the seconds of each candidate; of several repeats, one more runs first as warm-up.

    In its turn a short candidate runs for about `TURN` seconds, as in a loop over images.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in candidates}
    warmup = int(repeats > 1)
    for _ in range(warmup + repeats):
        for name, run in candidates.items():
            calls = max(1, int(TURN / times[name][-1])) if times[name] else 1
            begin = clock()
            for _ in range(calls):
                run()
            times[name].append((clock() - begin) / calls)
    return {name: min(seconds[warmup:]) for name, seconds in times.items()}


def collect_layer_candidates(
    model: Spiking, runtimes: Runtimes, images: Tensor, csr: bool
) -> Candidates:
    """Return functions that compute all time steps of the second layer, from spikes to spikes."""
    runtime = next(iter(runtimes.values()))
    spikes = runtime.record_spikes(images)["input"].float()  # [time, batch, ...]
    last, neuron = model[-2], model[-1]
    rows, by_step = spikes.flatten(0, 1), spikes.unbind(0)
    candidates: Candidates = {
        "dense": lambda: neuron(last(rows).unflatten(0, spikes.shape[:2])),
        "dense, step by step": lambda: neuron(torch.stack([last(x) for x in by_step])),
    }
    if csr and isinstance(last, nn.Linear):
        sparse = Csr(last)
        candidates["csr"] = lambda: neuron(sparse(rows).unflatten(0, spikes.shape[:2]))
    for name, runtime in runtimes.items():
        candidates[name] = make_second_layer(runtime, images)
    return candidates


def make_second_layer(runtime: Runtime, images: Tensor) -> Callable[[], object]:
    """Return a function that computes the second layer on the spikes of the first."""
    engine = runtime.engine
    assert isinstance(engine, NativeEngine)
    (first, second), batch = engine.layers[:2], len(images)
    current = engine.compute_current(images.numpy())
    state = first.make_state(batch)
    words: Any = first.fire_(engine.call, current, runtime.network.time_steps, state)
    return lambda: engine.advance_(second, words, second.make_state(batch))


def collect_network_candidates(
    model: Spiking, runtimes: Runtimes, images: Tensor, csr: bool
) -> Candidates:
    """Return functions that compute whole networks, from images to outputs."""
    candidates: Candidates = {"dense": lambda: model(images)}
    if csr:
        candidates["csr (fc only)"] = partial(convert_to_csr(model), images)
    return candidates | {name: partial(runtime, images) for name, runtime in runtimes.items()}


def find_dense_stages(runtime: Runtime) -> str:
    """Return the names of the stages that were computed densely: they have dense weights."""
    engine = runtime.engine
    stages = [x.dense for x in engine.layers] if isinstance(engine, NativeEngine) else engine.dense
    return " ".join(dense.stage.name for dense in stages if "weight" in vars(dense))


def measure_size(runtime: Runtime, values: str) -> float:
    """Return the size of the packed file in megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        return packed.write(runtime.network, Path(folder) / "x", values) / 1e6


def list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a parser of a comma-separated list."""
    return lambda text: [kind(word) for word in text.split(",")]


def read_options() -> argparse.Namespace:
    """Return the values of the flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--what", type=list_of(str), default="fc,conv,mnist-mlp,cifar10-conv")
    parser.add_argument("--connectivity", type=list_of(float), default="0.25,0.05,0.01")
    parser.add_argument("--batch", type=list_of(int), default="1")
    parser.add_argument("--density", type=float, default=0.1, help="fraction of neurons that fire")
    parser.add_argument("--threads", type=list_of(int), default="1")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--no-csr", action="store_true", help="do not time torch CSR")
    best = available_kernels(installed())[0]
    parser.add_argument("--kernels", type=list_of(str), default=best, help="avx512,avx2,portable")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    """Print one table with all cases."""
    options = read_options()
    columns = "what", "conn.", "batch", "threads", "time", "ms", "images/s", "x dense"
    table = Table(*columns, "MB fp16", "MB dense", "dense stages", "spike density")
    cases = product(options.what, options.connectivity, options.batch, options.threads)
    for what, connectivity, batch, threads in cases:
        torch.manual_seed(0)
        torch.set_num_threads(threads)
        model = build_layer_net(what) if what in ("fc", "conv") else build(what)
        images = torch.randn(batch, *(model.input_shape or ()))
        prepare_(model, images[:32], connectivity, options.density)
        case = (what, f"{connectivity:.0%}", str(batch), str(threads))
        time_one(table, case, model, images, options)
        print(".", end="", flush=True)
    Console(width=170).print(
        f"\ntorch {torch.__version__}, {options.repeats} repeats, 8 time steps, dense fp32", table
    )


def trace_case(what: str, model: Spiking) -> Network:
    """Return the record; a single convolution gets a last layer that is not timed."""
    if what == "fc":
        return trace_model(model, classes=tuple(map(str, range(2048))))
    if what != "conv":
        return trace_model(model)
    last = nn.Linear(256 * 32 * 32, 1, bias=False)
    nn.init.zeros_(last.weight)
    layers = {**dict(model.named_children()), "flatten": nn.Flatten(), "last": last}
    return trace_model(Spiking(layers, time_steps=8, input_shape=(3, 32, 32)).eval())


def time_one(
    table: Table,
    case: tuple[str, ...],
    model: Spiking,
    images: Tensor,
    options: argparse.Namespace,
) -> None:
    """Add the rows of one network at one connectivity, batch size and number of threads."""
    network, threads = trace_case(case[0], model), torch.get_num_threads()
    runtimes = {
        f"spikewire{', exact' * exact} ({kernels})": Runtime(
            network, threads=threads, kernels=kernels, exact=exact
        )
        for kernels, exact in product(options.kernels, (False, True))
    }
    single = case[0] in ("fc", "conv")
    collect = collect_layer_candidates if single else collect_network_candidates
    candidates = collect(model, runtimes, images, not options.no_csr)
    times = time_fastest(candidates, options.repeats)
    some = next(iter(runtimes.values()))
    sizes = (measure_size(some, "fp16"), 4e-6 * network.size)
    density = " ".join(f"{x.float().mean():.0%}" for x in some.record_spikes(images[:32]).values())
    for name, seconds in times.items():
        figures = (f"{1e3 * seconds:.2f}", f"{len(images) / seconds:.0f}")
        ends = [""] * 4
        if name in runtimes:
            ends = [*(f"{size:.2f}" for size in sizes), find_dense_stages(runtimes[name]), density]
        table.add_row(*case, name, *figures, f"{times['dense'] / seconds:.1f}", *ends)


if __name__ == "__main__":
    run_script(main)
