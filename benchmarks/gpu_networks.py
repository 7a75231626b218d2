"""One training step of VGG-16 and SEW-ResNet-18 on one GPU: ours against SpikingJelly 2.0.

Forward, backward and Adam at 4 time steps and batch 128, bf16, channels-last, beside the matmul
ceiling measured in the same run. SpikingJelly is what its wheel installs; on CUDA it chooses its
own Triton kernels for the neurons. It runs eager, as a CUDA graph, and under torch.compile in a
process of its own with a time limit. `imagenet` is SEW-ResNet-18 on random 224 x 224 images.

    python benchmarks/gpu_networks.py --networks vgg16 --out gpu_networks.json
    python benchmarks/gpu_networks.py --networks sew-resnet18,imagenet --sections eager,graph,peer
    TRITON_INTERPRET=1 python benchmarks/gpu_networks.py --cpu    # every path, narrow networks
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gpu_bench import Bench, Row, Step, print_table, require_measurable, trainer
from gpu_step import ceiling
from script import run_script, words_of_list
from spikingjelly_peer import Peer
from torch import Tensor

from spikewire import kernels
from spikewire.nn.layers import Spiking
from spikewire.nn.models import build

NETWORKS = {  # model, side of the images, classes, batch
    "vgg16": ("vgg16", 32, 10, 128),
    "sew-resnet18": ("sew-resnet18", 32, 10, 128),
    "dpap": ("dpap", 32, 10, 128),
    "resnet19": ("resnet19", 32, 10, 128),
    "imagenet": ("sew-resnet18-imagenet", 224, 1000, 128),
}
TIME_STEPS = 4
COMPILE_SECONDS = 55  # limit for SpikingJelly's compilation and its steps


@dataclass
class NetworkBench(Bench):
    """A `Bench` of another network."""

    network: str = "vgg16"
    errors: list[Row] = field(default_factory=list)

    @property
    def batch(self) -> int:
        """Images per step."""
        return NETWORKS[self.network][3]

    def model(self, time_steps: int) -> Spiking:
        """Return the network, channels-last."""
        torch.manual_seed(0)
        name, side, classes, _ = NETWORKS[self.network]
        side = 32 if self.cpu else side
        model = build(
            name,
            time_steps=time_steps,
            input_shape=(3, side, side),
            classes=classes,
            neuron="plif" if name == "dpap" else "lif",
            width=1 / 64 if self.cpu else 1.0,
            threshold=0.5,  # at which deep networks fire from the start
            readout="current",
        )
        return model.to(self.device, memory_format=torch.channels_last)  # pyright: ignore

    def images(self, batch: int) -> Tensor:
        """Return random images, channels-last."""
        side = 32 if self.cpu else NETWORKS[self.network][1]
        images = torch.randn(self.batch_size(batch), 3, side, side, device=self.device)
        return images.contiguous(memory_format=torch.channels_last)

    def time(self, name: str, step: Step, warmup: int = 4) -> Row:
        """Time a step and keep its row."""
        return self.add(name, self.batch, TIME_STEPS, step, 24, warmup)


def eager(bench: NetworkBench) -> None:
    """Run ours with the fused kernels."""
    model = bench.model(TIME_STEPS)
    bench.time("ours eager", trainer(bench, model, model, bench.batch)[0])


def twins(bench: NetworkBench) -> None:
    """Run ours with the kernels off."""
    before = kernels.use("torch")
    try:
        model = bench.model(TIME_STEPS)
        bench.time("ours eager, kernels off", trainer(bench, model, model, bench.batch)[0])
    finally:
        kernels.use(before)


def graph(bench: NetworkBench) -> None:
    """Run ours with the whole step as a CUDA graph, as `spikewire train` does by default."""
    model = bench.model(TIME_STEPS)
    step, _ = trainer(bench, model, model, bench.batch, capturable=not bench.cpu)
    bench.time("ours CUDA graph", captured(bench, step))


def captured(bench: NetworkBench, step: Step) -> Step:
    """Return a step that replays one CUDA graph; on a CPU the step itself."""
    if bench.cpu:
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    whole = torch.cuda.CUDAGraph()
    with torch.cuda.graph(whole):
        step()
    return whole.replay


def peer_step(bench: NetworkBench, compiled: bool = False, **adam: Any) -> Step:
    """Return SpikingJelly's step; its state is reset outside the compiled part."""
    from spikingjelly.activation_based import functional

    peer = Peer(bench.model(TIME_STEPS), "m").to(bench.device)
    forward = bench.compile(peer) if compiled else peer

    def reset_and_run(images: Tensor) -> Tensor:
        functional.reset_net(peer)
        return forward(images)

    return trainer(bench, peer, reset_and_run, bench.batch, **adam)[0]


