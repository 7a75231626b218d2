"""Lemma 1 and Theorem 1 of the Grad R paper: the redefined gradient is a way down.

Both concern the softplus mapping w = s/beta log(1 + exp(beta theta)) without a prior.
g = grad of L by theta is the accurate gradient, g_bar = s dL/dw the redefined one.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from spikewire import GradR, Layer, setting

torch.set_num_threads(1)  # tiny tensors: threads only cost


@dataclass(frozen=True, kw_only=True)
class SmoothGradR(GradR):
    """Grad R as it is, seen through softplus in place of its limit, relu."""

    beta: float = setting(5.0, "sharpness of the softplus", within="(0, inf)")

    def project(self, layer: Layer) -> Tensor:
        sign = layer.state["sign"]
        return sign * nn.functional.softplus(layer.state["latent"] * sign, beta=self.beta)


def softplus(theta: Tensor, sign: Tensor, beta: float) -> Tensor:
    return sign / beta * torch.log1p(torch.exp(beta * theta))


def gradients(loss, theta: Tensor, sign: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return (g, g_bar): through the mapping, and past it."""
    theta = theta.clone().requires_grad_()
    w = softplus(theta, sign, beta)
    w.retain_grad()
    loss(w).backward()
    assert theta.grad is not None
    assert w.grad is not None
    return theta.grad, sign * w.grad


def draw_signs(count: int, generator: torch.Generator) -> Tensor:
    return torch.where(torch.rand(count, generator=generator) < 0.5, -1.0, 1.0).double()


def deep_loss(sizes: list[int], generator: torch.Generator):
    """Return a smooth loss of all weights of a tanh network, flat, and their number."""
    x = torch.randn(8, sizes[0], generator=generator).double()
    y = torch.randn(8, sizes[-1], generator=generator).double()
    shapes = [(b, a) for a, b in zip(sizes, sizes[1:], strict=False)]

    def loss(w: Tensor) -> Tensor:
        parts, hidden = w.split([a * b for a, b in shapes]), x
        for part, shape in zip(parts, shapes, strict=True):
            hidden = torch.tanh(hidden @ part.view(shape).T)
        return (hidden - y).square().mean()

    return loss, sum(a * b for a, b in shapes)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    beta=st.floats(1.0, 20.0),
    low=st.floats(-1.0, 0.5),
    seed=st.integers(0, 2**32),
)
def test_lemma_1_the_angle_is_below_90_degrees(sizes, beta, low, seed):
    generator = torch.Generator().manual_seed(seed)
    loss, count = deep_loss(sizes, generator)
    theta = low + torch.rand(count, generator=generator).double()  # so C = low
    g, g_bar = gradients(loss, theta, draw_signs(count, generator), beta)
    assume(g_bar.norm() > 1e-9)
    inner, bound = float(g @ g_bar), 1 + math.exp(-beta * low)  # A = 1 / sigma(beta C)
    assert inner > 0
    assert float(g_bar @ g_bar) <= bound * inner * (1 + 1e-12)


class Logistic(nn.Module):
    """L(w) = mean log(1 + exp(-y <x, w>)): lower bound 0, and every constant is known."""

    def __init__(self, x: Tensor, y: Tensor, w: Tensor):
        super().__init__()
        self.x, self.y = x, y
        self.readout = nn.Linear(x.shape[1], 1, bias=False).double()
        with torch.no_grad():
            self.readout.weight.copy_(w[None])

    def loss(self, w: Tensor) -> Tensor:
        return nn.functional.softplus(-self.y * (self.x @ w)).mean()

    def lipschitz(self, beta: float) -> float:
        """Bound of the Hessian by theta: D H D + diag(beta sigma' s dL/dw), with H <= X'X / 4n."""
        curvature = float(torch.linalg.matrix_norm(self.x, 2)) ** 2 / (4 * len(self.x))
        return curvature + beta / 4 * float(self.x.abs().mean(0).max())


@settings(deadline=None, max_examples=25)
@given(
    inputs=st.integers(1, 8),
    beta=st.floats(2.0, 8.0),
    fraction=st.floats(0.2, 0.95),
    seed=st.integers(0, 2**32),
)
def test_theorem_1_the_loss_falls_at_every_step(inputs, beta, fraction, seed):
    """The steps are the package's own, through its hooks on SGD."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, inputs, generator=generator).double()
    start = (torch.rand(inputs, generator=generator).double() - 0.3) * 0.7
    sign = torch.where(start < 0, -1.0, 1.0).double()
    model = Logistic(x, draw_signs(16, generator), start)
    lowest = -0.1  # C: theta starts at 0 or above, and 25 steps do not lead this far down
    bound = 1 + math.exp(-beta * lowest)
    lipschitz = model.lipschitz(beta)
    lr = fraction * min(2 / (bound * lipschitz), 0.1 / (25 * float(x.abs().mean(0).max())))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    pruner = SmoothGradR(alpha=0.0, beta=beta).attach(model, optimizer, total_steps=25)
    for _ in range(25):
        theta = pruner.state_dict()["layers"]["readout.weight"]["latent"][0] * sign
        assert (theta >= lowest).all()
        g, g_bar = gradients(model.loss, theta, sign, beta)
        before = model.loss(model.readout.weight[0])
        optimizer.zero_grad()
        before.backward()
        optimizer.step()
        after = model.loss(model.readout.weight[0])
        moved = pruner.state_dict()["layers"]["readout.weight"]["latent"][0] * sign
        assert torch.allclose(moved, theta - lr * g_bar, rtol=0, atol=1e-12)
        assume(g_bar.norm() > 1e-6)
        promised = -lr * (1 - bound * lipschitz * lr / 2) * float(g @ g_bar)
        assert promised < 0
        assert float((after - before).detach()) <= promised + 1e-14
        assert after < before


def test_the_accurate_gradient_vanishes_where_the_redefined_one_does_not():
    """Fig. 2a: deep in the plateau only g_bar points out of it."""
    sign = torch.tensor([1.0, -1.0]).double()
    theta = torch.tensor([-2.0, -3.0]).double()
    g, g_bar = gradients(lambda w: ((w - sign) ** 2).sum(), theta, sign, beta=20.0)
    assert g.abs().max() < 1e-15
    assert g_bar.tolist() == pytest.approx([-2.0, -2.0])
