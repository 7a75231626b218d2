"""An exported file, read by an interpreter of NIR's equations and by three simulators."""

import contextlib
import io
import warnings
from dataclasses import replace

import nir
import numpy as np
import peer_models as peers
import pytest
import torch
from networks import conv_net, small
from refusal import refused
from torch import nn
from torch.nn import functional

from spikewire.config import resolve
from spikewire.formats import Pool
from spikewire.formats.nir import DT, POOLINGS, from_nir, to_nir, write
from spikewire.formats.trace import trace_model
from spikewire.nn.layers import Spiking
from spikewire.nn.models import build
from spikewire.nn.neurons import LIF
from spikewire.runtime import Runtime


class Interpreter:
    """NIR as in its documentation: one equation per node, neurons in Euler steps of dt."""

    def __init__(self, graph):
        self.graph, self.after, self.voltage, self.current = graph, dict(graph.edges), {}, {}

    def step(self, x):
        name = "input"
        while name != "output":
            name = self.after[name]
            x = self.node(name, self.graph.nodes[name], x)
        return x

    def node(self, name, node, x):
        match node:
            case nir.Affine():
                return functional.linear(x, tensor(node.weight), tensor(node.bias))
            case nir.Conv2d():
                ends = (tuple(node.stride), tuple(node.padding))
                return functional.conv2d(x, tensor(node.weight), tensor(node.bias), *ends)
            case nir.AvgPool2d():
                return functional.avg_pool2d(x, tuple(node.kernel_size))
            case nir.SumPool2d():
                sides = tuple(node.kernel_size)
                return functional.avg_pool2d(x, sides, divisor_override=1)
            case nir.Flatten():
                return x.flatten(1 + node.start_dim)
            case nir.LIF():
                v = self.voltage.get(name, tensor(node.v_reset).expand_as(x))
                v = v + DT / tensor(node.tau) * (tensor(node.v_leak) - v + tensor(node.r) * x)
                return self.fire(name, node, v)
            case nir.CubaLIF():
                i = self.current.get(name, torch.zeros_like(x))
                i = i + DT / tensor(node.tau_syn) * (tensor(node.w_in) * x - i)
                v = self.voltage.get(name, tensor(node.v_reset).expand_as(x))
                v = v + DT / tensor(node.tau_mem) * (tensor(node.v_leak) - v + tensor(node.r) * i)
                self.current[name] = i
                return self.fire(name, node, v)
            case nir.IF():
                v = self.voltage.get(name, tensor(node.v_reset).expand_as(x))
                return self.fire(name, node, v + DT * tensor(node.r) * x)
            case _:
                return x

    def fire(self, name, node, v):
        spikes = v >= tensor(node.v_threshold)
        self.voltage[name] = torch.where(spikes, tensor(node.v_reset), v)
        return spikes.double()


def tensor(array):
    return torch.from_numpy(np.asarray(array, np.float64))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("kind", ["half", "third", "rest", "if"])
def test_the_equations_of_nir_give_our_spikes(pooling, kind, tmp_path):
    model = conv_net(pool="avg", kind=kind).double()
    images = torch.randn(32, *model.input_shape, dtype=torch.float64)
    write(trace_model(model), tmp_path / "x.nir", pooling)
    reader = Interpreter(nir.read(tmp_path / "x.nir"))
    wanted = model(images)
    got = torch.stack([reader.step(images) for _ in range(model.time_steps)])
    assert 0.01 < wanted.mean() < 0.99
    assert ((wanted - got).abs() > 1e-6).double().mean() <= 1e-4  # weights are written as float32


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_written_network_is_read_back(pooling, tmp_path):
    model = conv_net(pool="avg", kind="third")
    network = trace_model(model)
    write(network, tmp_path / "x.nir", pooling)
    back = from_nir(tmp_path / "x.nir", time_steps=model.time_steps)
    images = torch.randn(4, *model.input_shape)
    wanted, got = Runtime(network).record_spikes(images), Runtime(back).record_spikes(images)
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)
    # votes are written as synapses, so only their rounding differs
    torch.testing.assert_close(Runtime(back)(images), Runtime(network)(images))