def peer_eager(bench: NetworkBench) -> None:
    """Run SpikingJelly 2.0 multi-step with its own automatically chosen kernels."""
    bench.time("SpikingJelly eager", peer_step(bench))


def peer_graph(bench: NetworkBench) -> None:
    """Run SpikingJelly's whole step as a CUDA graph."""
    step = peer_step(bench, capturable=not bench.cpu)
    bench.time("SpikingJelly CUDA graph", captured(bench, step))


def peer_compiled(bench: NetworkBench) -> None:
    """Run SpikingJelly under torch.compile in a process that can be stopped."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--networks", bench.network, "--out", file.name]
        command += ["--sections", "peer-compiled-here", "--ceiling", str(bench.ceiling or 0)]
        command += ["--cpu"] if bench.cpu else []
        subprocess.run(command, timeout=COMPILE_SECONDS, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(Path(file.name).read_text())["networks"][bench.network]
    for error in found["errors"]:
        raise RuntimeError(error["error"])
    bench.rows += found["rows"]


def peer_compiled_here(bench: NetworkBench) -> None:
    """Compile and run SpikingJelly in this process."""
    bench.time("SpikingJelly compiled", peer_step(bench, compiled=True))


SECTIONS: dict[str, Callable[[NetworkBench], None]] = {
    "eager": eager,
    "graph": graph,
    "peer": peer_eager,
    "peer-graph": peer_graph,
    "peer-compiled": peer_compiled,
}
EXTRA = {"twins": twins, "peer-compiled-here": peer_compiled_here}  # only when named


def run_sections(bench: NetworkBench, names: list[str], save: Callable[[], None]) -> None:
    """Run the sections and save after each; what fails is an error, and the others still run."""
    for name in names:
        print(f"{bench.network}, {name} (at {time.perf_counter() - bench.start:.0f} s)", flush=True)
        error = bench.attempt(SECTIONS | EXTRA, name)
        bench.errors += [{"section": name, "error": error}] if error else []
        save()


def write(benches: dict[str, NetworkBench], path: Path | None) -> None:
    """Write the results so far."""
    if path is None:
        return
    first = next(iter(benches.values()))
    found: dict[str, Any] = {"command": " ".join(sys.argv), "torch": torch.__version__}
    found |= {"device": "cpu" if first.cpu else torch.cuda.get_device_name()}
    found |= {"ceiling_tflops": first.ceiling}
    found["networks"] = {n: {"rows": b.rows, "errors": b.errors} for n, b in benches.items()}
    path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--networks", default="vgg16,sew-resnet18")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--ceiling", type=float, help="TFLOP/s, measured before")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    require_measurable(options.cpu, options.out)
    networks = words_of_list("--networks", options.networks, NETWORKS)
    sections = words_of_list("--sections", options.sections, SECTIONS | EXTRA)
    kernels.use("triton")
    if not options.cpu:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    benches: dict[str, NetworkBench] = {}
    top = options.ceiling
    for network in networks:
        bench = NetworkBench(options.cpu, seconds=0.0, ceiling=top, network=network)
        benches[network] = bench
        if top is None:
            ceiling(bench)
            top, bench.rows = bench.ceiling, []
        run_sections(bench, sections, lambda: write(benches, options.out))
    for network, bench in benches.items():
        print(f"\n{network}", end="")
        print_table(bench.rows)
        for error in bench.errors:
            print(f"{error['section']}: {error['error']}")
    write(benches, options.out)  # with the table's ratios


if __name__ == "__main__":
    run_script(main)
