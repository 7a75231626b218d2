"""BatchNorm, neurons and max-pool in one operator, against the same layers in float64."""

import copy
from itertools import product

import pytest
import torch
from comparison import DEVICE, DTYPES, FULL, far_from_threshold, gradients, normal, relative_error
from torch import Tensor, nn

from spikewire.errors import SpikewireError
from spikewire.kernels import ops
from spikewire.nn.fusion import run_group
from spikewire.nn.neurons import IF, LIF, PLIF, Neuron, NeuronConstants


def make_group(channels: int, pool: bool, training: bool, seed: int = 0) -> list[nn.Module]:
    """Return BatchNorm with random parameters and statistics, neurons and a pool."""
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.copy_(normal(channels, seed=seed) + 1.5)
        norm.bias.copy_(normal(channels, seed=seed + 1) / 2 + 0.5)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(normal(channels, seed=seed + 2))
        norm.running_var.copy_(normal(channels, seed=seed + 3).abs() + 0.5)
    group: list[nn.Module] = [norm.to(DEVICE).train(training), LIF()]
    return [*group, nn.MaxPool2d(2)] if pool else group


def run_one_by_one(group: list[nn.Module], x: Tensor, time_steps: int) -> tuple[Tensor, Tensor]:
    """Run the layers as torch does; return the output and where rounding cannot change it."""
    norm, neuron, *pool = group
    current = norm(x.flatten(0, 1)).unflatten(0, x.shape[:2]).expand(time_steps, *x.shape[1:])
    assert isinstance(neuron, Neuron)
    spikes, sure = neuron(current), far_from_threshold(current.detach(), neuron).double()
    for layer in pool:
        spikes = layer(spikes.flatten(0, 1)).unflatten(0, spikes.shape[:2])
        sure = 1 - layer(1 - sure)
    return spikes, sure


def compare_with_float64(group: list[nn.Module], x: Tensor, time_steps: int) -> None:
    """Compare spikes, all gradients and running statistics of a group."""
    wide_group = [copy.deepcopy(layer).double() for layer in group]
    x = x.detach().requires_grad_()
    wide = x.detach().double().requires_grad_()
    truth, sure = run_one_by_one(wide_group, wide, time_steps)
    spikes = run_group(group, x, time_steps)
    assert spikes.dtype == x.dtype
    assert torch.equal(spikes.double() * sure, truth * sure)
    grad = normal(*spikes.shape, seed=9, dtype=x.dtype) * sure
    norm, wide_norm = group[0], wide_group[0]
    got = gradients(spikes, grad, x, *norm.parameters())
    want = gradients(truth, grad, wide, *wide_norm.parameters())
    for name, a, b in zip(("x", "weight", "bias"), got, want, strict=True):
        assert relative_error(a, b) < (DTYPES[x.dtype] if name == "x" else 2e-5), name
    for (name, a), b in zip(norm.named_buffers(), wide_norm.buffers(), strict=True):
        assert relative_error(a, b) < 1e-5, name


@pytest.mark.parametrize("static", [True, False])
def test_norm_fire_pool_with_a_soft_reset(static):
    group = make_group(5, pool=True, training=True)
    group[1] = LIF(tau=2.5, rest=-0.1, reset="soft", surrogate="sigmoid")
    compare_with_float64(group, normal(1 if static else 4, 3, 5, 6, 6) * 2, 4)


FEW = [  # dtype, static, pool, training: every pair of values at least once
    (torch.float32, False, True, True),
    (torch.float32, True, False, False),
    (torch.bfloat16, False, False, True),
    (torch.bfloat16, True, True, False),
    (torch.float16, True, True, True),
    (torch.float16, False, False, False),
]
BOTH = (False, True)


@pytest.mark.parametrize(
    ("dtype", "static", "pool", "training"),
    list(product(DTYPES, BOTH, BOTH, BOTH)) if FULL else FEW,
    ids=str,
)
def test_norm_fire_pool(dtype, static, pool, training):
    x = normal(1 if static else 4, 3, 20, 5, 7, dtype=dtype)
    compare_with_float64(make_group(20, pool, training), x, 4)


