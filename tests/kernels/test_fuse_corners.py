"""`fuse` in corners of users' models: each computes what it computes without, or is refused."""

import copy

import pytest
import torch
from comparison import normal, on_torch, relative_error
from refusal import refused
from spikingjelly.activation_based import functional, neuron, surrogate
from test_fuse import run, small
from torch import Tensor, nn

import spikewire
from spikewire.nn import LIF, Spiking


class Joined(nn.Module):
    """BatchNorm, neurons and a pool, used as a function says."""

    def __init__(self, use):
        super().__init__()
        self.norm, self.node, self.pool = small()
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x)


def assert_same(model: nn.Module, x: Tensor) -> None:
    """Assert that fusing changes neither output, gradients nor buffers."""
    twin = copy.deepcopy(model)
    assert spikewire.fuse(model) == 1
    (out, grads), (expected, truth) = run(model, x), run(twin, x)
    for a, b in zip([out, *grads], [expected, *truth], strict=True):
        assert relative_error(a, b) < 1e-5
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert relative_error(a, b) < 1e-5


def add_to_spikes(net: Joined, x: Tensor) -> Tensor:
    out = net.node(net.norm(x))
    out += x  # as the blocks of SEW-ResNet do
    return out


def add_before_the_pool(net: Joined, x: Tensor) -> Tensor:
    return net.pool(add_to_spikes(net, x))


def add_after_the_pool(net: Joined, x: Tensor) -> Tensor:
    return net.pool(net.node(net.norm(x))).add_(x[..., ::2, ::2])


@pytest.mark.parametrize("use", [add_to_spikes, add_before_the_pool, add_after_the_pool])
def test_spikes_may_be_modified_in_place(use):
    assert_same(Joined(use), normal(4, 2, 3, 6, 6))


def test_spikes_of_a_fused_network_may_be_modified_in_place():
    model = Spiking({"bn": nn.BatchNorm2d(3), "lif": LIF()}, time_steps=4)
    spikes = model.to(normal(1).device)(normal(2, 3, 6, 6))
    spikes += 1
    spikes.sum().backward()
    assert model.bn.weight.grad is not None


def named_arguments(net: nn.Module, x: Tensor) -> Tensor:
    return net.pool(x=net.node(x_seq=net.norm(x=x)))


def test_inputs_may_be_given_by_name():
    assert_same(Joined(named_arguments), normal(4, 2, 3, 6, 6))
    model = nn.ModuleList([nn.BatchNorm2d(3), LIF(), nn.MaxPool2d(2)]).to(normal(1).device)
    spikewire.fuse(model)
    current = model[0](input=normal(8, 3, 6, 6)).unflatten(0, (4, 2))
    assert model[2](input=model[1](current=current).flatten(0, 1)).shape == (8, 3, 3, 3)


def copied_and_modified(net: nn.Module, x: Tensor) -> Tensor:
    current = net.norm(x)
    other = current.contiguous()
    other += x
    return current + other


def copied_and_viewed(net: nn.Module, x: Tensor) -> Tensor:
    return net.norm(x).contiguous().view(8, -1)


@pytest.mark.parametrize("use", [copied_and_modified, copied_and_viewed])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_contiguous_is_a_copy_where_memory_is_channels_last(use, memory):
    model = Joined(use)
    functional.set_step_mode(model, "s")
    model.node = neuron.IFNode(step_mode="m")
    assert_same(model, normal(8, 3, 6, 6).to(memory_format=memory))


def test_contiguous_spikes_have_a_view():
    assert_same(
        Joined(lambda net, x: net.node(net.norm(x)).contiguous().view(4, 2, -1)),
        normal(4, 2, 3, 6, 6),
    )


class Rect(nn.Module):
    """A surrogate of a user with the name of one of SpikingJelly's."""

    alpha, spiking = 1.0, True

    def forward(self, x: Tensor) -> Tensor:
        return surrogate.ATan()(x)


def test_a_surrogate_is_recognised_by_its_library_too():
    model = small()
    model[1].surrogate_function = Rect()
    assert spikewire.fuse(model) == 0


def doubled(module: nn.Module) -> None:
    """Replace a forward as Accelerate does."""
    inner = module.forward
    module.forward = lambda x: 2 * inner(x)


@pytest.mark.parametrize("replaced", [0, 1, 2])
def test_a_forward_that_was_replaced_stays(replaced):
    model = small()
    doubled(model[replaced])
    x = normal(4, 2, 3, 6, 6)
    expected = model(x)
    functional.reset_net(model)
    assert spikewire.fuse(model) == (replaced == 2)
    assert relative_error(model(x), expected) < 1e-5
    spikewire.unfuse(model)
    functional.reset_net(model)
    assert relative_error(model(x), expected) < 1e-5


@pytest.mark.parametrize("replaced", ["bn", "lif", "pool"])
def test_a_forward_that_was_replaced_runs_in_a_network_of_spikewire(replaced):
    layers = {"bn": nn.BatchNorm2d(3), "lif": LIF(), "pool": nn.MaxPool2d(2)}
    model, x = Spiking(layers, time_steps=4).to(normal(1).device), normal(2, 3, 6, 6)
    doubled(layers[replaced])
    assert relative_error(model(x), on_torch(model, x)) < 1e-5


@pytest.mark.parametrize(
    "use",
    [
        lambda v: v.sum(),
        lambda v: v + 1.0,
        lambda v: 2 * v,
        lambda v: torch.relu(v),
        lambda v: torch.ones(3) - v,
        lambda v: v > 0,
        float,
    ],
)
def test_a_membrane_potential_that_was_not_kept_is_refused(use):
    model = small()
    spikewire.fuse(model)
    model(normal(4, 2, 3, 6, 6))
    clone = copy.deepcopy(model)
    for net in (model, clone):
        refused(lambda net=net: use(net[1].v), "membrane potential", "unfuse")
        functional.reset_net(net)
        assert net[1].v == 0.0


@pytest.mark.parametrize("v", [0.6, torch.tensor(0.4)])
def test_neurons_that_do_not_start_at_rest_run_as_they_are(v):
    model, x = small(), normal(4, 2, 3, 6, 6)
    value = v if isinstance(v, float) else torch.full_like(x[0], float(v))
    model[1].set_reset_value("v", value)
    assert_same(model, x)
    outputs = []
    for change in (spikewire.fuse, spikewire.unfuse):
        functional.reset_net(model)
        model[1].v = 0.3
        change(model)
        outputs.append(model(x))
    assert torch.equal(*outputs)


def test_an_input_on_another_device_is_refused_by_torch():
    model = small().to("meta")
    spikewire.fuse(model)
    with pytest.raises(RuntimeError, match="device"):
        model(normal(4, 2, 3, 6, 6))
