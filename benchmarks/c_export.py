"""Time the C export against snnTorch on one CPU core: one network, the same images, one run.

    python benchmarks/c_export.py zoo:digits-5
    python benchmarks/c_export.py runs/x/model.packed.safetensors --images 500

A packed file is written as C (int8 and fp32 weights), compiled with `cc -std=c99 -O2`, and built
again with snnTorch: dense `nn.Linear` or `nn.Conv2d` and `snntorch.Leaky` with ``beta = 1 - 1/tau``
and weights divided by tau. The first layer, whose input is the same in all time steps, is computed
once there too, which is faster than in snnTorch's tutorials. Times are processor times per image,
the fastest of the repeats. The column "same classes" compares with the CPU runtime.

The peer that emits C for snnTorch networks is snn-generator (SpikeEdge), which states 10 to 21
times the speed of snnTorch on a desktop. It is not run here: it cannot be installed as a package.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from script import run_script
from torch import Tensor, nn

from spikewire.errors import check
from spikewire.formats import c, packed
from spikewire.formats.network import Network, Pool, Stage
from spikewire.runtime import Runtime
from spikewire.runtime.inputs import read_images
from spikewire.text import size

BATCH = 100  # of the second row of snnTorch
MAIN = """
#include "network.c"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int main(int argc, char **argv)
{{
    static float images[{count}][{inputs}];
    int repeats = atoi(argv[argc - 1]), i, best;
    double least = 1e9;
    if (fread(images, sizeof images, 1, stdin) != 1) return 1;
    for (best = 0; best < repeats; best++) {{
        clock_t start = clock();
        for (i = 0; i < {count}; i++) spikewire_predict_real(images[i], 0);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (seconds < least) least = seconds;
    }}
    printf("%.9g\\n", least / {count});
    for (i = 0; i < {count}; i++) printf("%d\\n", spikewire_predict_real(images[i], 0));
    return 0;
}}
"""


class Row(NamedTuple):
    """One candidate: seconds per image, and its classes."""

    name: str
    seconds: float
    classes: Tensor
    memory: str = ""


# ---------------------------------------------------------------------- snnTorch


class SnnTorch(nn.Module):
    """A chain of stages with dense weights and snnTorch's neurons."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        check(
            not network.shortcuts and not network.membrane,
            "network",
            "branches",
            "a chain of layers",
        )
        self.steps, self.vote = network.time_steps, network.vote
        self.flat = len(network.stages[0].shape) == 2
        self.synapses = nn.ModuleList(dense_synapses(stage) for stage in network.stages)
        self.neurons = nn.ModuleList(leaky(stage) for stage in network.stages)
        self.pools = nn.ModuleList(pooling(stage.pool) for stage in network.stages)

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean output over time, [batch, classes]."""
        for neuron in self.neurons:
            if not isinstance(neuron, nn.Identity):
                neuron.get_buffer("mem").zero_()
        first = self.synapses[0](images.flatten(1) if self.flat else images)
        total = torch.zeros(())
        for _ in range(self.steps):
            x = first
            for number, (synapse, neuron) in enumerate(
                zip(self.synapses, self.neurons, strict=True)
            ):
                if number:
                    flat = isinstance(synapse, nn.Linear) and x.ndim > 2
                    x = synapse(x.flatten(1) if flat else x)
                x = self.pools[number](neuron(x))
            total = total + x
        return (total / self.steps).flatten(1).unflatten(1, (-1, self.vote)).mean(2)


def dense_synapses(stage: Stage) -> nn.Module:
    """Return the layer of a stage with its zeros, for neurons that do not divide by tau."""
    weight = np.zeros(stage.size, np.float32)
    weight[stage.index] = stage.values
    factor = 1 / stage.neuron.tau if stage.neuron and stage.neuron.tau else 1.0
    outputs, inputs = stage.shape[:2]
    if stage.is_conv:
        kernel = (stage.shape[2], stage.shape[3])
        layer: nn.Linear | nn.Conv2d = nn.Conv2d(inputs, outputs, kernel, padding=stage.padding)
    else:
        layer = nn.Linear(inputs, outputs)
    assert layer.bias is not None
    layer.weight.data = torch.from_numpy(weight.reshape(stage.shape)) * factor
    layer.bias.data = torch.from_numpy(stage.bias) * factor
    return layer


def leaky(stage: Stage) -> nn.Module:
    """Return snnTorch's neurons of a stage; they reset in the time step of the spike."""
    from snntorch import Leaky

    neuron = stage.neuron
    if neuron is None:
        return nn.Identity()
    check(neuron.rest == 0, f"{stage.name}: rest", neuron.rest, "0")
    plain = neuron.update == "divide" and neuron.reset in ("hard", "soft") and not neuron.strict
    check(plain, f"{stage.name}: neuron", neuron, "LIF or IF of spikewire")
    reset = {"hard": "zero", "soft": "subtract"}[neuron.reset]
    beta = 1 - 1 / neuron.tau if neuron.tau else 1.0
    options = {"reset_mechanism": reset, "reset_delay": False, "init_hidden": True}
    return Leaky(beta=beta, threshold=neuron.threshold, **options)


