"""Models of other libraries, recorded and run: the same spikes as in their own forward pass."""

import numpy as np
import peer_models as peers
import pytest
import torch
from refusal import refused
from runtime.agreement import KERNELS
from torch import nn

import spikewire
from spikewire.formats import Network, Stage, nir, packed
from spikewire.formats.libraries import read_neuron
from spikewire.formats.trace import trace_model
from spikewire.runtime import Runtime

NEURONS = (peers.neuron.BaseNode, peers.snntorch.Leaky, peers.norse.LIFBoxCell, peers.norse.IAFCell)
NEURONS += (peers.snntorch.Synaptic, peers.norse.LIFCell, peers.norse.LIF)


@torch.no_grad()
def own_spikes(model, *inputs):
    """The spikes of every neuron module of a model, ``[time, batch, ...]``, by its own forward."""
    calls, handles = {}, []
    for name, module in model.named_modules():
        if isinstance(module, NEURONS):
            calls[name] = []

            def hook(module, args, output, name=name):
                spikes = output[0] if isinstance(output, tuple) else output
                multi = getattr(module, "step_mode", "s") == "m" or type(module) is peers.norse.LIF
                calls[name].append((spikes if multi else spikes.unsqueeze(0)).clone())

            handles.append(module.register_forward_hook(hook))
    for x in inputs:
        model(x)
    for handle in handles:
        handle.remove()
    for module in model.modules():
        if isinstance(module, peers.neuron.BaseNode):
            module.reset()
    return {name: torch.cat(spikes).bool() for name, spikes in calls.items() if spikes}


def assert_same_spikes(model, example, inputs=None, *, frames=False, **options):
    """All kernels give exactly the spikes of the model; return the recorded network."""
    model.eval()
    network = trace_model(model, example, **options)
    wanted = own_spikes(model, *(inputs or [example]))
    for kernels in KERNELS:
        runtime = Runtime(network, kernels=kernels, exact=True)
        found = runtime.record_spikes(example, frames=frames)
        assert len(found) == len(wanted)
        for (stage, spikes), own in zip(found.items(), wanted.values(), strict=True):
            assert 0.002 < own.float().mean() < 0.9, stage
            assert torch.equal(spikes.reshape(own.shape), own), (kernels, stage)
    return network


@pytest.mark.parametrize("kind", peers.NODES)
def test_spikingjelly_convolutional_network(kind):
    node, options = peers.NODES[kind]
    model = peers.settle_(peers.JellyConv(node, **options))
    images = 2 * torch.rand(2, 1, 28, 28)
    network = assert_same_spikes(model, images)
    assert (network.time_steps, network.vote, len(network.classes)) == (4, 2, 10)
    with torch.no_grad():
        assert torch.equal(Runtime(network)(images).mean(0), model(images))


def test_spikingjelly_in_single_step_mode():
    model = peers.settle_(peers.JellyConv()).conv_fc
    peers.jelly.set_step_mode(model, "s")
    images = 2 * torch.rand(2, 1, 28, 28)
    assert_same_spikes(model, images, [images] * 6, time_steps=6)
    refused(lambda: trace_model(model, images), "time_steps", "one time step per call")


def test_spikingjelly_network_with_strides_groups_and_dilation_on_frames():
    model = peers.settle_(peers.JellyVgg())
    network = assert_same_spikes(model, 2 * torch.rand(5, 2, 2, 20, 20), frames=True)
    assert [stage.stride for stage in network.stages[:4]] == [(1, 1), (2, 2), (1, 1), (2, 2)]
    assert [stage.groups for stage in network.stages[:4]] == [1, 2, 1, 4]
    assert network.stages[3].pool == (("sum", 3, 2, 1))


def test_spikingjelly_sew_resnet_block():
    model = peers.settle_(peers.sew_block())
    frames = torch.randn(4, 2, 3, 32, 32)
    network = assert_same_spikes(model, frames, frames=True)
    assert network.shortcuts
    sources = {
        stage.name: len(own) for stage, own in zip(network.stages, network.sources, strict=True)
    }
    assert sources["5.conv1"] == 2  # the sum of the block before and its shortcut
    assert sources["8"] == 3
    with torch.no_grad():
        wanted = model(frames)
    torch.testing.assert_close(Runtime(network).run_frames(frames), wanted, rtol=1e-5, atol=1e-5)


