"""Turn a finished run into an entry of the zoo: a packed file and its card.

    python benchmarks/zoo.py runs/mnist-budget-1                     # -> zoo:mnist-2.25
    python benchmarks/zoo.py runs/a runs/b --values int8
    python benchmarks/zoo.py runs/mnist-budget-1 --name mnist-small --out /tmp/zoo

Only the run directories and their data sets are needed. The name is that of the data set and the
connectivity in %. Accuracy is that of the packed file on the CPU runtime, over the whole test set
(for the CIFAR-10 network about four minutes of one core); SynOps and synapses are those that the
run has recorded after its last epoch. `--out` of a command becomes a name below ``runs``.
"""

import argparse
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from script import run_script
from time_to_accuracy import seconds_before

from spikewire.config import Config
from spikewire.data.reference import is_python
from spikewire.deploy import export_run
from spikewire.errors import SpikewireError, check
from spikewire.files import atomic_write, make_folder
from spikewire.formats import c, packed
from spikewire.formats.network import Network
from spikewire.report import Run
from spikewire.report import load as load_run
from spikewire.runtime import Runtime
from spikewire.text import percent, size
from spikewire.train.build import load_data, test_batches
from spikewire.zoo import FOLDER, Card, network_path
from spikewire.zoo import card as known_card
from spikewire.zoo.cards import PREFIX

LICENCE = "Apache-2.0"
CHECKED = 256  # test samples on which the trained model and the packed file are compared
MAX_CHANGE = 0.02  # of their accuracies


def add(run: Path, *, name: str | None, values: str, out: Path, data_dir: str | None) -> Card:
    """Write the packed file and the card of one run.

    Raises:
        SpikewireError: If the run is not finished, its network cannot be packed, or the packed file
            has another accuracy than the trained model.
    """
    found = load_run(run)
    if found.state != "finished" or found.config is None:
        raise SpikewireError(f"{run}: is not a finished run {found.problem}".strip())
    name = name or f"{found.config.dataset_name}-{short_percent(found.last['connectivity'])}"
    make_folder(out)
    path = network_path(name, out)
    options = {"values": values, "check_images": CHECKED, "data_dir": data_dir}
    exported = export_run(run, out=path, **options)
    network = packed.read(path)
    accuracy, samples = measure_accuracy(network, found.config, data_dir)
    change = abs(accuracy - found.last["accuracy"])
    check(change <= MAX_CHANGE, "accuracy", accuracy, f"near {found.last['accuracy']} of the run")
    card = make_card(
        found, network, name=name, values=values, accuracy=accuracy, test_samples=samples,
        bytes=exported.size, dense_bytes=exported.dense_size,
    )  # fmt: skip
    with atomic_write(path.with_name(f"{name}.json")) as file:
        file.write(card.to_json().encode())
    return card


def short_percent(fraction: float) -> str:
    """Return a fraction in %, without zeros at the end: ``2.25``, ``0.75``, ``5``."""
    return f"{100 * fraction:.2f}".rstrip("0").rstrip(".")


def measure_accuracy(network: Network, config: Config, data_dir: str | None) -> tuple[float, int]:
    """Return the accuracy of a network on the CPU runtime, and the number of test samples."""
    config = replace(config, data_dir=data_dir or config.data_dir, eval_batch_size=100)
    batches = test_batches(config, load_data(config), torch.device("cpu"))
    runtime = Runtime(network, threads=torch.get_num_threads(), exact=True)  # the same everywhere
    forward = runtime.run_frames if batches.temporal else runtime
    right = 0
    for images, labels in batches.epoch(0):
        right += int((forward(images).mean(0).argmax(1) == labels).sum())
    return right / batches.count, batches.count


def make_card(run: Run, network: Network, **measured: object) -> Card:
    """Return the card: what was measured now, and what the run has recorded."""
    config, costs, env = run.config, run.measured, run.env
    assert config
    kinds = ("synapses", "synapses_reached", "synapses_alive", "synops", "macs")
    memory = c_memory(network)
    figures = {
        "dataset": config.dataset,
        "model": config.model,
        "method": config.method,
        "trained_accuracy": run.last["accuracy"],
        "target": config.target,
        "unit": config.unit,
        "connectivity": network.connectivity,
        "weights": sum(len(stage.index) for stage in network.stages),
        **{kind: costs.get(kind) for kind in kinds},
        "time_steps": network.time_steps,
        "flash": memory and memory.flash,
        "ram": memory and memory.ram,
        "commands": list(commands(run)),
        "seconds": seconds_in_all(run),
        "seed": config.seed,
        "device": env["device"],
        "versions": {key: env[key] for key in ("spikewire", "torch", "python")},
        "date": datetime.now(UTC).date().isoformat(),
        "licence": LICENCE,
    }
    return Card(**figures, **measured)  # pyright: ignore[reportArgumentType]


def seconds_in_all(run: Run) -> float | None:
    """Return the time of a run and of the networks before it; None where one is not known."""
    assert run.config
    try:
        before = seconds_before(run.config)
    except SpikewireError:  # its directory is not here
        return None
    if any(x and x not in before for x in (run.config.start, run.config.teacher)):
        return None
    own = sum(row["seconds"] for row in run.history)
    return round(own + sum(before.values()), 2)


def c_memory(network: Network) -> c.Memory | None:
    """Return the memory that the C export needs; None if C cannot express the network."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return c.write(network, Path(folder) / "network.c")
        except SpikewireError:
            return None


def commands(run: Run) -> Iterator[str]:
    """Yield the commands of the runs that a run started from, then its own."""
    start = run.config.start if run.config else ""
    if start.startswith(PREFIX):
        yield from known_card(start).commands
    elif start:
        near = (Path(start), run.path.parent / Path(start).name)
        if found := [path for path in near if path.is_dir()]:
            yield from commands(load_run(found[0]))
    yield shlex.join(portable_words(shlex.split(run.command)))


def portable_words(words: list[str]) -> Iterator[str]:
    """Yield the words of a command as they are on any machine: run directories below ``runs``."""
    before = ""
    for word in words:
        run = before in ("--out", "--start", "--teacher")
        if run and not word.startswith(PREFIX) and not is_python(word):
            yield f"runs/{Path(word).name}"
        elif "--data-dir" not in (before, word):
            yield word
        before = word


def main() -> None:
    """Add runs to the zoo; print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="finished run directory")
    parser.add_argument("--name", help="name in the zoo (data set and connectivity)")
    parser.add_argument("--values", default="fp16", help="fp32, fp16 or int8 (fp16)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder (that of the package)")
    parser.add_argument("--data-dir", help="directory of the data sets")
    given = vars(parser.parse_args())
    runs = given.pop("runs")
    check(given["name"] is None or len(runs) == 1, "--name", given["name"], "given with one RUN")
    for run in runs:
        card = add(run, **given)
        found = f"{percent(card.accuracy)} on {card.test_samples} test samples"
        print(f"zoo:{card.name}  {found}  {percent(card.connectivity)}  {size(card.bytes)}")


if __name__ == "__main__":
    run_script(main)