@pytest.mark.parametrize("shape", [(1, 1, 1, 2, 2), (8, 1, 3, 2, 9), (16, 2, 1, 3, 2)], ids=str)
def test_norm_fire_pool_sizes(shape):
    compare_with_float64(make_group(shape[2], True, True, seed=5), normal(*shape), shape[0])
    compare_with_float64(make_group(shape[2], False, True, seed=5), normal(*shape), shape[0])


def test_norm_fire_takes_channels_last_and_strided():
    x = normal(4, 2, 10, 12, 6)
    compare_with_float64(make_group(6, True, True), x.movedim(-1, 2), 4)
    strided = x.transpose(2, 3).movedim(-1, 2)[:, :, :, ::2]
    compare_with_float64(make_group(6, True, True), strided, 4)


def test_many_rounds_per_program(monkeypatch):
    """With few programs each one processes many tiles, the last of them cut off."""
    monkeypatch.setattr(ops, "SUM_PROGRAMS", 3)
    monkeypatch.setattr(ops, "MOMENT_PROGRAMS", 3)
    monkeypatch.setattr(ops, "TILE", 64)
    monkeypatch.setattr(ops, "BACKWARD_TILE", 64)
    compare_with_float64(make_group(11, False, True), normal(4, 3, 11, 5, 7), 4)


def test_many_channels():
    compare_with_float64(make_group(300, True, True), normal(2, 1, 300, 4, 4), 2)


def test_current_at_the_threshold_after_norm():
    """With a weight of 0 the bias is the current: 2 meets the threshold, less does not."""
    group = make_group(2, False, True)
    with torch.no_grad():
        group[0].weight.zero_()
        group[0].bias.copy_(torch.tensor([2.0, 1.9999]))
    spikes = run_group(group, normal(4, 2, 2, 3, 3), 4)
    assert bool(spikes[:, :, 0].all())
    assert not bool(spikes[0, :, 1].any())


def test_pool_ties_go_to_the_first():
    """All four of a window fire, or none: the gradient goes where torch sends it."""
    group = make_group(1, True, False)
    x = torch.zeros(4, 1, 1, 4, 4, device=DEVICE)
    x[..., :2, :] = 30.0
    norm = group[0]
    with torch.no_grad():
        norm.weight.fill_(1.0)
        norm.bias.zero_()
    compare_with_float64(group, x, 4)
    x.requires_grad_()
    (grad,) = gradients(run_group(group, x, 4), torch.ones(4, 1, 1, 2, 2, device=DEVICE), x)
    assert (grad[0, 0, 0] != 0).tolist() == [
        [i % 2 == 0 and j % 2 == 0 for j in range(4)] for i in range(4)
    ]


def running(channels: int) -> tuple[Tensor, Tensor]:
    """Return running statistics to update."""
    return torch.zeros(channels, device=DEVICE), torch.ones(channels, device=DEVICE)


@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (1000, 0.1), (-1e4, 3), (0, 1e-6)])
def test_statistics_are_stable(offset, scale):
    x = normal(6, 7, 5, 9) * scale + offset
    x[0, :, 0, 0] = offset + 50 * scale  # an outlier in the value that is subtracted
    mean, variance = ops.statistics(x, *running(7), momentum=0.1)
    wide = x.double().movedim(1, -1).flatten(0, 2)
    assert relative_error(mean, wide.mean(0)) < 1e-6
    assert relative_error(variance, wide.var(0, correction=0)) < 1e-4


def test_one_value_per_channel_cannot_train():
    with pytest.raises(SpikewireError, match="values per channel: 1"):
        run_group(make_group(3, False, True), normal(1, 1, 3, 1, 1), 4)


