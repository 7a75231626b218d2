"""Time inference: dense torch, torch CSR, and ours, on the same images in the same run.

Networks are masked at random to each connectivity, and every layer's gain is set so that its
neurons fire at the asked density. The contestants take turns; each figure is the fastest of the
repeats, and the factor is against dense torch. One thread is timed by its processor time, which a
busy machine does not inflate; several threads by the clock on the wall. Dense torch gets all time
steps as one batch; "step by step" is what a stream, or a network with feedback, has to do.

    python benchmarks/inference.py                        # layers and networks, one thread, batch 1
    python benchmarks/inference.py --what cifar10-conv --batch 1,32 --threads 2
"""

import argparse
import copy
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from rewire.export import packed
from rewire.export.structure import describe
from rewire.models import Spiking, build
from rewire.neurons import LIF, Neuron
from rewire.runtime import Runtime

Contestants = dict[str, Callable[[], object]]


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
    """Return the seconds of each, taking turns after one round of warming up."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats + 1):
        for name, run in contestants.items():
            begin = clock()
            run()
            times[name].append(clock() - begin)
    return {name: min(seconds[1:]) for name, seconds in times.items()}


def layer_times(kind: str, model: Spiking, runtime: Runtime, images: Tensor) -> Contestants:
    """Time the second layer only, all time steps, from spikes to spikes."""
    engine = runtime.engine
    spikes = runtime.trace(images)["input"].float()  # [time, batch, ...]
    last, neuron = model[-2], model[-1]
    rows = spikes.flatten(0, 1)
    contestants: Contestants = {
        "dense": lambda: neuron(last(rows).unflatten(0, spikes.shape[:2])),
    }
    if isinstance(last, nn.Linear):
        csr = Csr(last)
        contestants["csr"] = lambda: neuron(csr(rows).unflatten(0, spikes.shape[:2]))
    by_step = spikes.unbind(0)
    contestants["dense, step by step"] = lambda: [last(x) for x in by_step]
    begin, rest = engine.layers[0], engine.layers[1]
    words = begin.fire(
        engine.library, engine.current(images.numpy()), model.time_steps, begin.rest(len(images))
    )
    contestants["ours"] = lambda: rest.spiking(
        engine.library, words, rest.rest(len(images)), engine.each
    )
    return contestants


def size_of(runtime: Runtime, values: str) -> float:
    """Return the megabytes of the packed file."""
    with tempfile.TemporaryDirectory() as folder:
        return packed.write(runtime.network, Path(folder) / "x", values) / 1e6


@torch.inference_mode()
def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", default="fc,conv,mnist-mlp,cifar10-conv")
    parser.add_argument("--connectivity", default="0.25,0.05,0.01")
    parser.add_argument("--batch", default="1")
    parser.add_argument("--density", type=float, default=0.1, help="share of neurons that fire")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--kernels", help="avx512, avx2, portable; the best by default")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table("what", "batch", "conn.", "time", "ms", "x dense", "MB fp16", "spike density")
    for what in options.what.split(","):
        for connectivity in map(float, options.connectivity.split(",")):
            for batch in map(int, options.batch.split(",")):
                torch.manual_seed(0)
                model = layer_net(what) if what in ("fc", "conv") else build(what)
                images = torch.randn(batch, *(model.input_shape or ()))
                prepare_(model, images, connectivity, options.density)
                classes = {"classes": tuple(map(str, range(2048)))} if what == "fc" else {}
                runtime = time_one(table, what, model, images, connectivity, options, classes)
                print(".", end="", flush=True)
                del runtime
    Console(width=150).print(
        f"\ntorch {torch.__version__}, {options.threads} thread(s), {options.repeats} repeats, "
        f"8 time steps, dense fp32",
        table,
    )


def time_one(table, what, model, images, connectivity, options, classes) -> Runtime:  # noqa: ANN001
    """Add the rows of one network at one connectivity and batch."""
    if what == "conv":  # a network must end fully connected; this end is not timed
        whole = {**dict(model.named_children()), "flatten": nn.Flatten()}
        end = nn.Linear(256 * 32 * 32, 1, bias=False)
        nn.init.zeros_(end.weight)
        shown = Spiking({**whole, "end": end}, time_steps=8, input_shape=(3, 32, 32))
    else:
        shown = model
    runtime = Runtime(
        describe(shown.eval(), **classes), threads=options.threads, kernels=options.kernels
    )
    if what in ("fc", "conv"):
        contestants = layer_times(what, model, runtime, images)
    else:
        sparse = with_csr(model)
        contestants: Contestants = {
            "dense": lambda: model(images),
            "csr (fc only)": lambda: sparse(images),
            "ours": lambda: runtime(images),
        }
    times = fastest(contestants, options.repeats)
    densities = " ".join(f"{x.float().mean():.1%}" for x in runtime.trace(images).values())
    for name, seconds in times.items():
        mine = name == "ours"
        table.add_row(
            what,
            str(len(images)),
            f"{connectivity:.0%}",
            f"{name} ({runtime.kernels})" if mine else name,
            f"{seconds * 1e3:.2f}",
            f"{times['dense'] / seconds:.1f}",
            f"{size_of(runtime, 'fp16'):.2f}" if mine else "",
            densities if mine else "",
        )
    return runtime


if __name__ == "__main__":
    main()