@pytest.fixture(scope="module")
def lenet(tmp_path_factory):
    """The file of a network whose neurons fire, one image, and the spikes."""
    torch.manual_seed(0)
    image = torch.rand(1, 1, 28, 28)
    model = small("lenet5", image, connectivity=0.3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    path = tmp_path_factory.mktemp("nir") / "lenet5.nir"
    write(trace_model(model), path)
    spikes = model(image)[:, 0]
    assert 0 < spikes.mean() < 1
    return path, image[0], spikes


def outputs(net, x, time_steps):
    state, found = None, []
    for _ in range(time_steps):
        out, state = net(x, state)
        found.append(out.detach())
    return torch.stack(found)


@contextlib.contextmanager
def quiet():
    """Silence the other packages, which print and warn on import."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def test_spikingjelly_gives_the_same_spikes(lenet):
    from spikingjelly.activation_based import nir_exchange

    path, image, spikes = lenet
    with quiet():
        net = nir_exchange.import_from_nir(str(path), dt=DT)
        found = outputs(net, image[None], len(spikes))[:, 0]
    assert torch.equal(found, spikes)


def test_snntorch_gives_the_same_spikes(lenet):
    from snntorch.import_nir import import_from_nir

    path, image, spikes = lenet
    with quiet():
        net = import_from_nir(nir.read(path))
        found = outputs(net, image, len(spikes))
    assert torch.equal(found, spikes)


def test_norse_gives_the_same_spikes(lenet):
    path, image, spikes = lenet
    with quiet():
        import norse.torch

        net = norse.torch.from_nir(str(path), dt=DT)
        found = outputs(net, image, len(spikes))
    assert torch.equal(found, spikes)


# ---------------------------------------------------------------------- refusals


def test_maximum_pooling_is_refused_and_a_preset_is_suggested():
    preset = "cifar10-conv-avg"
    refused(
        lambda: to_nir(trace_model(conv_net(pool="max"))), f"--preset {preset}", "maximum pooling"
    )
    model = build(resolve(preset).model)
    pools = [stage.pool for stage in trace_model(model.eval()).stages if stage.pool]
    assert [pool.kind for pool in pools] == ["sum", "sum"]


def test_a_soft_reset_is_refused():
    network = trace_model(conv_net(pool="avg", kind="soft if"))
    refused(lambda: to_nir(network), "reset: 'soft'", "NIR")


def test_unknown_poolings_and_damaged_files_are_refused(tmp_path):
    refused(lambda: to_nir(trace_model(conv_net()), "median"), "pooling: unknown 'median'")
    (tmp_path / "x").write_text("not a NIR file")
    refused(lambda: from_nir(tmp_path / "x"), "is not a NIR file")


def small_graph():
    layers = {"fc1": nn.Linear(3, 4), "lif1": LIF(), "fc2": nn.Linear(4, 2), "lif2": LIF()}
    return to_nir(trace_model(Spiking(layers, time_steps=4, input_shape=(3,))))


def test_a_pool_before_its_neurons_pools_currents():
    graph = nir.NIRGraph.from_list(
        nir.Input(np.array([1, 4, 4])),
        nir.Conv2d((4, 4), np.ones((2, 1, 3, 3)), 1, 1, 1, 1, np.zeros(2)),
        nir.AvgPool2d(np.array([2, 2]), np.array([2, 2]), np.array([0, 0])),
        nir.IF(np.full((2, 2, 2), 1 / DT), np.full((2, 2, 2), 9.0)),
        nir.Flatten({"input": np.array([2, 2, 2])}, 0, -1),
        nir.Affine(np.eye(8), np.zeros(8)),
        nir.Output(np.array([8])),
    )
    network = from_nir(graph, time_steps=3)
    assert network.stages[0].current_pool == Pool("sum", 2)
    # a corner of ones sums 4, an edge 6, the middle 9: their mean is 6.25; it fires at 9
    outputs = Runtime(network)(torch.ones(1, 1, 4, 4))
    assert outputs[:, 0].unique(dim=1).flatten().tolist() == [0, 1, 0]


def test_graphs_that_are_not_supported_are_refused():
    graph = small_graph()
    graph.edges.append(("fc1", "fc2"))
    refused(lambda: from_nir(graph), "fc2", "an addition")
    graph = small_graph()
    graph.edges.append(("fc2_neuron", "fc1"))
    refused(lambda: from_nir(graph), "without loops")
    graph = small_graph()
    graph.nodes["fc1_neuron"].tau[0] *= 2
    refused(lambda: from_nir(graph), "tau", "the same for all neurons")
    graph = small_graph()
    graph.nodes["fc1_neuron"].v_leak[:] = 0.5
    refused(lambda: from_nir(graph), "v_leak")
    graph = small_graph()
    graph.nodes["fc1_neuron"] = nir.Threshold(np.ones(4))
    refused(lambda: from_nir(graph), "Threshold", "not supported")


# ---------------------------------------------------------------------- recurrent neurons

LOOP = ("rec1.synapses", "rec1.synapses_neuron")


def recurrent_net():
    torch.manual_seed(2)
    sizes = {"input_shape": (4,), "classes": 3, "hidden": 24, "temporal": True}
    model = build("recurrent", time_steps=12, tau=3.0, threshold=0.4, readout="current", **sizes)
    frames = torch.rand(12, 6, 4)
    with torch.no_grad():
        model.get_parameter("fc1.weight").mul_(3)
        model.get_parameter("rec1.synapses.weight").mul_(3)
    return model.eval(), frames


@torch.no_grad()
def test_recurrent_neurons_are_a_loop_of_nir(tmp_path):
    """The file as `nir` reads it, run with the spikes of the step before on the way back."""
    model, frames = recurrent_net()
    write(trace_model(model, frames), tmp_path / "x.nir")
    graph = nir.read(tmp_path / "x.nir")
    edges = set(graph.edges)
    assert {LOOP, LOOP[::-1], ("fc1", LOOP[1]), (LOOP[1], "fc2")} <= edges
    assert len(edges) == len(graph.edges) == 6
    reader, found, loudness = Interpreter(graph), [], []
    spikes = torch.zeros(6, 24, dtype=torch.float64)
    for x in frames.double():
        current = reader.node("fc1", graph.nodes["fc1"], x)
        current = current + reader.node(LOOP[0], graph.nodes[LOOP[0]], spikes)
        spikes = reader.node(LOOP[1], graph.nodes[LOOP[1]], current)
        loudness.append(float(spikes.mean()))
        found.append(reader.node("fc2", graph.nodes["fc2"], spikes))
    assert 0.05 < np.mean(loudness) < 0.95
    torch.testing.assert_close(torch.stack(found).float(), model(frames), atol=1e-5, rtol=0)


@torch.no_grad()
def test_recurrent_neurons_are_read_back(tmp_path):
    model, frames = recurrent_net()
    network = trace_model(model, frames)
    write(network, tmp_path / "x.nir")
    back = from_nir(tmp_path / "x.nir", time_steps=12)
    assert back.recurrent == (1,)
    got = Runtime(back, exact=True).run_frames(frames)
    assert torch.equal(got, Runtime(network, exact=True).run_frames(frames))
    graph = nir.read(tmp_path / "x.nir")  # with a gain, and without bias: Linear
    graph.nodes[LOOP[0]] = nir.Linear(graph.nodes[LOOP[0]].weight / 2)
    graph.nodes["fc1"].weight /= 2
    graph.nodes[LOOP[1]].r *= 2
    assert torch.equal(Runtime(from_nir(graph), exact=True).run_frames(frames), got)


@pytest.mark.parametrize("peer", ["spikingjelly", "norse"])
@torch.no_grad()
def test_simulators_run_recurrent_neurons_with_our_outputs(peer, tmp_path):
    model, frames = recurrent_net()
    write(trace_model(model, frames), tmp_path / "x.nir")
    with quiet():
        if peer == "norse":
            from norse.torch import from_nir as read
        else:
            from spikingjelly.activation_based.nir_exchange import import_from_nir as read
        net, state, found = read(str(tmp_path / "x.nir"), dt=DT), None, []
        for x in frames[:, :1]:
            out, state = net(x, state)
            found.append(out)
    torch.testing.assert_close(torch.stack(found), model(frames)[:, :1], atol=1e-5, rtol=0)


def test_other_loops_of_nir_are_refused_by_name(tmp_path):
    network = trace_model(*recurrent_net())
    graph = to_nir(network)
    graph.edges.remove(LOOP)
    graph.edges.append(("fc2", LOOP[0]))
    graph.edges.append((LOOP[0], "fc1"))
    refused(lambda: from_nir(graph), "a loop", "without loops")
    graph = to_nir(network)
    graph.edges.append((LOOP[0], "fc2"))  # read by another node too
    refused(lambda: from_nir(graph), "without loops")
    graph = to_nir(network)
    graph.nodes["again"] = nir.Linear(np.eye(24))
    graph.edges += [("again", LOOP[1]), (LOOP[1], "again")]
    refused(lambda: from_nir(graph), LOOP[1], "two loops")
    graph = to_nir(network)
    graph.nodes[LOOP[0]] = nir.Linear(np.ones((24, 23)))
    refused(lambda: from_nir(graph), LOOP[0])


# ---------------------------------------------------------------------- synaptic currents


class Cuba(nn.Module):
    """A convolution and fully connected layers with neurons of Norse or snnTorch."""

    def __init__(self, kind, reset="zero"):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList((nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, 20), nn.Linear(20, 5)))
        self.kind, self.neurons = kind, nn.ModuleList(self.make(kind, reset) for _ in range(3))
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.mul_((torch.rand_like(layer.weight) < 0.5) * 4).add_(0.03)

    def make(self, kind, reset):
        if kind == "norse":
            return peers.norse.LIFCell(peers.norse.LIFParameters(v_th=torch.tensor(0.2)))
        options = {"reset_mechanism": reset, "reset_delay": reset != "zero", "threshold": 2.0}
        return peers.snntorch.Synaptic(0.8, 0.7, **options)

    def forward(self, frames):
        states, found = [()] * 3, []
        if self.kind == "snntorch":
            for neuron in self.neurons:
                neuron.reset_mem()
        for x in frames:
            for n, (layer, neuron) in enumerate(zip(self.layers, self.neurons, strict=True)):
                x, *states[n] = neuron(layer(x.flatten(1) if n else x), *states[n])
            found.append(x)
        return torch.stack(found)


def cuba_net(kind, **options):
    """The model, frames, and its outputs, whose spikes no rounding error changes."""
    model, frames = Cuba(kind, **options).eval(), 2 * torch.rand(25, 1, 1, 8, 8)
    with torch.no_grad():
        wanted = model(frames)
    assert 0.05 < wanted.mean() < 0.9
    return model, frames, wanted


def read_in(peer, path):
    with quiet():
        if peer == "norse":
            return peers.norse.from_nir(str(path), dt=DT)
        if peer == "spikingjelly":
            from spikingjelly.activation_based.nir_exchange import import_from_nir

            return import_from_nir(str(path), dt=DT)
        from snntorch.import_nir import import_from_nir

        return import_from_nir(nir.read(path))


@pytest.mark.parametrize("kind", ["norse", "snntorch"])
@torch.no_grad()
def test_synaptic_currents_in_nir(kind, tmp_path):
    model, frames, wanted = cuba_net(kind)
    network = trace_model(model, frames)
    write(network, tmp_path / "x.nir")
    graph = nir.read(tmp_path / "x.nir")
    node = graph.nodes["layers.0_neuron"]
    assert isinstance(node, nir.CubaLIF)
    assert np.allclose(node.tau_syn, 5 * DT)
    assert np.allclose(node.tau_mem, (10 if kind == "norse" else 1 / 0.3) * DT)
    reader = Interpreter(graph)
    assert torch.equal(torch.stack([reader.step(x) for x in frames.double()]).float(), wanted)
    back = from_nir(tmp_path / "x.nir")
    assert torch.equal(Runtime(back, exact=True).run_frames(frames), wanted)
    decays = [stage.neuron.current_decay for stage in network.stages]
    assert [stage.neuron.current_decay for stage in back.stages] == pytest.approx(decays)
    if kind == "norse":  # SpikingJelly has no gain of the current
        with pytest.raises(ValueError, match="w_in must equal"):
            read_in("spikingjelly", tmp_path / "x.nir")
    for peer in ("norse", "snntorch", *(["spikingjelly"] if kind == "snntorch" else [])):
        net, state, found = read_in(peer, tmp_path / "x.nir"), None, []
        for x in frames:
            with quiet():
                out, state = net(x if peer == "spikingjelly" else x[0], state)
            found.append(out)
        assert torch.equal(torch.stack(found).reshape(wanted.shape), wanted), peer


@torch.no_grad()
def test_recurrent_neurons_with_a_synaptic_current_are_read_back(tmp_path):
    model, frames = recurrent_net()
    network = trace_model(model, frames)
    stages = list(network.stages)
    stages[1] = replace(stages[1], neuron=stages[1].neuron._replace(current_decay=0.5))
    network = replace(network, stages=tuple(stages))
    write(network, tmp_path / "x.nir")
    back = from_nir(tmp_path / "x.nir", time_steps=12)
    assert (back.recurrent, back.stages[1].neuron.current_decay) == ((1,), 0.5)
    wanted = Runtime(network, exact=True).run_frames(frames)
    assert not torch.equal(wanted, model(frames))
    torch.testing.assert_close(Runtime(back, exact=True).run_frames(frames), wanted)


@torch.no_grad()
def test_a_graph_of_snntorch_with_synaptic_currents_is_read():
    from snntorch.export_nir import export_to_nir

    def make(count, **options):
        alpha, beta, threshold = (torch.full((count,), x) for x in (0.8, 0.7, 1.0))
        options |= {"reset_mechanism": "zero", "reset_delay": False, "init_hidden": True}
        return peers.snntorch.Synaptic(alpha, beta, threshold, **options)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 50), make(50), nn.Linear(50, 5), make(5, output=True))
    with quiet():
        graph = export_to_nir(net, torch.rand(20))
    for lif in (net[1], net[3]):
        lif.reset_mem()
    frames = 3 * torch.rand(30, 1, 20)
    wanted = torch.stack([net(x)[0] for x in frames])
    assert 0.05 < wanted.mean() < 0.95
    assert torch.equal(Runtime(from_nir(graph), exact=True).run_frames(frames), wanted)


def test_synaptic_currents_that_nir_does_not_have_are_refused(tmp_path):
    model, frames, _ = cuba_net("snntorch", reset="subtract")
    network = trace_model(model, frames)
    refused(lambda: to_nir(network), "layers.0: reset: 'delayed soft'")
    stage = network.stages[-1]
    neuron = stage.neuron._replace(tau=None, reset="hard")
    only = replace(network, stages=(replace(stage, neuron=neuron, inputs=()),), input_shape=(20,))
    refused(lambda: to_nir(only), "layers.2: neurons", "IF", "leaky in NIR")
    model, frames, _ = cuba_net("norse")
    graph = to_nir(trace_model(model, frames))
    graph.nodes["layers.1_neuron"].tau_syn[:] = DT / 2
    refused(lambda: from_nir(graph), "current_decay")
    graph.nodes["layers.1_neuron"].tau_syn[:] = 0
    refused(lambda: from_nir(graph))
    graph.nodes["layers.1_neuron"].tau_syn[:] = np.arange(20) + 1
    refused(lambda: from_nir(graph), "layers.1_neuron: tau_syn", "the same for all neurons")


def test_groups_are_refused_in_one_line():
    layers = {"conv": nn.Conv2d(2, 4, 3, groups=2), "lif": LIF(), "flatten": nn.Flatten()}
    model = Spiking(layers | {"fc": nn.Linear(144, 3)}, input_shape=(2, 8, 8)).eval()
    refused(lambda: to_nir(trace_model(model)), "cannot be written as NIR", "groups")
