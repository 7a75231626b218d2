from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from networks import conv_net
from runtime.agreement import KERNELS

from spikewire.formats.trace import trace_model
from spikewire.nn.models import build
from spikewire.runtime import Runtime, program

NATIVE = [name for name in KERNELS if name != "torch"]


def step_by_step(runtime, images):
    """The outputs of a stream, whose calls are not recorded."""
    stream = runtime.stream(len(images))
    return torch.stack([stream.step(images) for _ in range(runtime.network.time_steps)])


@pytest.mark.parametrize("kernels", NATIVE)
@pytest.mark.parametrize("pool", ["max", "avg"])
@pytest.mark.parametrize("readout", ["spikes", "current"])
def test_recorded_calls_give_the_same_outputs_for_other_images(kernels, pool, readout):
    model = conv_net(pool=pool, readout=readout)
    runtime = Runtime(trace_model(model), kernels=kernels, exact=True)
    for batch in (1, 3, 1, 2, 3):
        images = torch.randn(batch, *model.input_shape)
        assert torch.equal(runtime(images), step_by_step(runtime, images))
    assert len(runtime.engine.programs.kept) == 3


def test_outputs_are_not_overwritten_by_the_next_call():
    model = conv_net()
    runtime = Runtime(trace_model(model), exact=True)
    first, second = torch.randn(2, 1, *model.input_shape)
    found = runtime(first)
    before = found.clone()
    runtime(second)
    assert torch.equal(found, before)


def test_threads_of_the_caller_do_not_share_arrays():
    model = conv_net()
    runtime = Runtime(trace_model(model), exact=True)
    images = torch.randn(64, 1, *model.input_shape)
    wanted = [step_by_step(runtime, image) for image in images]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(runtime, images))
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_only_few_and_small_programs_are_kept(monkeypatch):
    model = conv_net()
    runtime = Runtime(trace_model(model), exact=True)
    for batch in range(1, 8):
        runtime(torch.randn(batch, *model.input_shape))
    kept = runtime.engine.programs.kept
    assert [shape[0] for shape, _ in kept] == [4, 5, 6, 7]
    monkeypatch.setattr(program, "MAX_BYTES", 1)
    runtime(torch.randn(1, *model.input_shape))
    assert len(kept) == 4


def test_nothing_is_recorded_where_a_stage_may_be_dense_or_threads_share_the_work():
    runtime = Runtime(trace_model(build("mnist-mlp")))  # dense weights, from a certain batch on
    runtime(torch.rand(256, 1, 28, 28))
    assert not runtime.engine.programs.kept
    runtime = Runtime(trace_model(conv_net()), threads=2, exact=True)
    runtime(torch.rand(2, 2, 9, 21))
    assert not runtime.engine.programs.kept
