"""Call the public methods of the runtime with wrong arguments, one at a time.

    python misuse_runtime.py LIBRARY [EVERY]

Each case is a valid call in which one argument has another type, shape, memory layout or size. It
must raise a SpikewireError of one line, or give what the valid call gives. LIBRARY is a build of
the kernels with AddressSanitizer, where one byte out of bounds ends the process; EVERY = 3 runs
each third case. Prints the number of cases.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from spikewire.errors import SpikewireError
from spikewire.formats.network import Network, Neuron, Pool, Source, Stage
from spikewire.runtime import Runtime
from spikewire.runtime.library import available_kernels, bind

Case = tuple[str, Callable[[], Any], Any]  # name, call, what it may return; None if it must raise
STEPS, BATCH = 3, 4
CUBA = Neuron(2.0, 0.5, 0.0, current_decay=0.5)
NUMBERS = (0, -1, 2**31, 2**63, 2**70, 1.5, float("nan"), True, None, "2", [1], np.int64(-1))


def make_stage(name: str, shape: tuple[int, ...], **fields: Any) -> Stage:
    """Return synapses of connectivity 1 / 2."""
    generator = np.random.default_rng(len(shape))
    index = np.arange(0, int(np.prod(shape)), 2)
    values = generator.normal(size=len(index)).astype(np.float32)
    bias = generator.normal(size=shape[0]).astype(np.float32)
    given = {"neuron": Neuron(2.0, 0.5, 0.0), **fields}
    return Stage(name=name, shape=shape, index=index, values=values, bias=bias, **given)


def make_network(kind: str) -> Network:
    """Return a network whose arrays are large enough for blocks of their own."""
    if kind == "conv":
        stages = (
            make_stage("conv1", (9, 2, 3, 3), padding=(1, 1), pool=Pool("sum", 2)),
            make_stage("conv2", (8, 9, 3, 3), padding=(1, 1), pool=Pool("max", 2), neuron=CUBA),
            make_stage("fc", (20, 8 * 5 * 5)),
        )
        return make(stages, (2, 20, 21))
    if kind == "recurrent":
        stages = (
            make_stage("fc1", (70, 300), neuron=None),
            make_stage("rec1", (70, 70), inputs=(Source(1),), adds=(0,), neuron=CUBA),
            make_stage("fc2", (20, 70), neuron=None),
        )
        return make(stages, (300,))
    stages = (make_stage("fc1", (700, 300)), make_stage("fc2", (20, 700), neuron=None))
    return make(stages, (300,))


def make(stages: tuple[Stage, ...], shape: tuple[int, ...]) -> Network:
    names = tuple(map(str, range(20)))
    return Network(stages=stages, input_shape=shape, time_steps=STEPS, classes=names)


def wrong_arrays(
    array: np.ndarray, *, writeable: bool = False, any_rows: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield arrays that differ from `array` in one property; with `any_rows`, not in the rows."""
    for dtype in ("float16", "float64", "int32", "bool", "uint8", array.dtype.newbyteorder()):
        yield str(np.dtype(dtype)), array.astype(dtype)
    yield "every second column", np.repeat(array, 2, -1)[..., ::2]
    yield "reversed", array[..., ::-1]
    yield "column by column", np.asfortranarray(array)
    yield (
        "unaligned",
        np.frombuffer(b"x" + array.tobytes(), array.dtype, -1, 1).reshape(array.shape),
    )
    if not any_rows:
        yield "a row less", array[:-1]
        yield "a row more", np.concatenate([array, array[:1]])
        yield "one row", array[:1].copy()
        yield "no row", array[:0]
    yield "a column less", np.ascontiguousarray(array[..., :-1])
    yield "no column", np.ascontiguousarray(array[..., :0])
    yield "a column more", np.concatenate([array, array[..., :1]], -1)
    yield "another axis", array[None]
    yield "an axis less", array[0]
    yield "a number", np.array(0, array.dtype)
    yield "broadcast", np.broadcast_to(array[:1], array.shape)
    for other in (None, "x", 1.0, array.tolist(), torch.from_numpy(array.copy()), array.tobytes()):
        yield type(other).__name__, other
    if writeable:
        array = array.copy()
        array.flags.writeable = False
        yield "read-only", array