def test_operators_are_registered_completely():
    """Schema, shapes for the compiler, and autograd agree with what runs."""
    x = normal(4, 4, 4, 6).permute(0, 3, 1, 2).requires_grad_()
    mean, variance = ops.statistics(x.detach(), *running(6), momentum=0.1)
    norm = mean, variance, normal(6).requires_grad_(), normal(6).requires_grad_()
    shape = {"time_steps": 2, "static": False, "pool": True}
    constants = {"eps": 1e-5, "batch_statistics": True, **shape, **NeuronConstants().keywords()}
    torch.library.opcheck(ops.fire, (x, *norm, None, None, None), constants)
    torch.library.opcheck(ops.statistics, (x.detach(), *running(6)), {"momentum": 0.1})
    spikes, winners = ops.fire(x.detach(), *norm, None, None, None, **constants)
    backward = torch.ones_like(spikes), winners, x.detach(), *(v.detach() for v in norm)
    torch.library.opcheck(ops.fire_backward, (*backward, None, None), constants)
    constants["pool"] = False
    added = normal(4, 4, 4, 6, seed=2).permute(0, 3, 1, 2).requires_grad_()
    rate = torch.tensor(0.4, device=DEVICE, requires_grad=True)
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.fire, (x, *norm, added, added, rate), constants, test_utils=utils)


def test_constants_of_the_operators_are_keywords():
    for op in (ops.statistics, ops.fire, ops.fire_backward):
        for argument in op._opoverload._schema.arguments:
            assert argument.kwarg_only == ("Tensor" not in str(argument.type)), argument.name


NEURONS = [
    LIF(),
    IF(reset="soft", surrogate="sigmoid"),
    PLIF(3.0, threshold=0.8, surrogate="triangle"),
    PLIF(1.7, rest=-0.2, reset="soft"),
]


@pytest.mark.parametrize("neuron", NEURONS, ids=repr)
@pytest.mark.parametrize("kind", ["pool", "both"] if FULL else ["pool", "add", "residual", "both"])
def test_shortcuts_and_learnt_time_constants(neuron, kind):
    """``residual + neurons(BatchNorm(x) + add)`` against the same in float64, all gradients."""
    norm = make_group(6, False, True)[0]
    group = [norm, copy.deepcopy(neuron).to(DEVICE), *([nn.MaxPool2d(2)] if kind == "pool" else [])]
    wide_group = [copy.deepcopy(layer).double() for layer in group]
    x, add, residual = (normal(4, 2, 6, 5, 7, seed=i).requires_grad_() for i in range(3))
    wide = [y.detach().double().requires_grad_() for y in (x, add, residual)]
    given = {"add": add} if kind in ("add", "both") else {}
    given |= {"residual": residual} if kind in ("residual", "both") else {}
    out = run_group(group, x, 4, **given)
    current = wide_group[0](wide[0].flatten(0, 1)).unflatten(0, (4, 2))
    current = current + wide[1] if "add" in given else current
    truth = wide_group[1](current)
    truth = wide_group[2](truth.flatten(0, 1)).unflatten(0, (4, 2)) if kind == "pool" else truth
    truth = truth + wide[2] if "residual" in given else truth
    assert relative_error(out, truth) < 1e-6  # no neuron of these is within rounding
    leaves = [x, *given.values(), *norm.parameters(), *group[1].parameters()]
    wide_leaves = [wide[0], *(wide[1 if name == "add" else 2] for name in given)]
    wide_leaves += [*wide_group[0].parameters(), *wide_group[1].parameters()]
    grad = normal(*out.shape, seed=9)
    for a, b in zip(
        gradients(out, grad, *leaves), gradients(truth, grad, *wide_leaves), strict=True
    ):
        assert b.any()
        assert relative_error(a, b) < 3e-5


@pytest.mark.parametrize("pool", [True, False])
def test_thirty_two_time_steps(pool):
    compare_with_float64(make_group(3, pool, True, seed=5), normal(32, 1, 3, 4, 5), 32)


def test_a_learnt_time_constant_without_batchnorm():
    neuron = PLIF(2.5)
    wide = copy.deepcopy(neuron).double()
    neuron = neuron.to(DEVICE)
    x = (normal(5, 3, 41) * 2).requires_grad_()
    double = x.detach().double().requires_grad_()
    spikes, truth = neuron(x), wide.to(DEVICE)(double)
    assert torch.equal(spikes.double(), truth)
    grad = normal(*x.shape, seed=1)
    for a, b in zip(
        gradients(spikes, grad, x, neuron.w), gradients(truth, grad, double, wide.w), strict=True
    ):
        assert relative_error(a, b) < 1e-5
