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
from safetensors.numpy import load

from spikewire.errors import SpikewireError
from spikewire.formats import packed
from spikewire.formats.network import IMAGE, Network, Neuron, Pool, Source, Stage
from spikewire.formats.neuron import RESETS, UPDATES
from spikewire.runtime import Runtime
from spikewire.runtime.library import available_kernels, bind, installed

WIDTHS = (1, 5, 15, 16, 17, 33, 63, 64, 65)


def random_network(rng: random.Random) -> Network:
    """Return a graph of small random sizes."""
    generator = np.random.default_rng(rng.getrandbits(32))
    shape = (rng.randint(1, 3), rng.randint(1, 12), rng.choice(WIDTHS))
    stages, shapes = [], {Source(IMAGE): shape}  # of all sources so far
    for number in range(rng.randint(0, 3)):
        inputs = random_inputs(rng, shapes if number == 0 else drop_image(shapes))
        if len(shapes[inputs[0]]) != 3:
            break
        try:
            stage = random_conv(rng, generator, f"conv{number}", shapes[inputs[0]], inputs)
            geometry = stage.infer_geometry(shapes[inputs[0]])
        except SpikewireError:
            break
        if stages and rng.random() < 0.3:  # the currents of another stage are added
            stages.append(replace(stage, name=f"{stage.name}b", neuron=None, pool=None))
            stage = replace(stage, adds=(len(stages) - 1,) * rng.randint(1, 2))
        stages.append(stage)
        shapes[Source(len(stages) - 1)] = geometry.neurons
        if stage.pool:
            shapes[Source(len(stages) - 1, True)] = geometry.outputs
    inputs = random_inputs(rng, drop_image(shapes) if stages else shapes)
    units, classes = int(np.prod(shapes[inputs[0]])), rng.randint(1, 40)
    last = random_stage(rng, generator, "fc", (classes, units), inputs=inputs)
    if rng.random() < 0.3:
        last = replace(last, neuron=None)
    lasts = [last]
    if rng.random() < 0.3:  # recurrent neurons, which another stage may follow
        own = random_stage(rng, generator, "rec", (classes, classes))
        own = replace(own, inputs=(Source(len(stages) + 1),), adds=(len(stages),))
        lasts = [replace(last, neuron=None), own]
        if rng.random() < 0.7:
            lasts.append(random_stage(rng, generator, "readout", (classes, classes)))
    network = make_network([*stages, *lasts], shape, rng, classes)
    if stages and not stages[-1].pool and rng.random() < 0.2:  # ends in a convolution
        if rng.random() < 0.5:
            stages[-1] = replace(stages[-1], neuron=None)
        outputs = int(np.prod(network.geometry[len(stages) - 1].neurons))
        network = make_network(stages, shape, rng, outputs)
    return network


def make_network(stages, shape, rng, outputs) -> Network:
    """Return a network of some stages; unused stages remain."""
    vote = rng.choice([n for n in (1, 2, 5) if outputs % n == 0])
    names = tuple(map(str, range(outputs // vote)))
    sizes = {"input_shape": shape, "time_steps": rng.randint(1, 4), "vote": vote}
    recurrent = Source(len(stages) - 1) in stages[-1].inputs
    sizes["membrane"] = stages[-1].neuron is not None and not recurrent and rng.random() < 0.3
    return Network(stages=tuple(stages), classes=names, **sizes)


def drop_image(shapes):
    """Return the sources that are spikes."""
    return {source: shape for source, shape in shapes.items() if source.stage != IMAGE}


def random_inputs(rng, shapes) -> tuple[Source, ...]:
    """Return one source, or several of the same shape, which are added."""
    first = rng.choice(list(shapes))
    same = [source for source, shape in shapes.items() if shape == shapes[first]]
    if first.stage == IMAGE:
        return (first,)
    return (first, *(rng.choice(same) for _ in range(rng.choice([0, 0, 1, 2]))))


def random_conv(rng, generator, name, shape, inputs) -> Stage:
    """Return a convolution with any stride, padding, dilation, groups and pooling."""
    kernel = (rng.randint(1, 4), rng.randint(1, 4))
    dilation = (rng.choice([1, 1, 2]), rng.choice([1, 1, 2, 3]))
    padding = tuple(rng.randint(0, d * (n - 1)) for d, n in zip(dilation, kernel, strict=True))
    groups = rng.choice([n for n in (1, 1, 2, 3) if shape[0] % n == 0])
    outputs = groups * rng.randint(1, 4)
    return random_stage(
        rng,
        generator,
        name,
        (outputs, shape[0] // groups, *kernel),
        stride=(rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 3])),
        padding=padding,
        dilation=dilation,
        groups=groups,
        inputs=inputs,
        current_pool=random_pool(rng) if rng.random() < 0.2 else None,
        pool=random_pool(rng) if rng.random() < 0.5 else None,
    )


def random_pool(rng) -> Pool:
    """Return any pooling, also with windows that overlap or lie apart."""
    size = rng.randint(1, 4)
    stride = rng.choice([0, 1, 2, 3]) if size > 1 else rng.choice([2, 3])
    return Pool(rng.choice(["max", "sum"]), size, stride, rng.randint(0, size // 2))


def random_stage(rng, generator, name, shape, **fields) -> Stage:
    """Return synapses of any connectivity, including 0 and 1, and neurons of any kind."""
    total = int(np.prod(shape))
    count = rng.choice([0, total, rng.randint(0, total)])
    index = np.sort(generator.choice(total, count, replace=False)).astype(np.int64)
    neuron = Neuron(
        rng.choice([None, 1.0, 2.0, 3.0]),
        rng.choice([0.3, 1.0]),
        0.0,
        rng.choice(RESETS),
        rng.choice(UPDATES),
        rng.random() < 0.5,
        rng.choice([0.0, 0.0, 0.3, 0.9]),
    )
    return Stage(
        name=name,
        shape=shape,
        index=index,
        values=generator.normal(size=count).astype(np.float32),
        bias=generator.normal(size=shape[0]).astype(np.float32),
        neuron=neuron,
        **fields,
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
    text = json.dumps(network)
    header["__metadata__"] |= {"network": text, "crc32": packed.checksum(text, load(content))}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def find_numbers(record):
    """Yield the container and the key of each number in a nested record."""
    items = record.items() if isinstance(record, dict) else enumerate(record)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from find_numbers(value)
        elif not isinstance(value, str) or key in ("reset", "update", "kind"):
            yield record, key


def run(path: Path, library, seed: int) -> None:
    """Read the file; a network that is read must run, with the same outputs on all kernels."""
    try:
        network = packed.read(path)
        if np.prod(network.input_shape) > 2**14 or network.time_steps > 64:
            return
        runtimes = [
            Runtime(network, kernels=kernels, library=library, threads=1 + seed % 2, exact=True)
            for kernels in available_kernels(library)
        ]
        torch.manual_seed(seed)
        images = torch.randn(1 + seed % 3, *network.input_shape)
        outputs = [runtime(images) for runtime in runtimes for _ in range(2)]  # recorded, repeated
        stream = runtimes[0].stream(len(images))
        steps = [stream.step(images) for _ in range(network.time_steps)]
        outputs.append(torch.stack(steps))
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