def test_spikingjelly_spiking_resnet_block_adds_currents():
    model = peers.settle_(peers.spiking_block())
    frames = torch.randn(4, 2, 3, 16, 16)
    network = assert_same_spikes(model, frames, frames=True)
    stages = {stage.name: stage for stage in network.stages}
    for name, other in (("3.conv2", "3.downsample.0"), ("4.conv2", "4.shortcut")):
        assert [network.stages[number].name for number in stages[name].adds] == [other]
    assert len(stages["4.shortcut"].index) == 16  # one synapse per channel


@pytest.mark.slow
def test_spikingjelly_whole_sew_resnet_18(tmp_path):
    model = peers.settle_(peers.sew_resnet18())
    frames = torch.randn(4, 1, 3, 64, 64)
    exported = spikewire.export(model, frames, tmp_path / "x")
    assert exported.different_spikes == 0
    network = packed.read(tmp_path / "x")
    assert len(network.stages) == 21
    wanted = own_spikes(model, frames)
    found = Runtime(network, exact=True).record_spikes(frames, frames=True)
    assert all(
        torch.equal(a.reshape(b.shape), b)
        for a, b in zip(found.values(), wanted.values(), strict=True)
    )


@pytest.mark.parametrize("reset", ["subtract", "zero"])
def test_snntorch_loop_over_time(reset):
    model = peers.settle_(peers.SnnTorchDense(reset_mechanism=reset), gain=1.5)
    images = (96 * torch.rand(3, 1, 28, 28)).round() / 32
    for parameter in model.parameters():  # so that sums are exact in any order
        parameter.data.mul_(512).round_().div_(512)
    network = assert_same_spikes(model, images)
    assert network.time_steps == 25
    assert torch.equal(Runtime(network)(images), model(images)[0])


class MeanMembrane(peers.SnnTorchDense):
    def forward(self, x):
        return super().forward(x)[1].sum(0) / self.time_steps


@pytest.mark.parametrize("reset", ["subtract", "zero"])
@pytest.mark.parametrize("kernels", KERNELS)
def test_snntorch_membrane_potential_as_output(reset, kernels, tmp_path):
    model = peers.settle_(MeanMembrane(reset_mechanism=reset), gain=1.5)
    images = 3 * torch.rand(3, 1, 28, 28)
    exported = spikewire.export(model, images, tmp_path / "x")
    assert exported.different_spikes == 0
    runtime = spikewire.load(tmp_path / "x", kernels=kernels, exact=True)
    assert runtime.network.membrane
    with torch.no_grad():
        torch.testing.assert_close(runtime(images).mean(0), model(images), rtol=1e-5, atol=1e-5)
    refused(lambda: nir.to_nir(runtime.network), "membrane potentials")


def test_snntorch_convolutional_network_with_pooled_currents():
    model = peers.settle_(peers.SnnTorchConv())
    network = assert_same_spikes(model, 4 * torch.rand(3, 1, 28, 28))
    assert [stage.current_pool.kind for stage in network.stages[:2]] == ["max", "sum"]


def test_snntorch_loop_of_the_user_around_the_model():
    model, images = peers.settle_(peers.snntorch_sequential()), 4 * torch.rand(3, 1, 28, 28)
    network = assert_same_spikes(model, images, [images] * 10, time_steps=10)
    for module in model.modules():
        if isinstance(module, peers.snntorch.Leaky):
            module.reset_mem()
    out = 0
    with torch.no_grad():
        for _ in range(10):
            out += model(images)[0]
    assert torch.equal(Runtime(network)(images).sum(0), out)


def test_norse_cells_in_a_loop_over_frames():
    model = peers.settle_(peers.NorseFrames(), gain=1.5)
    assert_same_spikes(model, 6 * torch.rand(7, 3, 20), frames=True)


