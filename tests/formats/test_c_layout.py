"""Where a C file keeps spikes and currents: nothing is overwritten that is read later."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused

from spikewire.formats import Network, Neuron, Stage, c
from spikewire.formats.c_layout import place_spikes
from spikewire.formats.network import Source

NEURON = Neuron(2.0, 1.0, 0.0)


def make_stage(name, outputs, inputs, sources=(), **fields):
    """Return a fully connected stage without synapses."""
    arrays = {"index": np.zeros(0, np.int64), "values": np.zeros(0, np.float32)}
    arrays["bias"] = np.zeros(outputs, np.float32)
    read = tuple(Source(number) for number in sources)
    return Stage(name=name, shape=(outputs, inputs), inputs=read, **arrays, **fields)


def make_network(*stages):
    classes = tuple(map(str, range(stages[-1].shape[0])))
    inputs = (stages[0].shape[1],)
    return Network(stages=stages, input_shape=inputs, time_steps=2, classes=classes)


def test_currents_that_two_layers_add_are_refused(tmp_path):
    network = make_network(
        make_stage("first", 4, 3, neuron=NEURON),
        make_stage("shared", 4, 4),
        make_stage("second", 4, 4, [0], adds=(1,), neuron=NEURON),
        make_stage("third", 4, 4, [2], adds=(1,), neuron=NEURON),
    )
    refused(lambda: c.write(network, tmp_path / "x.c"), "third: adds", "'shared'", "once in C")


@given(st.data())
def test_spikes_that_are_needed_at_the_same_time_do_not_overlap(data):
    """A chain of layers with random shortcuts, run with a memory that is written as in C."""
    count = data.draw(st.integers(2, 7))
    sizes: list[int] = [3]
    stages: list[Stage] = []
    for k in range(count):
        wide = [j for j in range(k) if j == k - 1]
        wide += [j for j in range(k - 1) if sizes[j + 1] == sizes[k] and data.draw(st.booleans())]
        sizes.append(data.draw(st.sampled_from([2, 5])))
        stages.append(make_stage(f"l{k}", sizes[k + 1], sizes[k], wide, neuron=NEURON))
    network = make_network(*stages)
    layout, memory = place_spikes(network), {}
    assert layout.size <= sum(sizes[1:]) + sum(sizes[k] for k in layout.sums)
    for k in range(count):
        for source in network.sources[k] if k else ():
            at = layout.spikes[source]
            assert all(memory[at + i] == source for i in range(sizes[source.stage + 1]))
        if k in layout.sums:
            memory |= {layout.sums[k] + i: "sum" for i in range(sizes[k])}
            kept = [Source(j) for j in range(k) if any(Source(j) in s for s in network.sources[k:])]
            for source in kept:
                at = layout.spikes[source]
                assert all(memory[at + i] == source for i in range(sizes[source.stage + 1]))
        memory |= {layout.spikes[Source(k)] + i: Source(k) for i in range(sizes[k + 1])}
    assert max(memory) < layout.size
