"""`fuse` on models of other libraries: equal outputs, gradients and buffers, or left alone."""

import copy
import warnings

import pytest
import torch
from comparison import DEVICE, Driven, gradients, normal, relative_error
from refusal import refused
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spikewire
from spikewire import kernels
from spikewire.nn import deferred
from spikewire.nn.neurons import LIF


def nodes() -> list[nn.Module]:
    """Return neurons with every reset, surrogate and kind that is recognised."""
    return [
        neuron.LIFNode(2.0, surrogate_function=surrogate.ATan(), detach_reset=True),
        neuron.IFNode(v_threshold=0.8),  # Sigmoid(4), reset with a gradient
        neuron.ParametricLIFNode(1.7, v_reset=None),
        neuron.LIFNode(3.0, v_reset=-0.1, surrogate_function=surrogate.PiecewiseQuadratic()),
        neuron.IFNode(surrogate_function=surrogate.Rect(), detach_reset=True),
    ]


def jelly() -> nn.Sequential:
    """Return SpikingJelly's layers in multi-step mode, with a stride and pools."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i, node in enumerate(nodes()):
        conv = layer.Conv2d(3 if i == 0 else 4, 4, 3, padding=1, stride=2 if i == 2 else 1)
        layers += [conv, layer.BatchNorm2d(4), node]
        layers += [layer.MaxPool2d(2)] if i in (0, 4) else []
    model = nn.Sequential(*layers, layer.Flatten(), layer.Linear(4, 5))
    functional.set_step_mode(model, "m")
    return fired(model)


def contained() -> nn.Sequential:
    """Return torch's own layers inside SpikingJelly's containers."""
    torch.manual_seed(0)
    first = layer.SeqToANNContainer(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
    pool = layer.SeqToANNContainer(nn.MaxPool2d(2), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5))
    return fired(nn.Sequential(first, neuron.LIFNode(step_mode="m"), pool, LIF()))


def fired(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias, 0.7, 0.3)
    return model.to(DEVICE)


def run(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    functional.reset_net(model)
    x = x.detach().requires_grad_()
    out = model(x)
    return out, gradients(out, normal(*out.shape, seed=7), x, *model.parameters())


@pytest.mark.parametrize(("make", "count"), [(jelly, 5), (contained, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_a_fused_model_computes_the_same(make, count, training, monkeypatch):
    model = make().train(training)
    twin, names = copy.deepcopy(model), list(model.state_dict())
    assert spikewire.fuse(model) == count
    calls, inner = [], deferred.run_fused
    monkeypatch.setattr(
        deferred, "run_fused", lambda *a, **k: calls.append(k["pool"]) or inner(*a, **k)
    )
    x = normal(4, 2, 3, 8, 8)
    out, grads = run(model, x)
    expected, truth = run(twin, x)
    assert len(calls) == count
    assert sum(calls) == (2 if make is jelly else 1)
    assert expected.std() > 0
    assert relative_error(out, expected) < 1e-5
    for a, b in zip(grads, truth, strict=True):
        assert relative_error(a, b) < 1e-4 or float(b.norm()) < 1e-4  # a bias before BatchNorm
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert relative_error(a, b) < 1e-5
    assert list(model.state_dict()) == names


def test_copies_are_fused_on_their_own_and_unfuse_restores():
    model = jelly()
    before = {name: vars(module).keys() for name, module in model.named_modules()}
    spikewire.fuse(model)
    clone = copy.deepcopy(model)
    with torch.no_grad():
        clone[1].weight.neg_()
    x = normal(4, 2, 3, 8, 8)
    assert not torch.equal(run(clone, x)[0], run(model, x)[0])
    spikewire.unfuse(model)
    assert {name: vars(module).keys() for name, module in model.named_modules()} == before
    functional.reset_net(model)
    assert not isinstance(model[1](model[0](x)), deferred.Deferred)


def small() -> nn.Sequential:
    """Return BatchNorm, neurons and a pool of SpikingJelly."""
    pair = layer.BatchNorm2d(3), neuron.LIFNode(surrogate_function=surrogate.ATan())
    model = nn.Sequential(*pair, layer.MaxPool2d(2))
    functional.set_step_mode(model, "m")
    return fired(model)


def test_a_value_that_something_else_uses_is_computed():
    """A shortcut adds the output of BatchNorm before the neurons get it."""
    model = small()[:2]
    twin = copy.deepcopy(model)
    assert spikewire.fuse(model) == 1
    x = normal(4, 2, 3, 5, 5)
    current, expected = model[0](x), twin[0](x)
    assert isinstance(current, deferred.Deferred)
    assert relative_error(current + 1, expected + 1) < 1e-6
    assert torch.equal(model[1](current), twin[1](expected))
    assert relative_error(model[0].running_mean, twin[0].running_mean) < 1e-6  # updated once


class Reused(nn.Module):
    """Uses the output of BatchNorm after the neurons had it, and spikes after the pool had them."""

    def __init__(self):
        super().__init__()
        self.norm, self.node, self.pool = small()

    def forward(self, x: Tensor) -> Tensor:
        current = self.norm(x)
        spikes = self.node(current)
        return self.pool(spikes) + spikes[..., ::2, ::2] + current[..., ::2, ::2]


def test_statistics_are_updated_once_where_a_value_is_computed_again():
    model = Reused()
    twin, x = copy.deepcopy(model), normal(4, 2, 3, 6, 6)
    assert spikewire.fuse(model) == 1
    (out, grads), (expected, truth) = run(model, x), run(twin, x)
    for a, b in zip(
        [out, *grads, *model.buffers()], [expected, *truth, *twin.buffers()], strict=True
    ):
        assert relative_error(a, b) < 1e-5


def watch(module: nn.Module, seen: list[float]) -> None:
    """Add a hook of every kind, which reads values as a monitor does: without gradients."""

    def read(_module, *values) -> None:
        with torch.no_grad():
            seen.extend(
                x.sum().item() for x in (v[0] if isinstance(v, tuple) else v for v in values)
            )

    module.register_forward_pre_hook(read)
    module.register_forward_hook(read)
    module.register_full_backward_hook(read)


@pytest.mark.parametrize("watched", [0, 1, 2])
def test_hooks_see_the_values_they_see_without_fuse(watched):
    model = small()
    twin, x = copy.deepcopy(model), normal(4, 2, 3, 6, 6)
    spikewire.fuse(model)
    seen, expected = [], []
    watch(model[watched], seen)
    watch(twin[watched], expected)
    run(model, x)
    run(twin, x)
    assert len(expected) == 5
    assert seen == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_statistics_can_be_estimated_again():
    """`update_bn` sets the momentum to None, which the kernels do not support."""
    model = small()
    twin, batches = copy.deepcopy(model), [normal(4, 2, 3, 6, 6, seed=i) for i in range(3)]
    spikewire.fuse(model)
    for network in (model, twin):
        network.register_forward_pre_hook(lambda net, _: functional.reset_net(net))
        torch.optim.swa_utils.update_bn(batches, network)
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert relative_error(a, b) < 1e-6


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm2d(3), (4, 2, 3, 5, 5)),
        (layer.BatchNorm2d(3, step_mode="m"), (8, 3, 5, 5)),
        (layer.BatchNorm2d(3, step_mode="m"), (4, 2, 2, 5, 5)),
    ],
)
def test_an_input_that_batchnorm_refuses_is_refused(norm, shape):
    model = nn.Sequential(norm, LIF()).to(DEVICE)
    spikewire.fuse(model)
    with pytest.raises((ValueError, RuntimeError), match="expected|should contain"):
        model(normal(*shape))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def scripted(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(doubled)(x)


def compiled(x: Tensor) -> Tensor:
    with warnings.catch_warnings():  # dynamo asks for `grad` of what is not a leaf
        warnings.simplefilter("ignore", UserWarning)
        return torch.compile(doubled, backend="eager")(x)


def doubled(x: Tensor) -> Tensor:
    return x * 2 + 1


def edited(x: Tensor) -> Tensor:
    x[0] = 0
    return x * 2


def watched(x: Tensor) -> Tensor:
    x.register_hook(lambda grad: 2 * grad)
    return x


def with_other_weights(model: nn.Module, x: Tensor) -> Tensor:
    weights = {name: 2 * value for name, value in model[0].named_parameters()}
    return torch.func.functional_call(model[0], weights, (x,))


@pytest.mark.parametrize(
    "use",
    [
        lambda model, x: Double.apply(model[0](x)),
        lambda model, x: scripted(model[0](x)),
        lambda model, x: compiled(model[0](x)),
        lambda model, x: edited(model[0](x)),
        lambda model, x: watched(model[0](x)),
        lambda model, x: model[1](watched(model[0](x))),
        lambda model, x: model[0](x).detach() + model[1](x),
        with_other_weights,
        lambda model, x: model[1](with_other_weights(model, x)),
    ],
)
def test_any_use_has_the_same_values_and_gradients(use):
    model = small()
    twin, x = copy.deepcopy(model), normal(4, 2, 3, 6, 6)
    spikewire.fuse(model)
    results = []
    for net in (model, twin):
        y = x.clone().requires_grad_()
        out = use(net, y)
        grads = torch.autograd.grad(
            out, [y, *net.parameters()], normal(*out.shape), allow_unused=True
        )
        results.append([out, *net.buffers(), *(g for g in grads if g is not None)])
    for a, b in zip(*results, strict=True):
        assert relative_error(a, b) < 1e-5


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_may_end_with_batchnorm(reentrant):
    model = small()[:2]
    twin, x = copy.deepcopy(model), normal(4, 2, 3, 6, 6)
    spikewire.fuse(model)
    results = []
    for net in (model, twin):
        y = x.clone().requires_grad_()
        out = net[1](checkpoint(net[0], y, use_reentrant=reentrant))
        out.square().sum().backward()
        results.append([out, y.grad, *(p.grad for p in net.parameters())])
    for a, b in zip(*results, strict=True):
        assert relative_error(a, b) < 1e-5


def test_statistics_move_in_the_order_of_calls_and_where_nothing_uses_the_output():
    model = small()
    twin = copy.deepcopy(model)
    spikewire.fuse(model)
    for net in (model, twin):
        outputs = [net[0](normal(4, 2, 3, 6, 6, seed=i) * (i + 1)) for i in range(3)]
        assert (outputs[1] + outputs[0]).isfinite().all()
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert relative_error(a, b) < 1e-6


def test_a_value_that_can_no_longer_be_computed_is_refused():
    model, x = small(), normal(4, 2, 3, 6, 6)
    spikewire.fuse(model)
    late = model[0](x), model[0](x.clone())
    x.zero_()
    refused(late[0].sum, "modified in place", "unfuse")
    with torch.no_grad():
        model[0].weight.mul_(2)
    refused(late[1].sum, "modified in place", "unfuse")


def test_a_gradient_that_would_be_lost_is_refused():
    model = small()
    spikewire.fuse(model)
    current = model[0](normal(4, 2, 3, 6, 6))
    current.mul_(2)
    out = Double.apply(current)
    refused(out.sum().backward, "gradient would be lost", "unfuse")


def test_a_backward_hook_of_a_container_sees_the_gradient():
    norm = layer.BatchNorm2d(3, step_mode="m")
    model = fired(nn.Sequential(nn.Sequential(norm), neuron.IFNode(step_mode="m")))
    twin, x, seen = copy.deepcopy(model), normal(4, 2, 3, 5, 5), []
    spikewire.fuse(model)
    for net in (model, twin):
        net[0].register_full_backward_hook(lambda *values: seen.append(values[2][0]))
        run(net, x)
    assert relative_error(*seen) < 1e-5


def test_neurons_whose_state_a_kernel_did_not_keep_are_refused():
    model, x = small(), normal(4, 2, 3, 6, 6)
    spikewire.fuse(model)
    model(x)
    refused(lambda: model[1](x), "not reset")
    functional.reset_net(model)
    model[1](x)


class Mixed(nn.Module):
    """Modules that are defined in another order than they run in."""

    def __init__(self):
        super().__init__()
        self.nodes = nn.ModuleList(neuron.LIFNode(step_mode="m") for _ in range(2))
        self.norms = nn.ModuleList(layer.BatchNorm2d(3, step_mode="m") for _ in range(2))
        self.last = LIF()

    def forward(self, x: Tensor) -> Tensor:
        x = self.nodes[0](self.norms[0](x))
        return self.last(self.nodes[1](self.norms[1](x)))


def test_the_order_of_definition_does_not_matter(monkeypatch):
    model, calls, inner = fired(Mixed()), [], deferred.run_fused
    twin, x = copy.deepcopy(model), normal(4, 2, 3, 6, 6)
    assert spikewire.fuse(model) == 1
    monkeypatch.setattr(
        deferred, "run_fused", lambda *a, **k: calls.append(k["pool"]) or inner(*a, **k)
    )
    (out, grads), (expected, truth) = run(model, x), run(twin, x)
    assert len(calls) == 2
    for a, b in zip([out, *grads], [expected, *truth], strict=True):
        assert relative_error(a, b) < 1e-5


def test_state_that_is_kept_between_calls_is_refused():
    model = fired(nn.Sequential(layer.BatchNorm2d(3, step_mode="m"), neuron.IFNode(step_mode="m")))
    spikewire.fuse(model)
    x = normal(4, 2, 3, 5, 5)
    model(x)
    refused(lambda: model(x), "not reset", "reset_net", "unfuse")
    functional.reset_net(model)
    model(x)


@pytest.mark.parametrize(
    "node",
    [
        neuron.LIFNode(step_mode="s"),
        neuron.LIFNode(step_mode="m", decay_input=False),
        neuron.LIFNode(step_mode="m", surrogate_function=surrogate.ATan(alpha=3.0)),
        neuron.LIFNode(step_mode="m", store_v_seq=True),
        nn.ReLU(),
        Driven(),
    ],
)
def test_what_is_not_recognised_stays_as_it_is(node):
    model = nn.Sequential(layer.BatchNorm2d(3, step_mode="m"), node)
    assert spikewire.fuse(model) == 0
    assert "forward" not in vars(model[0])


def test_off_or_on_double_the_modules_run_as_they_are():
    model = jelly()
    twin = copy.deepcopy(model)
    spikewire.fuse(model)
    x = normal(4, 2, 3, 8, 8)
    before = kernels.use("torch")
    assert torch.equal(run(model, x)[0], run(twin, x)[0])
    kernels.use(before)
    assert torch.equal(run(model.double(), x.double())[0], run(twin.double(), x.double())[0])
