import pytest
import snntorch as snn
import torch
from networks import conv_net
from refusal import refused
from torch import nn

from spikewire.formats.trace import trace_model
from spikewire.nn.delays import DelayedLinear
from spikewire.nn.layers import Spiking
from spikewire.nn.neurons import LIF
from spikewire.nn.recurrent import LastSteps
from spikewire.runtime import Runtime


def make_model(*layers, after=64):
    """A convolution, some layers, and a fully connected end."""
    parts = {"conv": nn.Conv2d(1, 4, 3, padding=1)} | {str(i): x for i, x in enumerate(layers)}
    parts |= {"flat": nn.Flatten(), "fc": nn.Linear(after, 2)}
    return Spiking(parts, time_steps=4, input_shape=(1, 8, 8)).eval()


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([LIF(), nn.AvgPool2d(2, divisor_override=1)], "1: pooling with divisor_override=1"),
        ([LIF(), nn.AvgPool2d(3, 2, 1, count_include_pad=False)], "1: pooling with count_include"),
        ([LIF(), nn.MaxPool2d(2, dilation=2)], "1: pooling with dilation=2"),
        ([LIF(), nn.MaxPool2d((2, 4))], "must be square"),
        ([LIF(), nn.MaxPool2d(2), nn.AvgPool2d(2)], "2: a second pooling"),
        ([LIF(), nn.AdaptiveAvgPool2d(3)], "1: adaptive pooling of (8, 8) to 3"),
        ([nn.Tanh(), LIF()], "1: its input is not supported: tanh in 0"),
        ([nn.Conv2d(4, 4, 1), LIF()], "0: synapses after conv without neurons between"),
        ([nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")], "padding_mode 'circular'"),
        ([LIF(), nn.BatchNorm2d(4, track_running_stats=False), LIF()], "running statistics"),
    ],
)
def test_layers_that_are_not_supported_are_refused_by_name(layers, message):
    sizes = [layer for layer in layers if "Pool" in type(layer).__name__]
    model = make_model(*layers, after=256 if not sizes else 64)
    with torch.no_grad():
        count = nn.Sequential(*list(model)[:-1])(torch.zeros(1, 1, 8, 8)).numel()
    model.fc = nn.Linear(count, 2)
    refused(lambda: trace_model(model), message)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.AvgPool2d(2), LIF()],
        [nn.MaxPool2d(3, stride=2, padding=1), LIF()],
        [nn.MaxPool2d(2), nn.BatchNorm2d(4), LIF()],
        [nn.BatchNorm2d(4), nn.BatchNorm2d(4), LIF()],
        [LIF(), nn.BatchNorm2d(4), LIF()],
        [LIF(), LIF(threshold=0.4)],
        [LIF(), nn.AvgPool2d(2), LIF(threshold=0.2)],
        [LIF(), nn.MaxPool2d(3, stride=1, padding=1)],
        [LIF(), nn.AvgPool2d(3, stride=2, padding=1)],
        [LIF(), nn.AvgPool2d(3, ceil_mode=True, padding=1, stride=1)],
        [LIF(), nn.AdaptiveMaxPool2d(2)],
    ],
)
@torch.no_grad()
def test_orders_of_layers(layers):
    torch.manual_seed(0)
    model = make_model(*layers)
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_var.fill_(0.05)
    count = model.fc.in_features
    model.fc = nn.Identity()
    count = model(torch.zeros(1, 1, 8, 8))[0].numel()
    model.fc = nn.Linear(count, 2)
    images = 4 * torch.randn(8, 1, 8, 8)
    runtime, wanted = Runtime(trace_model(model), exact=True), model(images)
    assert wanted.std() > 0
    torch.testing.assert_close(runtime(images), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)])
@pytest.mark.parametrize("spiking", [True, False])
@torch.no_grad()
def test_networks_that_end_in_pooling(pool, spiking):
    torch.manual_seed(0)
    layers = {"conv1": nn.Conv2d(1, 6, 3), "lif1": LIF(), "conv2": nn.Conv2d(6, 5, 3, stride=2)}
    layers |= {"lif2": LIF(threshold=0.1)} if spiking else {}
    model = Spiking({**layers, "pool": pool}, time_steps=4, input_shape=(1, 11, 11)).eval()
    images = 5 * torch.randn(3, 1, 11, 11)
    runtime, wanted = Runtime(trace_model(model), exact=True), model(images).flatten(2)
    assert wanted.std() > 0
    torch.testing.assert_close(runtime(images), wanted, rtol=1e-5, atol=1e-6)