def test_norse_container_that_returns_its_states():
    model, image = peers.settle_(peers.norse_sequential(), gain=3.0), 9 * torch.rand(3, 20)
    network, (_, state) = trace_model(model, image, time_steps=4), (None, None)
    spikes = []
    with torch.no_grad():
        for _ in range(4):
            out, state = model(image, state)
            spikes.append(out)
    assert torch.stack(spikes).sum() > 0
    assert torch.equal(Runtime(network)(image), torch.stack(spikes))


SYNAPTIC = {
    "subtract": {},
    "zero, one step later": {"reset_mechanism": "zero"},
    "zero": {"reset_mechanism": "zero", "reset_delay": False},
    "without synaptic current": {"alpha": 0.0},
}


def make_sparse(make, gain, connectivity=0.4):
    """A model of scaled weights, some of them 0, the same in every run."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_((torch.rand_like(weight) < connectivity) * gain)
    return model


@pytest.mark.parametrize("options", SYNAPTIC)
def test_snntorch_synaptic_currents(options):
    model = make_sparse(lambda: peers.SnnTorchSynaptic(**SYNAPTIC[options]), 4.0)
    images = 0.5 * torch.rand(3, 1, 28, 28)
    network = assert_same_spikes(model, images)
    decays = [stage.neuron.current_decay for stage in network.stages]
    alpha = SYNAPTIC[options].get("alpha", 0.8)
    assert decays == pytest.approx([alpha, 0.6, alpha])
    for kernels in KERNELS:  # both without recorded calls and with them
        runtime = Runtime(network, kernels=kernels, exact=True)
        for part in (images, images[:1], images[1:2]):
            assert torch.equal(runtime(part), model(part)[0])


def test_snntorch_membrane_potential_after_a_synaptic_current():
    class Membrane(peers.SnnTorchSynaptic):
        def forward(self, x):
            return super().forward(x)[1]

    model, images = make_sparse(Membrane, 4.0), 0.5 * torch.rand(3, 1, 28, 28)
    for kernels in KERNELS:
        runtime = spikewire.compile(model, images, kernels=kernels, exact=True)
        assert runtime.network.membrane
        torch.testing.assert_close(runtime(images), model(images), rtol=1e-5, atol=1e-5)


CELLS = {
    "norse": lambda: peers.norse.LIFCell(),
    "norse, slow current": lambda: peers.norse.LIFCell(
        peers.norse.LIFParameters(torch.tensor(37.0), torch.tensor(330.0))
    ),
    "snntorch": lambda: peers.snntorch.Synaptic(0.77, 0.93),
    "snntorch, to zero": lambda: peers.snntorch.Synaptic(0.9, 0.4, reset_mechanism="zero"),
    "spikingjelly": lambda: peers.neuron.CUBALIFNode(0.7, 0.6, 1.0, None),
}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", CELLS)
@torch.no_grad()
def test_membranes_and_currents_are_those_of_the_library_to_the_bit(kind, kernels):
    cell, count = CELLS[kind](), 100
    index = np.arange(0, count**2, count + 1)  # one synapse of weight 1 per neuron
    arrays = {"index": index, "values": np.ones(count, np.float32)}
    arrays |= {"bias": np.zeros(count, np.float32), "neuron": read_neuron("x", cell).neuron}
    stage = Stage(name="x", shape=(count, count), **arrays)
    classes = tuple(map(str, range(count)))
    sizes = {"input_shape": (count,), "time_steps": 1, "classes": classes}
    stream = Runtime(Network(stages=(stage,), **sizes), kernels=kernels, exact=True).stream(2)
    torch.manual_seed(0)
    state, fired = (), 0.0
    for x in torch.randn(60, 2, count) + 0.3:
        if kind.startswith("norse"):
            before = x if not state else x + state[0].i  # Norse keeps what is left of it
            spikes, *state = cell(x, *state)
            voltage, current = state[0].v, before
        elif kind.startswith("snntorch"):
            spikes, current, voltage = cell(x, *state)
            state = (current, voltage)
        else:
            spikes, voltage, current = cell(x), cell.v, cell.c
        assert torch.equal(stream.step(x), spikes)
        for key, wanted in (("voltage", voltage), ("current", current)):
            found = torch.from_numpy(stream.state[0][key]).flatten(1)[:, :count]
            assert torch.equal(found, wanted), key
        fired += float(spikes.mean()) / 60
    assert 0.01 < fired < 0.9


class SynapticOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(4, 3), peers.snntorch.Synaptic(0.9, 0.8)

    def forward(self, x):
        syn, mem = self.lif1.reset_mem()
        for _ in range(3):
            spikes, syn, mem = self.lif1(self.fc1(x), syn, mem)
        return syn


def test_a_synaptic_current_as_output_is_refused():
    refused(lambda: trace_model(SynapticOutput(), torch.rand(2, 4)), "the synaptic current of lif1")


@pytest.mark.parametrize(
    "constants", [{}, {"tau_syn_inv": 900.0, "v_th": 0.1}, {"v_leak": 0.1, "v_reset": 0.1}]
)
def test_norse_synaptic_currents(constants):
    model = make_sparse(lambda: peers.NorseCuba(**constants), 10.0)
    frames = 3 * torch.rand(25, 2, 2, 12, 12)
    network = assert_same_spikes(model, frames, frames=True)
    decay = 1 - 0.001 * constants.get("tau_syn_inv", 200)
    assert network.stages[0].neuron.current_decay == pytest.approx(decay)
    for kernels in KERNELS:
        runtime, wanted = Runtime(network, kernels=kernels, exact=True), model(frames)
        for _ in range(2):  # each sample begins without current
            assert torch.equal(runtime.run_frames(frames), wanted)
        stream = runtime.stream(2)
        stream.step(frames[0])
        stream.keep(torch.tensor([False, True]))
        rest = torch.stack([stream.step(frame[1:]) for frame in frames[1:]])
        assert torch.equal(rest, wanted[1:, 1:])


def test_norse_neurons_that_run_all_time_steps():
    model = make_sparse(peers.norse_sequence, 8.0)
    assert_same_spikes(model, 2 * torch.rand(30, 3, 20), frames=True)


@pytest.mark.parametrize("values", packed.VALUES)
def test_synaptic_currents_survive_the_packed_file(values, tmp_path):
    model = make_sparse(peers.NorseCuba, 10.0)
    frames = 3 * torch.rand(25, 2, 2, 12, 12)
    spikewire.export(model, frames, tmp_path / "x", values=values)
    wanted = packed.quantise(trace_model(model, frames), values)
    back = packed.read(tmp_path / "x")
    assert [stage.neuron for stage in back.stages] == [stage.neuron for stage in wanted.stages]
    assert torch.equal(
        Runtime(back, exact=True).run_frames(frames), Runtime(wanted, exact=True).run_frames(frames)
    )


@pytest.mark.parametrize("format", ["packed", "nir"])
def test_a_residual_network_survives_its_file(format, tmp_path):
    model = peers.settle_(peers.sew_block())
    model[3] = peers.layer.AvgPool2d(
        3, stride=2, padding=1, step_mode="m"
    )  # NIR has no maximum pooling
    frames = torch.randn(3, 2, 3, 32, 32)
    spikewire.export(model, frames, tmp_path / "x", format=format)
    read = packed.read if format == "packed" else nir.from_nir
    wanted = spikewire.compile(model, frames, exact=True).record_spikes(frames, frames=True)
    found = Runtime(read(tmp_path / "x"), exact=True).record_spikes(frames, frames=True)
    for name, spikes in wanted.items():
        assert torch.equal(spikes, found[name]), name


# ---------------------------------------------------------------------- refusals


REFUSED = {
    "dt * tau_syn_inv of 1.2": lambda: peers.norse.LIFCell(dt=0.006),
    "v_reset 0.2 other than v_leak 0": lambda: peers.norse.LIFCell(
        peers.norse.LIFParameters(v_reset=torch.tensor(0.2))
    ),
    "LIFRecurrentCell": lambda: peers.norse.LIFRecurrentCell(5, 5),
    "v_reset 0.1 other than 0": lambda: peers.neuron.CUBALIFNode(v_reset=0.1),
    "c_decay 1 outside": lambda: peers.neuron.CUBALIFNode(c_decay=1.0),
    "v_decay 1.5 outside": lambda: peers.neuron.CUBALIFNode(v_decay=1.5),
    "QIFNode": lambda: peers.neuron.QIFNode(),
    "RSynaptic": lambda: peers.snntorch.RSynaptic(0.9, 0.8, all_to_all=False),
    "alpha=1": lambda: peers.snntorch.Synaptic(alpha=1.0, beta=0.8),
    "alpha has 5 values": lambda: peers.snntorch.Synaptic(torch.linspace(0.1, 0.9, 5), 0.8),
    "state_quant": lambda: peers.snntorch.Synaptic(0.9, 0.8, state_quant=torch.round),
    "reset_mechanism='none' ": lambda: peers.snntorch.Synaptic(0.9, 0.8, reset_mechanism="none"),
    "reset_delay=False ": lambda: peers.snntorch.Synaptic(0.9, 0.8, reset_delay=False),
    "RLeaky": lambda: peers.snntorch.RLeaky(beta=0.9, all_to_all=False),
    "reset_mechanism='none'": lambda: peers.snntorch.Leaky(beta=0.9, reset_mechanism="none"),
    "reset_delay=False": lambda: peers.snntorch.Leaky(beta=0.9, reset_delay=False),
    "beta has 5 values": lambda: peers.snntorch.Leaky(beta=torch.linspace(0.1, 0.9, 5)),
    "graded spikes": lambda: peers.snntorch.Leaky(beta=0.9, graded_spikes_factor=2.0),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_neurons_that_cannot_be_expressed_are_refused_by_name(reason):
    module = REFUSED[reason]()
    message = refused(lambda: read_neuron("hidden.lif", module), "hidden.lif")
    assert reason.strip() in message


@pytest.mark.parametrize("format", ["packed", "nir"])
def test_added_currents_survive_their_file(format, tmp_path):
    model, frames = peers.settle_(peers.spiking_block()), torch.randn(3, 2, 3, 16, 16)
    spikewire.export(model, frames, tmp_path / "x", format=format)
    read = packed.read if format == "packed" else nir.from_nir
    wanted = spikewire.compile(model, frames, exact=True).record_spikes(frames, frames=True)
    found = Runtime(read(tmp_path / "x"), exact=True).record_spikes(frames, frames=True)
    pairs = zip(wanted.values(), found.values(), strict=True)  # NIR names the sum after either
    assert all(torch.equal(*pair) for pair in pairs)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.back = nn.Linear(4, 4), nn.Linear(4, 4)
        self.lif = peers.snntorch.Leaky(beta=0.9)

    def forward(self, x):
        mem, spikes = self.lif.init_leaky(), torch.zeros(len(x), 4)
        for _ in range(3):
            spikes, mem = self.lif(self.fc(x) + self.back(spikes), mem)
        return spikes


def test_a_recurrent_network_is_refused():
    refused(lambda: spikewire.compile(Recurrent(), torch.rand(2, 4)), "back", "not supported")


def test_iand_of_sew_resnet_is_refused():
    model = peers.settle_(peers.sew_block())
    model[4].cnf = "IAND"
    message = refused(
        lambda: trace_model(model, torch.randn(2, 1, 3, 32, 32)), "4", "not supported"
    )
    assert "5.conv1" in message


class Shuffled(nn.Module):
    """Exchanges the samples of a batch between two layers, which the trace takes for time."""

    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(6, 30), peers.neuron.IFNode()
        self.fc2, self.lif2 = nn.Linear(30, 5), peers.neuron.IFNode()

    def forward(self, x):
        spikes = self.lif1(self.fc1(x))
        return self.lif2(self.fc2(spikes[torch.arange(len(x)).flip(0)]))


def test_a_model_that_fires_differently_from_its_record_is_refused():
    model, example = peers.settle_(Shuffled()), 8 * torch.rand(4, 6)
    assert len(trace_model(model, example, time_steps=3).stages) == 2  # it looks like a chain
    message = "fc2: the recorded network fires differently"
    refused(lambda: spikewire.compile(model, example, time_steps=3), message)
    refused(lambda: spikewire.export(model, example, "never", time_steps=3), message)
