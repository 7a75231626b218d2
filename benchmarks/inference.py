"""Time inference: dense torch, torch CSR, and ours, on the same images in the same run.

Networks are masked at random to each connectivity, and every layer's gain is set so that its
neurons fire at the asked density. The contestants take turns; each figure is the fastest of the
repeats, and the factor is against dense torch. One thread is timed by its processor time, which a
busy machine does not inflate; several threads by the clock on the wall. Dense torch gets all time
steps as one batch; "step by step" is what a stream, or a network with feedback, has to do.

    python benchmarks/inference.py                        # layers and networks, one thread, batch 1
    python benchmarks/inference.py --what mnist-mlp --batch 1,32,256 --threads 1,2
    python benchmarks/inference.py --what conv,cifar10-conv --kernels avx512,avx2,portable
    python benchmarks/inference.py --what cifar10-conv --batch 256 --repeats 1 --no-csr

Ours may compute stages densely, and names them; "exact" forbids it. One repeat is timed without
warming up: passes so long that one is enough do not need it.
"""

import argparse
import copy
import math
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
from torch import Tensor, nn

from spikewire.formats import packed
from spikewire.formats.network import Network, describe
from spikewire.nn.models import Spiking, build
from spikewire.nn.neurons import LIF, Neuron
from spikewire.runtime import Runtime
from spikewire.runtime.library import installed, paths
from spikewire.runtime.native import Native

Contestants = dict[str, Callable[[], object]]
Runtimes = dict[str, Runtime]


def layer_net(kind: str) -> Spiking:
    """One layer under spikes: neurons straight on the input, then the synapses that are timed."""
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
    """Mask the weights at random, then set each layer's gain so that `density` of spikes come."""
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.mul_(torch.rand_like(parameter) < connectivity)
    model.eval()
    x, before = images.unsqueeze(0), nn.Module()
    for layer in model:
        if isinstance(layer, Neuron):
            gain = _gain(layer, x, density)
            for name in ("weight", "bias"):
                if isinstance(getattr(before, name, None), Tensor):
                    getattr(before, name).mul_(gain)
            x = x * gain
        x, before = model.advance(layer, x), layer
    model.train(False)


def _gain(neuron: Neuron, current: Tensor, density: float) -> float:
    """Find by bisection the factor at which `density` of the spikes are there."""
    current = current.expand(8, *current.shape[1:])
    low, high = 0.0, 1024.0 / float(current.std().clamp(min=1e-6))
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if neuron(current * middle).mean() < density else (low, middle)
    return high


class Csr(nn.Module):
    """Fully connected synapses as torch's compressed rows."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its CSR support beta
            self.weight = layer.weight.detach().to_sparse_csr()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x W'``."""
        return (self.weight @ x.T).T


def with_csr(model: Spiking) -> Spiking:
    """Return a copy whose fully connected layers are CSR; torch has no sparse convolution."""
    model = copy.deepcopy(model)
    for name, layer in list(model.named_children()):
        if isinstance(layer, nn.Linear):
            setattr(model, name, Csr(layer))
    return model


def fastest(contestants: Contestants, repeats: int) -> dict[str, float]:
    """Return the seconds of each, taking turns; where there are several, the first warms up."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in contestants}
    warming = int(repeats > 1)
    for _ in range(warming + repeats):
        for name, run in contestants.items():
            begin = clock()
            run()
            times[name].append(clock() - begin)
    return {name: min(seconds[warming:]) for name, seconds in times.items()}


def layer_times(model: Spiking, runtimes: Runtimes, images: Tensor, csr: bool) -> Contestants:
    """Time the second layer only, all time steps, from spikes to spikes."""
    spikes = next(iter(runtimes.values())).trace(images)["input"].float()  # [time, batch, ...]
    last, neuron = model[-2], model[-1]
    rows, by_step = spikes.flatten(0, 1), spikes.unbind(0)
    contestants: Contestants = {
        "dense": lambda: neuron(last(rows).unflatten(0, spikes.shape[:2])),
        "dense, step by step": lambda: neuron(torch.stack([last(x) for x in by_step])),
    }
    if csr and isinstance(last, nn.Linear):
        sparse = Csr(last)
        contestants["csr"] = lambda: neuron(sparse(rows).unflatten(0, spikes.shape[:2]))
    for name, runtime in runtimes.items():
        contestants[name] = second_layer(runtime, images)
    return contestants


def second_layer(runtime: Runtime, images: Tensor) -> Callable[[], object]:
    """Return the work of the second layer on the spikes of the first."""
    engine = runtime.engine
    assert isinstance(engine, Native)
    (first, second), batch = engine.layers[:2], len(images)
    current = engine.current(images.numpy())
    words = first.fire(engine.library, current, runtime.network.time_steps, first.rest(batch))
    return lambda: engine.advance(second, words, second.rest(batch))


def network_times(model: Spiking, runtimes: Runtimes, images: Tensor, csr: bool) -> Contestants:
    """Time whole networks, from images to answers."""
    contestants: Contestants = {"dense": lambda: model(images)}
    if csr:
        contestants["csr (fc only)"] = partial(with_csr(model), images)
    return contestants | {name: partial(runtime, images) for name, runtime in runtimes.items()}


def dense_stages(runtime: Runtime) -> str:
    """Return the names of the stages that went through dense torch: their weights are there."""
    engine = runtime.engine
    stages = [x.dense for x in engine.layers] if isinstance(engine, Native) else engine.dense
    return " ".join(dense.stage.name for dense in stages if "weight" in vars(dense))


def size_of(runtime: Runtime, values: str) -> float:
    """Return the megabytes of the packed file."""
    with tempfile.TemporaryDirectory() as folder:
        return packed.write(runtime.network, Path(folder) / "x", values) / 1e6


def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a reader of words with commas between."""
    return lambda text: [kind(word) for word in text.split(",")]