class Gains(nn.Module):
    """A factor of the current, a mean over space, an addition of the same spikes twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.lif, self.fc = nn.Conv2d(1, 4, 3), LIF(), nn.Linear(4, 3)

    def forward(self, x):
        current = 2.5 * self.conv(x)
        spikes = self.lif(current.expand(5, *current.shape))
        return self.fc((spikes + spikes).mean((3, 4)) / 2)


@torch.no_grad()
def test_factors_means_and_additions_between_modules():
    torch.manual_seed(0)
    model, images = Gains(), 3 * torch.randn(2, 1, 8, 8)
    network = trace_model(model, images)
    assert len(network.sources[1]) == 2
    found = Runtime(network, exact=True)(images)
    torch.testing.assert_close(found, model(images), rtol=1e-5, atol=1e-6)


def test_the_mode_of_the_model_and_its_gradients_stay_as_they_are():
    model = conv_net().train()
    model.bn1.eval()
    before = [module.training for module in model.modules()]
    statistics = model.bn1.running_mean.clone()
    trace_model(model)
    assert [module.training for module in model.modules()] == before
    assert torch.equal(model.bn1.running_mean, statistics)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_without_neurons_or_example_is_refused():
    refused(lambda: trace_model(nn.Linear(3, 2), torch.rand(1, 3)), "spiking neurons")
    refused(lambda: trace_model(nn.Linear(3, 2)), "example")
    refused(lambda: trace_model(make_model(LIF(), after=256), [1]), "example", "a tensor")


def test_connectivity_counts_the_weights_that_are_not_zero():
    model = conv_net(connectivity=0.3)
    network = trace_model(model)
    weights = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    total = sum(weight.numel() for weight in weights)
    nonzero = sum(int(weight.count_nonzero()) for weight in weights)
    assert network.size == total
    assert network.connectivity == nonzero / total
    for stage, weight in zip(network.stages, weights, strict=True):
        assert stage.connectivity == int(weight.count_nonzero()) / weight.numel()


# ---------------------------------------------------------------------- some of the time steps


class Read(nn.Module):
    """A network whose output is what `read` takes of its spikes over time."""

    def __init__(self, read):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), LIF())
        self.read = read

    def forward(self, x):
        """Return what is read."""
        return self.read(self.net(x))


def running_sum(spikes):
    """Add one time step after the other, from 0 on."""
    total = 0
    for each in spikes:
        total = total + each
    return total


SOME = {
    "last": lambda y: y[-1],
    "late": lambda y: y[2:],
    "one as a slice": lambda y: y[2:3],
    "mean of late": lambda y: y[2:].mean(0),
    "sum of late": lambda y: y.split(3)[1].sum(0),
    "loop over late": lambda y: running_sum(y[3:]),
    "first and all": lambda y: y[0] + y.sum(0),
    "some outputs": lambda y: y.mean(0)[:, :3],
}
ALL = {
    "all": lambda y: y,
    "mean": lambda y: y.mean(0),
    "sum": lambda y: y[:].sum(0),
    "batch first": lambda y: y.transpose(0, 1),
    "list": lambda y: list(y.unbind(0)),
    "running sum": running_sum,
    "python's sum": lambda y: sum(y.unbind(0)),
    "time last": lambda y: torch.stack([*y], -1),
    "one after the other": lambda y: torch.cat([*y]),
    "flat": lambda y: y.flatten(0, 1),
    "two halves": lambda y: (y[:3].mean(0) + y[3:].mean(0)) / 2,
    "last, then all": lambda y: (y[-1], y),
}


@pytest.mark.parametrize("batch", [1, 2, 6])
@pytest.mark.parametrize("name", SOME)
def test_a_network_that_is_read_from_some_of_its_time_steps_is_refused(name, batch):
    line = refused(lambda: trace_model(Read(SOME[name]), torch.rand(6, batch, 3)))
    what = "a part of its values" if name == "some outputs" else "of 6 time steps"
    assert line.startswith("output: ")
    assert line.endswith(f"{what} is not allowed; it must be all, summed or not")


@pytest.mark.parametrize("batch", [1, 2, 6])
@pytest.mark.parametrize("name", ALL)
def test_a_network_that_is_read_from_all_its_time_steps_is_recorded(name, batch):
    assert trace_model(Read(ALL[name]), torch.rand(6, batch, 3)).time_steps == 6


class Loop(nn.Module):
    """A loop over time whose output is what `read` takes of the list of its spikes."""

    def __init__(self, read):
        super().__init__()
        self.fc, self.lif, self.read = nn.Linear(3, 4), snn.Leaky(0.5, init_hidden=True), read

    def forward(self, x):
        """Return what is read."""
        self.lif.reset_mem()
        return self.read([self.lif(self.fc(now)) for now in x])


@pytest.mark.parametrize("batch", [2, 6])
def test_a_loop_over_time_is_recorded_where_all_its_steps_are_read(batch):
    x = torch.rand(6, batch, 3)
    for read in (torch.stack, sum, list, lambda y: torch.stack(y).mean(0), lambda y: (y[-1], y)):
        assert trace_model(Loop(read), x).time_steps == 6
    for read in (lambda y: y[-1], lambda y: sum(y[3:]), lambda y: torch.stack(y)[2:].sum(0)):
        refused(
            lambda read=read: trace_model(Loop(read), x),
            "of 6 time steps",
            "must be all, summed or not",
        )


@pytest.mark.parametrize(
    "layer", [LastSteps(0.5), DelayedLinear(4, 4), DelayedLinear(4, 4, span=1)]
)
def test_layers_that_are_in_no_format_are_refused_by_name(layer):
    model = nn.Sequential(nn.Linear(3, 4), LIF(), layer)
    model.append(LIF())
    refused(lambda: trace_model(model, torch.rand(6, 2, 3)), "2:")


def test_data_over_time_of_one_time_step():
    layers = {"fc": nn.Linear(6, 4), "lif": LIF(), "out": nn.Linear(4, 3)}
    model = Spiking(layers, input_shape=(6,), temporal=True).eval()
    frames = 3 * torch.rand(1, 5, 6)
    network = trace_model(model, frames)
    assert network.input_shape == (6,)
    torch.testing.assert_close(Runtime(network, exact=True).run_frames(frames), model(frames))


def test_a_compiled_part_of_a_model_is_recorded_as_it_is():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), LIF(), nn.Linear(4, 3))
    net = Spiking({"body": model[1], "lif": model[2], "out": model[3]}, input_shape=(6,)).eval()
    expected = trace_model(net)
    names = [stage.name for stage in expected.stages]
    net.compile()
    assert [stage.name for stage in trace_model(net).stages] == names
    layers = {"body": torch.compile(nn.Linear(6, 4)), "lif": LIF(), "out": nn.Linear(4, 3)}
    part = Spiking(layers, input_shape=(6,)).eval()
    assert [stage.name for stage in trace_model(part).stages] == names