def cases(library: Any, kernels: str, kind: str) -> Iterator[Case]:
    """Yield all cases of one network on some kernels."""
    network = make_network(kind)
    options = {"library": library, "kernels": kernels, "exact": True}
    runtime = Runtime(network, threads=2, **options)
    engine, layers = runtime.engine, runtime.engine.layers
    kernels_call = engine.call
    images = 2 * torch.randn(BATCH, *network.input_shape)
    valid = runtime(images)
    yield from stream_cases(runtime, images)
    yield from image_cases(runtime, images, valid)
    for name, wrong in wrong_arrays(images.numpy(), any_rows=True):
        yield f"compute_current: {name}", partial(engine.compute_current, wrong), None
    current = engine.compute_current(images.numpy())
    for number, own in enumerate(engine.make_state(BATCH)):
        for key, array in own.items():
            for name, wrong in wrong_arrays(array, writeable=True):
                changed = engine.make_state(BATCH)
                changed[number] = {**changed[number], key: wrong}
                yield f"state: {key}: {name}", partial(engine.run_, current, STEPS, changed), None
    arrays = [own["voltage"] for own in engine.make_state(BATCH)]
    yield "state: arrays", partial(engine.run_, current, STEPS, arrays), None
    more = [{**own, "current": own["voltage"][:1]} for own in engine.make_state(BATCH)]
    yield "state: a current where there is none", partial(engine.run_, current, STEPS, more), ...
    yield "state: too few", partial(engine.run_, current, STEPS, engine.make_state(BATCH)[1:]), None
    spikes = layers[0].fire_(kernels_call, current, STEPS, layers[0].make_state(BATCH))
    for name, wrong in wrong_arrays(current):
        call = partial(layers[0].fire_, kernels_call, wrong, STEPS)
        yield f"fire_: {name}", partial(call, layers[0].make_state(BATCH)), None
    pooled = layers[0].pool(kernels_call, spikes)
    for name, wrong in wrong_arrays(pooled):
        call = partial(layers[1].feed_spikes_, kernels_call, wrong, layers[1].make_state(BATCH))
        yield f"feed_spikes_: {name}", partial(call, engine.each), None
    for number, value in enumerate((np.uint16(0xFFFF), np.uint16(0x8000))):
        # bits beyond the width of a row are no inputs
        filled = np.full_like(pooled, value)
        state = layers[1].make_state(BATCH)
        call = partial(layers[1].feed_spikes_, kernels_call, filled, state, engine.each)
        yield f"bits beyond the row {number}", call, ...
    for stage in range(len(network.stages)):
        yield from stage_cases(network, stage, options)
    for value in NUMBERS:
        yield f"threads: {value!r}", partial(Runtime, network, threads=value), None


def stream_cases(runtime: Runtime, images: torch.Tensor) -> Iterator[Case]:
    """Yield cases of `Stream`: batch, steps, current, chosen samples."""
    current = runtime.engine.compute_current(images.numpy())
    for value in NUMBERS:
        if value not in (2**31, 2**63, 2**70):  # a stream of 2**31 samples may exist elsewhere
            yield f"batch: {value!r}", partial(runtime.stream, value), None
        yield f"steps: {value!r}", partial(runtime.stream(BATCH).advance, images, value), None
        yield f"feed steps: {value!r}", partial(runtime.stream(BATCH).feed, current, value), None
    for name, wrong in wrong_arrays(current):
        yield f"feed: {name}", partial(runtime.stream(BATCH).feed, wrong, STEPS), None
    other = runtime.stream(2)
    yield "feed: another stream's", partial(other.feed, current, STEPS), None
    chosen = torch.tensor([True, False, True, True])
    wrong = [
        torch.arange(BATCH), torch.tensor([3, 3, 3, 3]), torch.tensor([0, -1, 99, 2**40]),
        chosen.float(), chosen.byte(), chosen[:-1], chosen[None], torch.ones(9, dtype=torch.bool),
        torch.tensor(True), chosen.numpy(), chosen.tolist(), None, 1, slice(None), "x",
    ]  # fmt: skip
    for number, value in enumerate(wrong):
        yield f"keep {number}", partial(keep_and_feed, runtime, images, value), None
    yield "none left", partial(keep_and_feed, runtime, images, chosen & False), None


