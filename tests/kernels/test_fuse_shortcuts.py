"""`fuse` with a shortcut between BatchNorm and neurons: one kernel, or computed as without it."""

import copy
import operator

import pytest
import torch
from comparison import normal, relative_error
from peer_models import import_model
from refusal import refused
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from test_fuse import fired, run, watch
from torch import Tensor, nn

import spikewire
from spikewire import kernels
from spikewire.nn import deferred
from spikewire.nn.neurons import LIF

NEURONS = {"surrogate_function": surrogate.ATan(), "detach_reset": True}


@pytest.fixture
def launched(monkeypatch):
    """Return a list that gets, per fused kernel, whether it has a shortcut."""
    seen, inner = [], deferred.run_fused

    def count(*arguments, **options):
        seen.append(options["add"] is not None)
        return inner(*arguments, **options)

    monkeypatch.setattr(deferred, "run_fused", count)
    return seen


def same(model: nn.Module, twin: nn.Module, x: Tensor, limit: float = 1e-4) -> None:
    """Assert that both give equal outputs, gradients and buffers; the model is the fused one."""
    (out, grads), (expected, truth) = run(model, x), run(twin, x)
    assert expected.std() > 0
    assert relative_error(out, expected) < limit
    for a, b in zip(grads, truth, strict=True):
        assert relative_error(a, b) < limit or float(b.norm()) < 1e-4
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert relative_error(a, b) < 1e-5


def resnet18(kind: str) -> nn.Module:
    """Return SpikingJelly's ResNet-18 in multi-step mode."""
    torch.manual_seed(0)
    module = import_model(f"{kind}_resnet")
    options = {"cnf": "ADD"} if kind == "sew" else {}
    make = getattr(module, f"{kind}_resnet18")
    model = make(num_classes=5, spiking_neuron=neuron.LIFNode, **NEURONS, **options)
    functional.set_step_mode(model, "m")
    return fired(model)


@pytest.mark.parametrize(
    ("kind", "count", "shortcuts", "training"),
    [
        ("spiking", 17, 8, False),
        pytest.param("spiking", 17, 8, True, marks=pytest.mark.slow),
        pytest.param("sew", 20, 0, True, marks=pytest.mark.slow),
    ],
)
def test_spikingjellys_resnet18_computes_the_same(kind, count, shortcuts, training, launched):
    model = resnet18(kind).train(training)
    twin = copy.deepcopy(model)
    assert spikewire.fuse(model) == count
    same(model, twin, normal(2, 3, 3, 12, 12))
    assert (len(launched), sum(launched)) == (count, shortcuts)


def blocks() -> nn.Sequential:
    """Return two of SpikingJelly's residual blocks, the second with a stride and a downsample."""
    torch.manual_seed(0)
    block = import_model("spiking_resnet").BasicBlock
    options = {"spiking_neuron": neuron.LIFNode, **NEURONS}
    down = nn.Sequential(layer.Conv2d(4, 6, 1, stride=2), layer.BatchNorm2d(6))
    model = nn.Sequential(block(4, 4, **options), block(4, 6, 2, down, **options))
    functional.set_step_mode(model, "m")
    return fired(model)


@pytest.mark.parametrize("training", [True, False])
def test_spikingjellys_blocks_run_one_kernel_per_neuron_layer(training, launched):
    model = blocks().train(training)
    twin = copy.deepcopy(model)
    assert spikewire.fuse(model) == 4
    same(model, twin, normal(4, 2, 4, 6, 6))
    assert launched == [False, True, False, True]
    with torch.no_grad():
        x = normal(4, 2, 4, 6, 6, seed=3)
        for net in (model, twin):
            functional.reset_net(net)
        assert relative_error(model(x), twin(x)) < 1e-5
    assert len(launched) == 8


@pytest.mark.parametrize(
    "name", ["", "0.bn1", "0.sn1", "0.conv2", "0.sn2", "1.conv2", "1.downsample", "1.sn2"]
)
def test_hooks_of_any_module_see_the_values_they_see_without_fuse(name):
    model = blocks()
    twin = copy.deepcopy(model)
    spikewire.fuse(model)
    seen, expected = [], []
    watch(model.get_submodule(name), seen)
    watch(twin.get_submodule(name), expected)
    same(model, twin, normal(4, 2, 4, 6, 6))
    assert len(expected) >= 4
    assert seen == pytest.approx(expected, rel=1e-3, abs=1e-3)


class Joined(nn.Module):
    """``node(join(norm(x), shortcut))`` with a shortcut that is x, scaled."""

    def __init__(self, join, node: nn.Module | None = None):
        super().__init__()
        self.norm, self.join = layer.BatchNorm2d(3, step_mode="m"), join
        self.node = node or neuron.IFNode(step_mode="m")
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return self.node(self.join(self.norm(x), x * self.scale))


def add_in_place(a: Tensor, b: Tensor) -> Tensor:
    a += b
    return a


def add_and_keep_the_name(a: Tensor, b: Tensor) -> Tensor:
    a.add_(b)
    return a


def compared(join, node=None, x=None) -> nn.Module:
    """Compare a fused block with its twin; return the fused one."""
    model = fired(Joined(join, node))
    twin = copy.deepcopy(model)
    assert spikewire.fuse(model) == 1
    same(model, twin, normal(4, 2, 3, 5, 5) if x is None else x)
    return model


