"""Recurrent neurons in files and on the runtime: the same spikes as their equation and as torch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from agreement import KERNELS
from refusal import refused

import spikewire
from spikewire.formats import coo, packed
from spikewire.formats.network import Source
from spikewire.formats.trace import trace_model
from spikewire.nn import scale_to_fire_
from spikewire.runtime import Runtime

TIME_STEPS, BATCH, HIDDEN = 9, 5, 37


@pytest.fixture(scope="module", params=["hard", "soft"])
def model(request):
    """A network whose recurrent synapses, half of them pruned, change its spikes."""
    torch.manual_seed(1)
    sizes = {"input_shape": (12,), "classes": 7, "hidden": HIDDEN, "temporal": True}
    given = {"readout": "current", "tau": 3.0, "reset": request.param}
    model = spikewire.build("recurrent", time_steps=TIME_STEPS, **sizes, **given)
    scale_to_fire_(model, make_frames())
    weight = model.get_parameter("rec1.synapses.weight")
    with torch.no_grad():
        model.get_parameter("fc1.weight").mul_(2)
        weight.mul_(10).mul_(torch.rand_like(weight) < 0.5)
    return model.eval()


def make_frames():
    return torch.rand(TIME_STEPS, BATCH, 12, generator=torch.Generator().manual_seed(0))


def run_equation(network, frames):
    """I[t] = W1 x[t] + b1 + W S[t-1]; m = u + (I - u) / tau; S = m >= 1; reset; W2 S + b2."""
    first, own, last = network.stages
    outputs, fired = [], []
    u, spikes = np.zeros((BATCH, HIDDEN)), np.zeros((BATCH, HIDDEN))
    for x in frames.double().numpy():
        current = x @ first.to_dense().T + first.bias + spikes @ own.to_dense().T
        m = u + (current - u) / own.neuron.tau
        spikes = (m >= 1).astype(float)
        u = m - spikes if own.neuron.reset == "soft" else m * (1 - spikes)
        fired.append(spikes)
        outputs.append(spikes @ last.to_dense().T + last.bias)
    return np.array(fired).astype(bool), np.array(outputs)


def test_every_kernel_gives_the_spikes_of_the_equation(model):
    frames = make_frames()
    network = trace_model(model, frames)
    spikes, outputs = run_equation(network, frames)
    silent = run_equation(without_feedback(network), frames)[0]
    assert 0.05 < spikes.mean() < 0.95
    assert (spikes != silent).mean() > 0.1  # the recurrent synapses matter
    with torch.no_grad():
        np.testing.assert_allclose(model(frames).numpy(), outputs, atol=1e-5)
    exact = []
    for kernels in KERNELS:
        runtime = Runtime(network, kernels=kernels, exact=True)
        found = runtime.record_spikes(frames, frames=True)
        assert list(found) == ["rec1.synapses"]
        assert np.array_equal(found["rec1.synapses"].numpy(), spikes), kernels
        exact.append(runtime.run_frames(frames))
        np.testing.assert_allclose(exact[-1].numpy(), outputs, atol=1e-5)
        about = Runtime(network, kernels=kernels, threads=2).run_frames(frames)
        torch.testing.assert_close(about, exact[0], atol=1e-5, rtol=0)
    assert all(torch.equal(exact[0], other) for other in exact)


def without_feedback(network):
    """The same network with recurrent weights of 0."""
    first, own, last = network.stages
    own = replace(own, values=np.zeros_like(own.values))
    return replace(network, stages=(first, own, last))


def test_an_image_is_the_same_frame_at_every_step(model):
    """All steps in one call, recorded as a program and repeated; or one step at a time."""
    network, image = trace_model(model, make_frames()), make_frames()[3]
    frames = image.expand(TIME_STEPS, *image.shape)
    wanted = Runtime(network, kernels="torch", exact=True).run_frames(frames)
    for kernels in KERNELS:
        for threads in (1, 2):
            runtime = Runtime(network, kernels=kernels, threads=threads, exact=True)
            for _ in range(2):
                assert torch.equal(runtime(image), wanted), kernels
            assert torch.equal(runtime(image[:1]), wanted[:, :1])
            stream = runtime.stream(BATCH)
            parts = [stream.advance(image, 4), stream.advance(image, TIME_STEPS - 4)]
            assert torch.equal(torch.cat(parts), wanted)


@pytest.mark.parametrize("kernels", [KERNELS[0], "torch"])
def test_a_stream_continues_with_some_of_its_samples(model, kernels):
    frames = make_frames()
    runtime = Runtime(trace_model(model, frames), kernels=kernels, exact=True)
    wanted = runtime.run_frames(frames)
    stream, chosen = runtime.stream(BATCH), torch.tensor([True, False, True, True, False])
    for frame in frames[:4]:
        stream.step(frame)
    stream.keep(chosen)
    for number in range(4, TIME_STEPS):
        assert torch.equal(stream.step(frames[number][chosen]), wanted[number][chosen])


def test_early_exit_over_time_stops_where_the_scores_say(model):
    frames = make_frames()
    runtime = Runtime(trace_model(model, frames), exact=True)
    outputs = runtime.run_frames(frames)
    classes, taken = runtime.decide(frames, 0.2, frames=True)
    for sample in range(BATCH):
        scores = outputs[:, sample].cumsum(0)
        best = scores.topk(2).values
        leads = (best[:, 0] - best[:, 1]).tolist()
        wanted = [t for t in range(1, TIME_STEPS + 1) if leads[t - 1] > 0.2 * (TIME_STEPS - t)]
        steps = wanted[0] if wanted else TIME_STEPS
        assert int(taken[sample]) == steps
        assert int(classes[sample]) == int(scores[steps - 1].argmax())
    assert 1 < taken.float().mean() < TIME_STEPS
    assert torch.equal(runtime.predict(frames, frames=True), outputs.mean(0).argmax(1))
    refused(lambda: runtime.predict(frames[0], frames=True), "images")


@pytest.mark.parametrize("values", packed.VALUES)
def test_a_packed_file_holds_recurrent_synapses(model, values, tmp_path):
    network, frames = trace_model(model, make_frames()), make_frames()
    packed.write(network, tmp_path / "x", values)
    back = packed.read(tmp_path / "x")
    assert back.recurrent == network.recurrent == (1,)
    assert back.connectivity == network.connectivity
    wanted = Runtime(packed.quantise(network, values), exact=True).run_frames(frames)
    assert torch.equal(Runtime(back, exact=True).run_frames(frames), wanted)


def test_export_compares_the_spikes_of_recurrent_neurons(model, tmp_path):
    done = spikewire.export(model, make_frames(), tmp_path / "net.packed.safetensors")
    assert done.different_spikes < 1e-3
    assert done.connectivity == pytest.approx(
        sum(int(p.count_nonzero()) for p in model.parameters() if p.ndim > 1)
        / sum(p.numel() for p in model.parameters() if p.ndim > 1)
    )


def test_connection_lists_have_recurrent_synapses_of_delay_one(model, tmp_path):
    network = trace_model(model, make_frames())
    coo.write(network, tmp_path / "x")
    delays = {}
    for number, stage in enumerate(network.stages):
        lists = np.load(tmp_path / "x" / f"{number}-{stage.name}.npz")
        delays[stage.name] = set(lists["delay"].tolist())
        dense = np.zeros(stage.shape, np.float32)
        dense[lists["post"], lists["pre"]] = lists["weight"]
        assert np.array_equal(dense, stage.to_dense())
    assert delays == {"fc1": {0}, "rec1.synapses": {1}, "fc2": {0}}


def test_what_no_recurrent_stage_may_be_is_refused(model):
    network = trace_model(model, make_frames())
    first, own, last = network.stages

    def build(**fields):
        return replace(network, stages=(first, replace(own, **fields), last))

    both = (Source(1), Source(1))
    refused(lambda: build(inputs=both), "rec1.synapses: input", "the only one")
    refused(lambda: build(inputs=(Source(1, True),)), "rec1.synapses: input")
    refused(lambda: build(inputs=(Source(2),)), "an earlier stage")
    refused(lambda: build(neuron=None), "a stage with neurons")
    refused(lambda: build(shape=(HIDDEN * HIDDEN, 1), bias=np.zeros(HIDDEN**2, np.float32)), "for")
    refused(lambda: build(shape=(HIDDEN, HIDDEN, 1, 1)), "rec1.synapses", "for (37,)")
    ends = {"classes": tuple(map(str, range(HIDDEN))), "membrane": True}
    refused(lambda: replace(network, stages=(first, own), **ends), "membrane", "recurrent")