def keep_and_feed(runtime: Runtime, images: torch.Tensor, chosen: Any) -> torch.Tensor:
    """Feed a stream after `keep`: as many rows as the stream says it has."""
    stream = runtime.stream(BATCH)
    current = runtime.engine.compute_current(images.numpy())
    stream.keep(chosen)
    return stream.feed(
        np.ascontiguousarray(np.resize(current, (stream.batch, *current.shape[1:]))), 2
    )


def image_cases(runtime: Runtime, images: torch.Tensor, valid: torch.Tensor) -> Iterator[Case]:
    """Yield images of other types and shapes; the values of some are the same."""
    same = [images.double(), images.flip(-1).flip(-1), images.repeat_interleave(2, -1)[..., ::2]]
    same += [images.clone().requires_grad_(), images.transpose(0, 1).contiguous().transpose(0, 1)]
    for number, value in enumerate(same):
        yield f"same images {number}", partial(runtime, value), valid
    wrong: list[Any] = [
        images[:0], images[..., :-1], images[0], images[None], images.to(torch.complex64),
        images.to_sparse(), images.to("meta"), images / 0, images * torch.inf, images.numpy(),
        images.double() * 1e300, images.flatten(), torch.tensor(1.0), None, "x", images.tolist(),
    ]  # fmt: skip
    for number, value in enumerate(wrong):
        for call in (runtime, runtime.predict, runtime.decide, runtime.record_spikes):
            yield f"images {number}", partial(call, value), None
        yield f"early exit, images {number}", partial(runtime.predict, value, early_exit=0.5), None
        yield f"stream, images {number}", partial(runtime.stream(BATCH).step, value), None


def stage_cases(network: Network, number: int, options: dict[str, Any]) -> Iterator[Case]:
    """Yield networks with another array in one stage, also one changed after it was checked."""
    stage = network.stages[number]

    def build(**fields: Any) -> Runtime:
        stages = list(network.stages)
        stages[number] = replace(stage, **fields)
        return Runtime(replace(network, stages=tuple(stages)), **options)

    def build_later(index: int) -> Runtime:
        stages = list(network.stages)
        stages[number] = replace(stage, index=stage.index.copy())
        made = replace(network, stages=tuple(stages))
        made.stages[number].index[-1] = index
        return Runtime(made, **options)

    for field in ("index", "values", "bias"):
        for name, wrong in wrong_arrays(getattr(stage, field)):
            valid = name == "column by column"  # the same for one dimension
            yield (
                f"{stage.name}.{field}: {name}",
                partial(build, **{field: wrong}),
                (... if valid else None),
            )
    for value in (-1, 2**40, 0):
        yield f"{stage.name}.index changed to {value}", partial(build_later, value), None
    for value in NUMBERS:
        for field in ("padding", "stride", "dilation"):
            pair = (0, value)
            if not (field == "padding" and value in (0, False)):
                yield f"{stage.name}.{field}: {value!r}", partial(build, **{field: pair}), None
        if value is not True:
            yield f"{stage.name}.groups: {value!r}", partial(build, groups=value), None
        yield f"{stage.name}.pool: {value!r}", partial(build, pool=Pool("sum", value)), None  # type: ignore[arg-type]
        shape = (value, *stage.shape[1:])
        yield f"{stage.name}.shape: {value!r}", partial(build, shape=shape), None
    for shape in (list(stage.shape), stage.shape[:1], (), None, tuple(map(float, stage.shape))):
        yield f"{stage.name}.shape: {shape!r}", partial(build, shape=shape), None


def judge(name: str, call: Callable[[], Any], expected: Any) -> None:
    """Assert that a call raises one line, or returns `expected`; ``...`` allows any result."""
    refusal = None
    try:
        result = call()
    except SpikewireError as error:
        refusal, result = str(error), None
    if refusal is None:
        assert expected is not None, f"{name}: was accepted"
        assert expected is ... or torch.equal(result, expected), f"{name}: another result"
    else:
        assert "\n" not in refusal, name
        assert expected is None or expected is ..., f"{name}: {refusal}"


def main(path: str, every: int = 1) -> None:
    """Run the cases; a failure raises an exception or ends the process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    library, count = bind(path), 0
    for kernels in available_kernels(library)[:-1]:  # without torch, which has no C code of ours
        for kind in ("conv", "linear", "recurrent"):
            for number, case in enumerate(cases(library, kernels, kind)):
                if number % every == 0:
                    sys.stderr.write(f"{case[0]}\n")  # the last one if the process ends
                    judge(*case)
                    count += 1
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