@pytest.mark.parametrize(
    "join",
    [
        lambda a, b: a + b,
        lambda a, b: b + a,
        lambda a, b: a.add(b),
        lambda a, b: b.add(a),
        add_in_place,
        add_and_keep_the_name,
        torch.add,
        lambda a, b: torch.add(b, a),
        operator.add,
        operator.iadd,
        lambda a, b: (a.flatten(0, 1) + b.flatten(0, 1)).view(4, 2, 3, 5, 5),
        lambda a, b: (a + b).reshape(4, 2, 3, 5, 5),
    ],
)
def test_every_spelling_of_a_sum_is_one_kernel(join, launched):
    compared(join)
    assert launched == [True]


@pytest.mark.parametrize(
    "node",
    [
        neuron.LIFNode(2.0, step_mode="m", surrogate_function=surrogate.ATan(), v_reset=None),
        neuron.ParametricLIFNode(1.7, step_mode="m"),
        LIF(),
    ],
)
def test_neurons_of_any_kind_take_a_shortcut(node, launched):
    compared(operator.add, node)
    assert launched == [True]


def without_gradient(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        total = a + b
    return total + a + b


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


@pytest.mark.parametrize(
    "join",
    [
        lambda a, b: torch.add(a, b, alpha=2),
        lambda a, b: a.sub(b),
        lambda a, b: a + b[..., :1, :1],
        lambda a, b: a + b[:1],
        lambda a, b: a + 1 + b,
        lambda a, b: (a + b.double()).float(),
        lambda a, b: a + b + b,
        lambda a, b: a + a + b,
        lambda a, b: add_in_place(b, a),
        lambda a, b: a.add_(a).add(b),
        lambda a, b: (a + b) * 0.9,
        lambda a, b: torch.add(a, b, out=None),
        lambda a, b: Double.apply(a + b) - Double.apply(a.add_(0)),
        without_gradient,
    ],
)
def test_every_other_use_is_computed(join, launched):
    compared(join)
    assert launched == []


def test_an_autograd_function_gets_the_sum_and_keeps_all_gradients(launched):
    compared(lambda a, b: Double.apply(a + b) + Double.apply(a))
    compared(lambda a, b: Double.apply(add_in_place(a, b)))
    assert launched == []


def test_both_names_see_a_sum_in_place():
    def join(a: Tensor, b: Tensor) -> Tensor:
        other, flat = a, a.flatten(0, 1)
        a += b
        return other * 0.5 + flat.view_as(a) * 0.25 + a * 0.25

    compared(join)


def test_a_sum_out_of_place_leaves_its_terms(launched):
    compared(lambda a, b: (a + b, a)[0] + 0 * a)
    compared(lambda a, b: (a + b) - a + b)
    assert launched == []


class Shared(nn.Module):
    """Uses a sum, and its BatchNorm, several times: in neurons, and after the neurons."""

    def __init__(self):
        super().__init__()
        self.norm = layer.BatchNorm2d(3, step_mode="m")
        self.first, self.second = neuron.IFNode(step_mode="m"), LIF()

    def forward(self, x: Tensor) -> Tensor:
        current = self.norm(x)
        total = current + x
        spikes = self.first(total) + self.second(total)
        return spikes + total + current


def test_a_sum_that_is_used_again_moves_statistics_once(launched):
    model = fired(Shared())
    twin = copy.deepcopy(model)
    assert spikewire.fuse(model) == 1
    same(model, twin, normal(4, 2, 3, 5, 5))
    assert launched == [True, True]
    assert model.norm.num_batches_tracked == 1


class Mixed(nn.Module):
    """A block whose modules are defined in another order than they run in, both terms BatchNorm."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(layer.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(layer.BatchNorm2d(3) for _ in range(3))
        self.nodes = nn.ModuleList(neuron.LIFNode(**NEURONS) for _ in range(2))
        functional.set_step_mode(self, "m")

    def forward(self, x: Tensor) -> Tensor:
        out = self.nodes[1](self.norms[2](self.convs[2](x)))
        out = self.norms[0](self.convs[0](out))
        return self.nodes[0](self.norms[1](self.convs[1](x)) + out)


def test_the_order_of_definition_does_not_matter(launched):
    torch.manual_seed(0)
    model = fired(Mixed())
    twin = copy.deepcopy(model)
    assert spikewire.fuse(model) == 1
    same(model, twin, normal(4, 2, 3, 5, 5))
    assert launched == [False, True]


def test_a_pool_after_a_sum_runs_alone(launched):
    torch.manual_seed(0)
    model = fired(nn.Sequential(Joined(operator.add), layer.MaxPool2d(2, step_mode="m")))
    twin = copy.deepcopy(model)
    spikewire.fuse(model)
    same(model, twin, normal(4, 2, 3, 6, 6))
    assert launched == [True]


def test_sums_are_plain_where_kernels_are_off(launched):
    before = kernels.use("torch")
    compared(operator.add)
    kernels.use(before)
    model = fired(Joined(operator.add))
    twin = copy.deepcopy(model)
    spikewire.fuse(model)
    same(torch.compile(model, backend="eager"), twin, normal(4, 2, 3, 5, 5))
    assert launched == []


def test_a_term_that_was_modified_before_the_neurons_ran_is_refused():
    """The kernel reads it later than the sum did."""

    def join(a: Tensor, b: Tensor) -> Tensor:
        total = a + b
        b.mul_(2)
        return total

    model = fired(Joined(join))
    spikewire.fuse(model)
    refused(lambda: model(normal(4, 2, 3, 5, 5)), "modified in place", "unfuse")
