"""The kernel of plain neurons against its float64 twin."""

from itertools import product

import pytest
import torch
from comparison import DTYPES, FULL, far_from_threshold, gradients, normal, relative_error
from torch import Tensor

from spikewire.nn.neurons import IF, LIF, Neuron, lif


def compare_with_float64(x: Tensor, neuron: Neuron, grad: Tensor | None = None) -> None:
    """Compare spikes and gradient of plain neurons where float32 can decide."""
    x = x.detach().requires_grad_()
    wide = x.detach().double().requires_grad_()
    spikes, truth = neuron(x), neuron(wide)
    assert spikes.dtype == x.dtype
    assert spikes.shape == x.shape
    sure = far_from_threshold(wide.detach(), neuron)
    assert sure.float().mean() > 0.9
    assert torch.equal((spikes.double() * sure), truth * sure)
    grad = normal(*x.shape, seed=1, dtype=x.dtype) if grad is None else grad
    (got,), (want,) = gradients(spikes, grad * sure, x), gradients(truth, grad * sure, wide)
    assert got.isfinite().all()
    assert relative_error(got, want) < DTYPES[x.dtype]


FEW = [(1, torch.bfloat16), (4, torch.float32), (8, torch.bfloat16), (16, torch.float16)]


@pytest.mark.parametrize(
    ("time_steps", "dtype"), list(product([1, 4, 8, 16], DTYPES)) if FULL else FEW, ids=str
)
def test_neurons_over_time(time_steps, dtype):
    compare_with_float64(normal(time_steps, 3, 397, dtype=dtype) * 2, LIF())


@pytest.mark.parametrize(
    "neuron",
    [
        IF(),
        IF(threshold=0.7, rest=-0.3, surrogate="sigmoid"),
        LIF(tau=3.3, threshold=0.4, rest=-0.5, surrogate="triangle"),
        LIF(tau=1.0),
        LIF(tau=1.25, threshold=0.5, surrogate="rectangle"),
        LIF(tau=7.5, surrogate="sigmoid"),
        IF(reset="soft"),
        LIF(tau=2.5, threshold=0.8, rest=-0.2, reset="soft", surrogate="sigmoid"),
    ],
    ids=repr,
)
def test_every_neuron_and_surrogate(neuron):
    compare_with_float64(normal(5, 301) * 1.5, neuron)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_membrane_exactly_at_the_threshold_fires(dtype):
    halves = (normal(8, 5, 77) * 6).round().clamp(-8, 8).to(dtype) / 2
    x, wide = halves.requires_grad_(), halves.detach().double().requires_grad_()
    hits = (wide[0] == 2).sum()  # m = 2 / tau = 1, the threshold
    spikes, truth = lif(x), lif(wide)
    assert hits > 5
    assert torch.equal(spikes.double(), truth)  # tau = 2: no rounding anywhere
    assert bool(spikes[0][x[0] == 2].all())
    grad = normal(8, 5, 77, seed=1, dtype=dtype)
    error = relative_error(*gradients(spikes, grad, x), *gradients(truth, grad, wide))
    assert error < DTYPES[dtype]


@pytest.mark.filterwarnings("ignore:overflow encountered")  # numpy's, inside the interpreter
@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_currents(dtype):
    x = normal(8, 130).sign().to(dtype) * torch.finfo(dtype).max
    x[:, ::3] = normal(8, 130)[:, ::3].to(dtype) * 2
    compare_with_float64(x, LIF())


@pytest.mark.parametrize(
    "make",
    [
        lambda: normal(4, 1),
        lambda: normal(1, 1) + 3,
        lambda: normal(4, 9, 33).transpose(1, 2),
        lambda: normal(8, 3, 50)[::2, :, ::3],
        lambda: normal(4, 2, 6, 5, 3).movedim(-1, 2),  # channels-last
        lambda: normal(1, 2, 37).expand(6, 2, 37),  # static: only the first step is read
        lambda: normal(33, 4).t(),
    ],
    ids=["one neuron", "one value", "transposed", "sliced", "channels-last", "static", "2-D"],
)
def test_sizes_and_strides(make):
    x = make()
    grad = normal(*reversed(x.shape), seed=3).permute(*reversed(range(x.ndim)))
    compare_with_float64(x * 2, LIF())
    compare_with_float64(x * 2, LIF(), grad)


def test_static_gradient_is_the_sum_over_time():
    x = normal(2, 37).requires_grad_()
    spikes = lif(x.expand(6, 2, 37))
    grad = normal(6, 2, 37, seed=1)
    (static,) = gradients(spikes, grad, x)
    full = x.detach().repeat(6, 1, 1).view(6, 2, 37).requires_grad_()
    copied = full.detach().clone().contiguous().requires_grad_()
    assert torch.equal(lif(copied), spikes)
    assert relative_error(static, gradients(lif(copied), grad, copied)[0].sum(0)) < 1e-5
