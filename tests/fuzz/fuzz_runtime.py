"""Fuzz the reader of packed files and the kernels with damaged files and random networks.

    python fuzz_runtime.py CASES SEED [LIBRARY]

Every case is a packed file of a random network, and half of the files are damaged. Reading must
return a network or raise a SpikewireError; a network that is read must run, with the same spikes on
all kernels. LIBRARY is another build of the kernels; under AddressSanitizer one byte out of bounds
ends the process.
"""

import json
import random
import struct
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from spikewire.errors import SpikewireError
from spikewire.formats import packed
from spikewire.formats.network import Network, Neuron, Pool, Stage
from spikewire.runtime import Runtime
from spikewire.runtime.library import available_kernels, bind, installed


def random_network(rng: random.Random) -> Network:
    """Return a network of small random sizes."""
    generator = np.random.default_rng(rng.getrandbits(32))
    shape = (rng.randint(1, 3), rng.randint(1, 12), rng.choice([1, 5, 15, 16, 17, 33, 63, 64, 65]))
    stages, inputs = [], shape
    for number in range(rng.randint(0, 2)):
        kernel = (rng.randint(1, min(4, inputs[1])), rng.randint(1, min(4, inputs[2])))
        weights = (rng.randint(1, 4), inputs[0], *kernel)
        pool = Pool(rng.choice(["max", "sum"]), rng.randint(2, 3)) if rng.random() < 0.5 else None
        padding = rng.randint(0, min(kernel) - 1)
        stage = random_stage(rng, generator, f"conv{number}", weights, padding)
        try:
            inputs = stage.infer_geometry(inputs).neurons
            if pool and pool.size <= min(inputs[1:]):
                stage = replace(stage, pool=pool)
                inputs = (inputs[0], inputs[1] // pool.size, inputs[2] // pool.size)
        except SpikewireError:
            break
        stages.append(stage)
    units, classes = int(np.prod(inputs)), rng.randint(1, 40)
    stages.append(random_stage(rng, generator, "fc", (classes, units), 0))
    if rng.random() < 0.3:
        stages[-1] = replace(stages[-1], neuron=None)
    names = tuple(map(str, range(classes)))
    steps = rng.randint(1, 4)
    return Network(stages=tuple(stages), input_shape=shape, time_steps=steps, classes=names)


def random_stage(rng, generator, name, shape, padding) -> Stage:
    """Return synapses of any connectivity, including 0 and 1."""
    total = int(np.prod(shape))
    count = rng.choice([0, total, rng.randint(0, total)])
    index = np.sort(generator.choice(total, count, replace=False)).astype(np.int64)
    return Stage(
        name=name,
        shape=shape,
        index=index,
        values=generator.normal(size=count).astype(np.float32),
        bias=generator.normal(size=shape[0]).astype(np.float32),
        padding=padding,
        neuron=Neuron(rng.choice([None, 1.0, 2.0, 3.0]), rng.choice([0.3, 1.0]), 0.0),
    )


def damage(content: bytes, rng: random.Random) -> bytes:
    """Flip, cut or repeat bytes, or change one number of the header."""
    kind = rng.randrange(4)
    if kind == 0:
        return content[: rng.randrange(len(content))]
    if kind == 1:
        at = rng.randrange(len(content))
        return content[:at] + content[at : at + rng.randrange(64)] + content[at:]
    if kind == 2:
        changed = bytearray(content)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    return change_header(content, rng)


def change_header(content: bytes, rng: random.Random) -> bytes:
    """Replace one number of the JSON record by an unexpected value."""
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    network = json.loads(header["__metadata__"]["network"])
    holder, key = rng.choice(list(find_numbers(network)))
    values = [0, 1, -1, 2, 3, 7, 255, 2**16, 2**31, 2**33, 2**63, 10**30, 0.5, None, "x", [], True]
    holder[key] = rng.choice(values)
    header["__metadata__"]["network"] = json.dumps(network)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def find_numbers(record):
    """Yield the container and the key of each number in a nested record."""
    items = record.items() if isinstance(record, dict) else enumerate(record)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from find_numbers(value)
        elif not isinstance(value, str):
            yield record, key


def run(path: Path, library, seed: int) -> None:
    """Read the file; a network that is read must run, with the same outputs on all kernels."""
    try:
        network = packed.read(path)
        if np.prod(network.input_shape) > 2**14 or network.time_steps > 64:
            return
        runtimes = [
            Runtime(network, kernels=kernels, library=library, threads=1 + seed % 3, exact=True)
            for kernels in available_kernels(library)
        ]
        torch.manual_seed(seed)
        images = torch.randn(1 + seed % 3, *network.input_shape)
        outputs = [runtime(images) for runtime in runtimes]
    except SpikewireError as refusal:
        if "\n" in str(refusal):
            raise
        return
    for other in outputs[1:]:
        assert torch.equal(outputs[0], other)


def main(cases: int, seed: int, library: str | None = None) -> None:
    """Run the cases; a failure raises an exception or ends the process."""
    torch.set_num_threads(1)
    kernels = bind(library) if library else installed()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        for case in range(seed, seed + cases):
            rng = random.Random(case)
            packed.write(random_network(rng), path, rng.choice(packed.VALUES))
            if rng.random() < 0.5:
                path.write_bytes(damage(path.read_bytes(), rng))
            try:
                run(path, kernels, case)
            except Exception as error:
                error.add_note(f"case {case}")
                raise


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