def read_options() -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--what", type=listed(str), default="fc,conv,mnist-mlp,cifar10-conv")
    parser.add_argument("--connectivity", type=listed(float), default="0.25,0.05,0.01")
    parser.add_argument("--batch", type=listed(int), default="1")
    parser.add_argument("--density", type=float, default=0.1, help="share of neurons that fire")
    parser.add_argument("--threads", type=listed(int), default="1")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--no-csr", action="store_true", help="leave torch CSR out")
    best = paths(installed())[0]
    parser.add_argument("--kernels", type=listed(str), default=best, help="avx512,avx2,portable")
    return parser.parse_args()


@torch.inference_mode()
def main() -> None:
    """Print one table."""
    options = read_options()
    columns = "what", "conn.", "batch", "threads", "time", "ms", "images/s", "x dense"
    table = Table(*columns, "MB fp16", "MB dense", "dense stages", "spike density")
    cases = product(options.what, options.connectivity, options.batch, options.threads)
    for what, connectivity, batch, threads in cases:
        torch.manual_seed(0)
        torch.set_num_threads(threads)
        model = layer_net(what) if what in ("fc", "conv") else build(what)
        images = torch.randn(batch, *(model.input_shape or ()))
        prepare_(model, images[:32], connectivity, options.density)
        case = (what, f"{connectivity:.0%}", str(batch), str(threads))
        time_one(table, case, model, images, options)
        print(".", end="", flush=True)
    Console(width=170).print(
        f"\ntorch {torch.__version__}, {options.repeats} repeats, 8 time steps, dense fp32", table
    )


def network_of(what: str, model: Spiking) -> Network:
    """Return the records; a convolution alone gets an end that is not timed."""
    if what == "fc":
        return describe(model, classes=tuple(map(str, range(2048))))
    if what != "conv":
        return describe(model)
    end = nn.Linear(256 * 32 * 32, 1, bias=False)
    nn.init.zeros_(end.weight)
    layers = {**dict(model.named_children()), "flatten": nn.Flatten(), "end": end}
    return describe(Spiking(layers, time_steps=8, input_shape=(3, 32, 32)).eval())


def time_one(
    table: Table,
    case: tuple[str, ...],
    model: Spiking,
    images: Tensor,
    options: argparse.Namespace,
) -> None:
    """Add the rows of one network at one connectivity, batch and number of threads."""
    network, threads = network_of(case[0], model), torch.get_num_threads()
    runtimes = {
        f"ours{', exact' * exact} ({kernels})": Runtime(
            network, threads=threads, kernels=kernels, exact=exact
        )
        for kernels, exact in product(options.kernels, (False, True))
    }
    setting = layer_times if case[0] in ("fc", "conv") else network_times
    contestants = setting(model, runtimes, images, not options.no_csr)
    times = fastest(contestants, options.repeats)
    some = next(iter(runtimes.values()))
    sizes = (size_of(some, "fp16"), 4e-6 * sum(math.prod(s.shape) for s in network.stages))
    density = " ".join(f"{x.float().mean():.0%}" for x in some.trace(images[:32]).values())
    for name, seconds in times.items():
        figures = (f"{1e3 * seconds:.2f}", f"{len(images) / seconds:.0f}")
        ends = [""] * 4
        if name in runtimes:
            ends = [*(f"{size:.2f}" for size in sizes), dense_stages(runtimes[name]), density]
        table.add_row(*case, name, *figures, f"{times['dense'] / seconds:.1f}", *ends)


if __name__ == "__main__":
    main()