def pooling(pool: Pool | None) -> nn.Module:
    """Return the pooling of spikes."""
    if pool is None:
        return nn.Identity()
    check(pool.step == pool.size and pool.padding == 0, "pool", pool, "without overlap")
    return nn.MaxPool2d(pool.size) if pool.kind == "max" else nn.LPPool2d(1, pool.size)  # a sum


# ---------------------------------------------------------------------- timing


def time_python(forward: Callable[[Tensor], Tensor], images: Tensor, batch: int, repeats: int):
    """Return the processor time per image, the fastest of the repeats, and the classes."""
    best, classes = float("inf"), []
    for _ in range(repeats):
        classes, start = [], time.process_time()
        for part in images.split(batch):
            classes.append(forward(part).argmax(1))
        best = min(best, time.process_time() - start)
    return best / len(images), torch.cat(classes)


def time_c(network: Network, images: Tensor, values: str, compiler: str, repeats: int) -> Row:
    """Write, compile and run the C file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        memory = c.write(network, folder / "network.c", values)
        sizes = {"count": len(images), "inputs": images[0].numel()}
        (folder / "main.c").write_text(MAIN.format(**sizes))
        command = [compiler, "-std=c99", "-O2", "main.c", "-o", "main"]
        subprocess.run(command, cwd=folder, check=True)
        done = subprocess.run(
            [folder / "main", str(repeats)], input=images.numpy().tobytes(), capture_output=True,
            check=True,
        )  # fmt: skip
    seconds, *classes = done.stdout.split()
    used = f"{size(memory.flash)} + {size(memory.ram)}"
    return Row(f"C, {values}", float(seconds), torch.tensor(list(map(int, classes))), used)


@torch.no_grad()
def measure(network: Network, images: Tensor, compiler: str, repeats: int) -> list[Row]:
    """Return one row per candidate; the first is snnTorch, one image at a time."""
    peer, runtime = SnnTorch(network).eval(), Runtime(network, exact=True)
    rows = [
        Row("snnTorch, batch 1", *time_python(peer, images, 1, repeats)),
        Row(f"snnTorch, batch {BATCH}", *time_python(peer, images, BATCH, repeats)),
        *(time_c(network, images, values, compiler, repeats) for values in c.VALUES),
    ]

    def forward(part: Tensor) -> Tensor:
        return runtime(part).mean(0)

    name = f"CPU runtime, {runtime.kernels}, batch 1"
    return [*rows, Row(name, *time_python(forward, images, 1, repeats))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="packed file or zoo:NAME")
    parser.add_argument("--images", type=int, default=200, help="test images (200)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats, of which the best counts")
    parser.add_argument("--compiler", default="cc", help="C compiler (cc)")
    parser.add_argument("--data-dir", help="directory of the data sets")
    given = parser.parse_args()
    torch.set_num_threads(1)
    network = packed.read(given.model)
    source = str(network.about["dataset"])
    images = read_images(source, Runtime(network), given.data_dir)[0][: given.images].contiguous()
    rows = measure(network, images, given.compiler, given.repeats)
    print_table(given.model, network, rows)


def print_table(name: str, network: Network, rows: list[Row]) -> None:
    """Print time per image, and the speed relative to both rows of snnTorch."""
    title = f"{name}: {100 * network.connectivity:.3g} % of {network.size:,} weights, "
    table = Table(title=f"{title}{network.time_steps} time steps")
    heads = ("", "ms per image", "x snnTorch, batch 1", f"x batch {BATCH}", "same classes")
    for head in (*heads, "flash + RAM"):
        table.add_column(head, justify="left" if not head else "right")
    reference = rows[-1].classes
    for row in rows:
        ratios = (f"{peer.seconds / row.seconds:.1f}" for peer in rows[:2])
        same = f"{(row.classes == reference).double().mean():.1%}"
        table.add_row(row.name, f"{1e3 * row.seconds:.4f}", *ratios, same, row.memory)
    Console(width=120).print(table)


if __name__ == "__main__":
    run_script(main)
